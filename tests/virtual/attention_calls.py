"""Call attention on a virtual rig and print the choices, outputs and memory as JSON.

    python attention_calls.py RIG [--shape-only]

This is a separate program, because a process can install only one rig in one mode.
"""

from __future__ import annotations

import json
import sys
import warnings
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from anyrig.virtual import install

SHAPE = (2, 4, 128, 64)  # (batch, heads, tokens, head size)


@dataclass(frozen=True)
class Call:
    """Arguments of scaled_dot_product_attention, and how its operands lie in memory."""

    query: tuple[int, ...] = SHAPE
    key: tuple[int, ...] = SHAPE
    value: tuple[int, ...] = SHAPE
    dtype: torch.dtype = torch.float16
    mask: tuple[int, ...] | None = None
    dropout: float = 0.0
    causal: bool = False
    gqa: bool = False
    gradient: bool = True
    permuted: bool = False  # the last dimension is not contiguous
    tokens_first: bool = False  # the memory layout that a projection produces
    shifted: int = 0  # elements before the query in its storage
    backends: tuple[SDPBackend, ...] = ()
    deterministic: bool = False

    def tensor(self, shape: tuple[int, ...], shift: int = 0) -> torch.Tensor:
        if self.permuted:
            batch, heads, tokens, head = shape
            tensor = torch.zeros(batch, heads, head, tokens, device="cuda", dtype=self.dtype)
            tensor = tensor.transpose(-1, -2)
        elif self.tokens_first:
            batch, heads, tokens, head = shape
            tensor = torch.zeros(batch, tokens, heads, head, device="cuda", dtype=self.dtype)
            tensor = tensor.transpose(1, 2)
        else:
            size = torch.Size(shape).numel()
            tensor = torch.zeros(size + shift, device="cuda", dtype=self.dtype)[shift:].view(shape)
        return tensor.requires_grad_(self.gradient)


def shape_of(heads: int = 4, tokens: int = 128, head: int = 64, batch: int = 2) -> Any:
    return batch, heads, tokens, head


def same_shapes(shape: tuple[int, ...], **rest: Any) -> Call:
    return Call(query=shape, key=shape, value=shape, **rest)


EFFICIENT, FLASH = SDPBackend.EFFICIENT_ATTENTION, SDPBackend.FLASH_ATTENTION
CUDNN, MATH = SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH

CALLS = {
    "half": Call(),
    "bfloat16": Call(dtype=torch.bfloat16),
    "float": Call(dtype=torch.float32),
    "double": Call(dtype=torch.float64),
    "tokens_first": Call(tokens_first=True),
    "no_gradient": Call(gradient=False),
    "causal": Call(causal=True),
    "causal_not_square": Call(key=shape_of(tokens=64), value=shape_of(tokens=64), causal=True),
    "mask": Call(mask=(128, 128)),
    "dropout": Call(dropout=0.25),
    "odd_dropout": Call(dropout=0.1),
    "head_of_20": same_shapes(shape_of(head=20)),
    "float_head_of_20": same_shapes(shape_of(head=20), dtype=torch.float32),
    "float_head_of_6": same_shapes(shape_of(head=6), dtype=torch.float32),
    "head_of_160": same_shapes(shape_of(head=160)),
    "head_of_160_with_few_keys": Call(
        query=shape_of(1, 512, 160, 1),
        key=shape_of(1, 64, 160, 1),
        value=shape_of(1, 64, 160, 1),
    ),
    "head_of_192": same_shapes(shape_of(head=192)),
    "head_of_256": same_shapes(shape_of(head=256)),
    "head_of_256_dropout": same_shapes(shape_of(head=256), dropout=0.25),
    "head_of_224": same_shapes(shape_of(head=224)),
    "head_of_224_no_gradient": same_shapes(shape_of(head=224), gradient=False),
    "head_of_512": same_shapes(shape_of(head=512)),
    "value_of_other_head": Call(value=shape_of(head=32)),
    "grouped_query": Call(key=shape_of(heads=2), value=shape_of(heads=2), gqa=True),
    "float_grouped_query": Call(
        key=shape_of(heads=2), value=shape_of(heads=2), gqa=True, dtype=torch.float32
    ),
    "one_key": Call(key=shape_of(tokens=1), value=shape_of(tokens=1)),
    "decoding": Call(
        query=shape_of(tokens=1),
        key=shape_of(tokens=4096),
        value=shape_of(tokens=4096),
        gradient=False,
    ),
    "decoding_with_fewer_keys": Call(
        query=shape_of(tokens=1),
        key=shape_of(tokens=2048),
        value=shape_of(tokens=2048),
        gradient=False,
    ),
    "decoding_with_heads_of_128": Call(
        query=shape_of(tokens=1, head=128),
        key=shape_of(tokens=4096, head=128),
        value=shape_of(tokens=4096, head=128),
        gradient=False,
    ),
    "three_dimensions": same_shapes((4, 128, 64)),
    "permuted": Call(permuted=True),
    "float_shifted": Call(dtype=torch.float32, shifted=1),
    "deterministic": Call(deterministic=True),
    "only_math": Call(backends=(MATH,)),
    "only_efficient": Call(backends=(EFFICIENT,)),
    "only_cudnn": Call(backends=(CUDNN,)),
    "efficient_or_math": Call(backends=(EFFICIENT, MATH)),
    "only_flash_float": Call(backends=(FLASH,), dtype=torch.float32),
}


def describe(tensor: torch.Tensor | None) -> Any:
    if tensor is None:
        return None
    dtype = str(tensor.dtype).removeprefix("torch.")
    return [dtype, list(tensor.shape), list(tensor.stride()), tensor.device.type]


def saved_tensors(output: torch.Tensor) -> dict[str, Any]:
    """Return what the autograd node of a fused operator saves for the backward pass."""
    node: Any = output.grad_fn
    if node is None or "ScaledDotProduct" not in type(node).__name__:
        return {}
    names = sorted(name for name in dir(node) if name.startswith("_saved_"))
    values = {name.removeprefix("_saved_"): getattr(node, name) for name in names}
    return {
        name: describe(value) if isinstance(value, torch.Tensor) else str(value)
        for name, value in values.items()
    }


def run(call: Call) -> dict[str, Any]:
    query = call.tensor(call.query, call.shifted)
    key, value = call.tensor(call.key), call.tensor(call.value)
    mask = None
    if call.mask is not None:
        mask = torch.ones(call.mask, dtype=torch.bool, device="cuda")
    arguments = (query, key, value, mask, call.dropout, call.causal)
    backends: AbstractContextManager[None] = (
        sdpa_kernel(list(call.backends)) if call.backends else nullcontext()
    )
    torch.use_deterministic_algorithms(call.deterministic)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    with backends:
        choice = SDPBackend(torch._fused_sdp_choice(*arguments, enable_gqa=call.gqa))
        offset = torch.cuda._get_rng_state_offset()
        output = scaled_dot_product_attention(*arguments, enable_gqa=call.gqa)
    result: dict[str, Any] = {
        "choice": choice.name,
        "offset": torch.cuda._get_rng_state_offset() - offset,
        "output": describe(output),
        "saved": saved_tensors(output),
        "forward": [torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()],
    }
    if call.gradient:
        output.backward(torch.zeros_like(output))
        result["gradients"] = [describe(t.grad) for t in (query, key, value)]
    torch.use_deterministic_algorithms(False)
    result["end"] = [torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()]
    return result


def main() -> None:
    rig, *options = sys.argv[1:]
    install(rig, shape_only=options == ["--shape-only"], without_kernels=True)
    results = {}
    for device in range(torch.cuda.device_count()):
        torch.cuda.set_device(device)
        torch.zeros(8, 8, device="cuda", requires_grad=True).sum().backward()
        for name, call in CALLS.items():
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                try:
                    result = run(call)
                except RuntimeError as error:
                    result = {"error": str(error)}
            result["warnings"] = [str(warning.message) for warning in caught]
            results[f"{torch.cuda.get_device_name(device)}: {name}"] = result
    print(json.dumps(results))


if __name__ == "__main__":
    main()
