"""References in a wider dtype, for calls that the CPU has no kernel for."""

from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

# Wide enough that the CPU has the kernel; a card computes narrow numbers in these too.
WIDER = {
    torch.bool: torch.uint8,
    torch.int64: torch.float64,
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.complex32: torch.complex64,
}
# Sixteen units in the last place (sums cancel), where the reference is computed in a wider dtype.
ROUNDING = {
    torch.bool: 0.0,
    torch.int64: 0.0,
    torch.float16: 2**-6,
    torch.bfloat16: 2**-4,
    torch.complex32: 2**-6,
}


def cast(tree: Any, from_: torch.dtype, to: torch.dtype) -> Any:
    """Every tensor of one dtype in another, and the dtype itself where it is an argument."""

    def cast(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.dtype == from_:
            return leaf.detach().to(to).requires_grad_(leaf.requires_grad)
        return to if leaf is from_ else leaf

    return tree_map(cast, tree)


def narrow(tree: Any, to: torch.dtype) -> Any:
    """Undo what widening the operands did to the dtypes of results."""
    narrower = {WIDER[to]: to}
    if to == torch.float16:
        narrower[torch.complex64] = torch.complex32
    return tree_map(
        lambda leaf: (
            leaf.to(narrower.get(leaf.dtype, leaf.dtype))
            if isinstance(leaf, torch.Tensor)
            else leaf
        ),
        tree,
    )


def largest_magnitude(tree: Any) -> float:
    """The largest finite magnitude, which is what sums that cancel are rounded by."""
    largest = 0.0
    for tensor in tree_flatten(tree)[0]:
        if not isinstance(tensor, torch.Tensor):
            continue
        finite = tensor.detach()[tensor.isfinite()]
        if finite.numel() > 0:
            largest = max(largest, float(finite.to(torch.complex128).abs().max()))
    return largest
