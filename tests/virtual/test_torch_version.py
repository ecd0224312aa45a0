"""PyTorch's versions: tried, newer than tried, and such that virtual GPUs cannot work."""

from __future__ import annotations

import time

import pytest
import torch

from anyrig.errors import VirtualRigError
from anyrig.private_names import NEWEST, OLDEST, PrivateName, find_missing, missing_in_room
from anyrig.virtual.torch_version import check_version

NEWER = f"{NEWEST[0]}.{NEWEST[1] + 1}.0a0+git12"


def none_missing() -> list[PrivateName]:
    return []


def test_this_version_is_supported_and_has_all_names() -> None:
    started = time.monotonic()
    assert missing_in_room("virtual").missing == ()
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
        "torch.cuda._no_name, for b; and 4 more; install a tested version: pip install "
        "'torch>=2.11,<2.16'"
    )


def test_an_old_version_is_refused() -> None:
    with pytest.raises(VirtualRigError, match=r"need PyTorch 2\.11 or later, and this is 2\.9\.1"):
        check_version("2.9.1", none_missing)
