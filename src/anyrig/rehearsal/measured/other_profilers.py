"""Profiles that the program itself makes, which PyTorch cannot make at the same time as ours.

A process has one profile. The one that begins last takes the events of the other, silently.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...observe.hooks import Replacements

# Private: every profile passes here before it begins. There is no hook for profiles.
# tests/rehearsal/measured/test_measured_run.py fails if the names change.
_PREPARE = "_prepare_trace"


def is_profiling() -> bool:
    """Return whether a profile is running."""
    return bool(torch.autograd._profiler_enabled())  # type: ignore[attr-defined]


class OtherProfilers:
    """Calls a function before another profile begins."""

    def __init__(self, before_other: Callable[[], None]) -> None:
        self._before_other = before_other
        self._replacements = Replacements()

    def start(self) -> None:
        """Watch for profiles from now on. Ours must be running."""
        self._replacements.around(torch.autograd.profiler.profile, _PREPARE, self._prepare)

    def stop(self) -> None:
        """Watch for nothing from now on."""
        self._replacements.restore()

    def _prepare(self, original: Callable[[Any], None], profile: Any) -> None:
        self.stop()
        self._before_other()
        original(profile)
