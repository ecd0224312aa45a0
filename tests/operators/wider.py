"""References computed in a wider dtype, for calls without a CPU kernel."""

from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

# Dtypes for which the CPU has the kernel, and in which CUDA computes internally too.
WIDER = {
    torch.bool: torch.uint8,
    torch.int64: torch.float64,
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.complex32: torch.complex64,
}
# For wider references: sixteen units in the last place, since sums cancel.
ROUNDING = {
    torch.bool: 0.0,
    torch.int64: 0.0,
    torch.float16: 2**-6,
    torch.bfloat16: 2**-4,
    torch.complex32: 2**-6,
}


def cast(tree: Any, from_: torch.dtype, to: torch.dtype) -> Any:
    """Convert every tensor of one dtype to another, and the dtype itself if it is an argument."""

    def cast(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.dtype == from_:
            return leaf.detach().to(to).requires_grad_(leaf.requires_grad)
        return to if leaf is from_ else leaf

    return tree_map(cast, tree)


def narrow(tree: Any, to: torch.dtype) -> Any:
    """Convert results to the dtype that they would have without widening."""
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
    """Return the largest finite magnitude, which bounds the rounding of cancelling sums."""
    largest = 0.0
    for tensor in tree_flatten(tree)[0]:
        if not isinstance(tensor, torch.Tensor):
            continue
        finite = tensor.detach()[tensor.isfinite()]
        if finite.numel() > 0:
            largest = max(largest, float(finite.to(torch.complex128).abs().max()))
    return largest
