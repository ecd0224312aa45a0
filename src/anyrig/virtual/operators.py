"""What PyTorch's own table says of each operator's CUDA kernel.

The table, `native_functions.yaml`, comes with every wheel, in the package `torchgen`. From it the
virtual devices know which operators a card has a kernel for (the others it composes of those), and
how that kernel checks the devices of its operands.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources

_ENTRY = re.compile(r"^- func: ", re.MULTILINE)
_DISPATCH = re.compile(r"^  dispatch:\n((?:    .*\n)*)", re.MULTILINE)
# Kernels generated for CPU and CUDA from one expression; the dispatch table does not list them.
_GENERATED = re.compile(r"^  ufunc_inner_loop:", re.MULTILINE)
_STRUCTURED = re.compile(r"^  structured: True", re.MULTILINE)
_DELEGATE = re.compile(r"^  structured_delegate: (\S+)", re.MULTILINE)
_NO_CHECK = re.compile(r"^  device_check: NoCheck", re.MULTILINE)

# Kernels for tensors that are made of others: sparse of both kinds, nested.
CONTAINER_KEYS = frozenset({"SparseCUDA", "SparseCsrCUDA", "NestedTensorCUDA"})


@dataclass(frozen=True)
class CudaOperator:
    """An operator as CUDA has it.

    Attributes:
        name: with its overload: ``"add.Tensor"``.
        has_cuda_kernel: whether it is more than a composition of other operators.
        structured: whether the kernel is structured, which decides the name its errors give.
        checks_devices: whether the generated wrapper compares the devices of the operands.
        container_keys: which of `CONTAINER_KEYS` it has a kernel for.
    """

    name: str
    has_cuda_kernel: bool
    structured: bool
    checks_devices: bool
    container_keys: tuple[str, ...]


def read_operators(text: str | None = None) -> list[CudaOperator]:
    """Return the operators of `text`, by default of the table of the installed PyTorch."""
    if text is None:
        table = resources.files("torchgen").joinpath("packaged/ATen/native/native_functions.yaml")
        text = table.read_text(encoding="utf-8")
    entries = [(entry[: entry.index("(")], entry) for entry in _ENTRY.split(text)[1:]]
    with_kernel = {
        name
        for name, entry in entries
        if "CUDA" in _dispatch_keys(entry) or _GENERATED.search(entry) is not None
    }
    return [
        CudaOperator(
            name=name,
            has_cuda_kernel=name in with_kernel or _delegate(entry) in with_kernel,
            structured=_STRUCTURED.search(entry) is not None or _delegate(entry) is not None,
            checks_devices=_NO_CHECK.search(entry) is None,
            container_keys=tuple(sorted(CONTAINER_KEYS & _dispatch_keys(entry))),
        )
        for name, entry in entries
    ]


def _delegate(entry: str) -> str | None:
    match = _DELEGATE.search(entry)
    return None if match is None else match[1]


def _dispatch_keys(entry: str) -> set[str]:
    match = _DISPATCH.search(entry)
    return set() if match is None else set(_keys(match[1]))


def _keys(lines: str) -> Iterator[str]:
    for line in lines.splitlines():
        keys = line.split("#")[0].split(":")[0]
        yield from (key.strip() for key in keys.split(","))
