"""ARC209 and ARC210: pinned memory and asynchronous copies, one without the other."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..edit import Fix
from ..finding import Hit
from ..kind import Kind
from ..program import Program
from ..rewrite import add_argument, constant, has_stars, keyword
from ..rule import Rule
from .sources import page

_LOADER = "torch.utils.data.DataLoader"


def find_blocking(program: Program) -> Iterator[Hit]:
    """Find blocking copies of batches from loaders that all pin their memory."""
    loaders = program.calls.get(_LOADER, [])
    if not loaders or not all(_pins(call) is True for call in loaders):
        return
    for call in _copies(program):
        if keyword(call, "non_blocking") or keyword(call, "async_"):
            continue
        edit = add_argument(program, call, "non_blocking=True")
        yield Hit(
            program.start(call),
            program.end(call),
            "the loader pins this batch, but the copy waits until it is done; pass "
            "`non_blocking=True`",
            None if edit is None else Fix((edit,), is_safe=False),
        )


def find_unpinned(program: Program) -> Iterator[Hit]:
    """Find asynchronous copies of batches from loaders that do not pin."""
    loaders = program.calls.get(_LOADER, [])
    if not loaders or not all(_pins(call) is False for call in loaders):
        return
    for call in _copies(program):
        flag = keyword(call, "non_blocking")
        if flag is None or constant(flag.value) is not True:
            continue
        edits = [add_argument(program, each, "pin_memory=True") for each in loaders]
        complete = tuple(edit for edit in edits if edit is not None)
        yield Hit(
            program.start(call),
            program.end(call),
            "`non_blocking=True` copies asynchronously only from pinned memory, and no loader of "
            "this file pins; pass `pin_memory=True` to DataLoader",
            Fix(complete, is_safe=False) if len(complete) == len(edits) else None,
        )


def _pins(loader: ast.Call) -> object:
    """Return True or False, or `...` if the text does not say."""
    given = keyword(loader, "pin_memory")
    if given is not None:
        return constant(given.value)
    return ... if has_stars(loader) else False


def _copies(program: Program) -> Iterator[ast.Call]:
    """Yield the calls that copy a part of a batch to a device."""
    for name in ("cuda", "to"):
        for call in program.method_calls.get(name, []):
            assert isinstance(call.func, ast.Attribute)
            if has_stars(call) or not isinstance(call.func.value, (ast.Name, ast.Subscript)):
                continue
            if name == "to" and not _names_device(program, call):
                continue
            kind = program.kinds.of(call.func.value)
            if Kind.BATCH in kind and Kind.TENSOR in kind:
                yield call


def _names_device(program: Program, call: ast.Call) -> bool:
    if keyword(call, "device"):
        return True
    if len(call.args) != 1:
        return False
    text = program.source(call.args[0]).lower()
    return any(word in text for word in ("device", "cuda", "rank", "gpu"))


BLOCKING = Rule(
    code="ARC209",
    name="pinned-but-blocking",
    happens="The loader copies each batch into pinned memory, from which a GPU copies "
    "asynchronously, but this copy makes the host wait until it is done.",
    since=None,
    cure="Pass `non_blocking=True`, or use `anyrig.prefetch(loader, rig)`.",
    source=page("notes/cuda.html"),
    fires=(
        "from torch.utils.data import DataLoader\n\n\ndef train(data, device):\n"
        "    loader = DataLoader(data, pin_memory=True)\n    for x, y in loader:\n"
        "        x = x.to(device)\n"
    ),
    silent=(
        "from torch.utils.data import DataLoader\n\n\ndef train(data, device):\n"
        "    loader = DataLoader(data, pin_memory=True)\n    for x, y in loader:\n"
        "        x = x.to(device, non_blocking=True)\n"
    ),
    fixed=(
        "from torch.utils.data import DataLoader\n\n\ndef train(data, device):\n"
        "    loader = DataLoader(data, pin_memory=True)\n    for x, y in loader:\n"
        "        x = x.to(device, non_blocking=True)\n"
    ),
    find=find_blocking,
    is_about_versions=False,
)
UNPINNED = Rule(
    code="ARC210",
    name="non-blocking-but-unpinned",
    happens="A copy from pageable memory goes through a pinned buffer of the driver, and the host "
    "waits until the batch is in that buffer: the copy does not overlap with the host's work.",
    since=None,
    cure="Pass `pin_memory=True` to the loader, or use `anyrig.prefetch(loader, rig)`.",
    source=page("notes/cuda.html"),
    fires=(
        "from torch.utils.data import DataLoader\n\n\ndef train(data, device):\n"
        "    loader = DataLoader(data)\n    for x, y in loader:\n"
        "        x = x.to(device, non_blocking=True)\n"
    ),
    silent=(
        "from torch.utils.data import DataLoader\n\n\ndef train(data, device):\n"
        "    loader = DataLoader(data)\n    for x, y in loader:\n        x = x.to(device)\n"
    ),
    fixed=(
        "from torch.utils.data import DataLoader\n\n\ndef train(data, device):\n"
        "    loader = DataLoader(data, pin_memory=True)\n    for x, y in loader:\n"
        "        x = x.to(device, non_blocking=True)\n"
    ),
    find=find_unpinned,
    is_about_versions=False,
)
