"""`torch_versions` distinguishes only what the supported versions of PyTorch do differently."""

from __future__ import annotations

import torch

from anyrig.memory.torch_versions import fsdp_undoes_failed_steps, newer_collectives
from anyrig.virtual.torch_version import OLDEST

VERSION = tuple(map(int, torch.__version__.split(".")[:2]))


def test_the_versions_begin_where_the_table_says() -> None:
    assert (newer_collectives() != ()) is (VERSION >= (2, 14))
    assert fsdp_undoes_failed_steps() is (VERSION >= (2, 13))


def test_a_supported_version_has_no_gather_into_tensor() -> None:
    assert OLDEST < (2, 14), "newer_collectives can go: put its name into rank_agreement"


def test_a_supported_version_cannot_undo_a_failed_step_of_fsdp() -> None:
    assert OLDEST < (2, 13), "fsdp_undoes_failed_steps can go, and the refusal in wrapped_models"
