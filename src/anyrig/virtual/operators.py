"""Facts about the CUDA kernels of PyTorch's operators, read from `native_functions.yaml`.

Every PyTorch wheel contains this table in the package `torchgen`. The table says which operators
have a CUDA kernel (the others are compositions of those) and whether the generated wrapper checks
the devices of the operands.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources

_ENTRY = re.compile(r"^- func: ", re.MULTILINE)
_DISPATCH = re.compile(r"^  dispatch:\n((?:    .*\n)*)", re.MULTILINE)
# A kernel generated for CPU and CUDA from one expression. The dispatch section does not list it.
_GENERATED = re.compile(r"^  ufunc_inner_loop:", re.MULTILINE)
_STRUCTURED = re.compile(r"^  structured: True", re.MULTILINE)
_ITERATOR = re.compile(r"^  structured_inherits: TensorIteratorBase", re.MULTILINE)
_DELEGATE = re.compile(r"^  structured_delegate: (\S+)", re.MULTILINE)
_NO_CHECK = re.compile(r"^  device_check: NoCheck", re.MULTILINE)

# Dispatch keys of tensors that contain other tensors: sparse (COO and compressed) and nested.
CONTAINER_KEYS = frozenset({"SparseCUDA", "SparseCsrCUDA", "NestedTensorCUDA"})


@dataclass(frozen=True)
class CudaOperator:
    """An operator and the facts about its CUDA kernel.

    Attributes:
        name: the name with the overload: ``"add.Tensor"``.
        has_cuda_kernel: whether the operator has a CUDA kernel of its own.
        structured: whether the kernel is structured, which determines the name in error messages.
        is_iterator: whether a structured kernel is made of a ``TensorIterator``.
        checks_devices: whether the generated wrapper compares the devices of the operands.
        container_keys: the keys of `CONTAINER_KEYS` for which the operator has a kernel.
    """

    name: str
    has_cuda_kernel: bool
    structured: bool
    is_iterator: bool
    checks_devices: bool
    container_keys: tuple[str, ...]


def read_operators(text: str | None = None) -> list[CudaOperator]:
    """Return the operators of the table `text`, by default that of the installed PyTorch."""
    if text is None:
        table = resources.files("torchgen").joinpath("packaged/ATen/native/native_functions.yaml")
        text = table.read_text(encoding="utf-8")
    entries = [(entry[: entry.index("(")], entry) for entry in _ENTRY.split(text)[1:]]
    iterators = {name for name, entry in entries if _ITERATOR.search(entry) is not None}
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
            is_iterator=name in iterators or _delegate(entry) in iterators,
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
