"""PyTorch's versions: tried, newer than tried, and such that virtual GPUs cannot work."""

from __future__ import annotations

import ast
import time
from pathlib import Path

import pytest
import torch

import anyrig.virtual
from anyrig.errors import VirtualRigError
from anyrig.virtual import private_names
from anyrig.virtual.private_names import NAMES, NAMES_OF_GROUPS, PrivateName, find_missing
from anyrig.virtual.torch_version import NEWEST, OLDEST, check_version

ROOM = Path(anyrig.virtual.__file__).parent
NEWER = f"{NEWEST[0]}.{NEWEST[1] + 1}.0a0+git12"


def none_missing() -> list[PrivateName]:
    return []


def test_this_version_is_supported_and_has_all_names() -> None:
    started = time.monotonic()
    assert find_missing() == []
    assert time.monotonic() - started < 1
    assert tuple(map(int, torch.__version__.split(".")[:2])) >= OLDEST


def test_a_tried_version_is_not_mentioned(capfd: pytest.CaptureFixture[str]) -> None:
    for text in ("2.11.0", "2.13.0+cpu", "2.15.1+cu132"):
        check_version(text, none_missing)
    assert capfd.readouterr() == ("", "")


def test_a_newer_version_is_reported_in_one_sentence(capfd: pytest.CaptureFixture[str]) -> None:
    check_version(NEWER, none_missing)
    assert capfd.readouterr().err == (
        f"anyrig: PyTorch {NEWER} is newer than 2.15, the newest with which virtual GPUs were "
        "tried, so their results may be wrong.\n"
    )


def test_a_version_without_the_names_is_refused() -> None:
    def missing() -> list[PrivateName]:
        invented = [
            PrivateName("torch._C._NoSuchEngine", "backward passes"),
            PrivateName("torch.no_module.name", "a"),
            PrivateName("torch.cuda._no_name", "b"),
            PrivateName("torch.utils._no_file.name", "c"),
            PrivateName("torch.utils._triton._no_name_in_the_file", "d"),
            PrivateName("no_member_", "e", "torch/csrc/autograd/engine.h"),
            PrivateName("anything", "f", "no/such/header.h"),
        ]
        assert find_missing(invented) == invented
        return invented

    with pytest.raises(VirtualRigError) as refused:
        check_version(NEWER, missing)
    assert str(refused.value) == (
        f"virtual GPUs cannot work with PyTorch {NEWER}, which does not have "
        "torch._C._NoSuchEngine, for backward passes; torch.no_module.name, for a; "
        "torch.cuda._no_name, for b; and 4 more; install a version with which they were tried: "
        "pip install 'torch>=2.11,<2.16'"
    )


def test_an_old_version_is_refused() -> None:
    with pytest.raises(VirtualRigError, match=r"need PyTorch 2\.11 or later, and this is 2\.9\.1"):
        check_version("2.9.1", none_missing)


def private_names_in(file: Path) -> set[str]:
    """Return the last parts of the private names that `file` takes from PyTorch's modules."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value).startswith("torch."):
            found.add(node.attr)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch."):
            found |= {alias.name for alias in node.names}
    return {name for name in found if name.startswith("_") and not name.startswith("__")}


def test_every_private_name_of_this_room_is_listed() -> None:
    """Add a name that fails here to `private_names.py`, with what breaks without it."""
    listed = {part for one in (*NAMES, *NAMES_OF_GROUPS) for part in one.name.split(".")}
    # Names that anyrig adds or that are part of the listed ones.
    added = {"_C", "_cuda_maybeExchangeDevice", "_symmetric_memory"}
    for file in ROOM.rglob("*.py"):
        if file.name != Path(private_names.__file__).name:
            assert private_names_in(file) - listed - added == set(), file
