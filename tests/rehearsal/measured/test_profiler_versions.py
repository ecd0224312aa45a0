"""PyTorch's profiler starts without the warning that some supported versions give."""

from __future__ import annotations

from torch.profiler import ProfilerActivity, profile

from anyrig.private_names import OLDEST
from anyrig.rehearsal.torch_versions import without_cycle_warning


def test_a_profile_of_one_cycle_starts_without_a_warning() -> None:
    with without_cycle_warning(), profile(activities=[ProfilerActivity.CPU]) as profiler:
        pass
    assert profiler.events() is not None


def test_a_supported_version_warns() -> None:
    assert OLDEST < (2, 13), "without_cycle_warning can go"
