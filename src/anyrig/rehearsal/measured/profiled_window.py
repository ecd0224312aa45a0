"""`ProfiledWindow`: PyTorch's profiler, for a few steps of this process.

::

    steps       | 1 |  2  |  3 |  4 | … | 9 | 10 | 11 | …
    profiled        |=======================|
                    └ begins with an idle device, and ends at the limit of steps, seconds or calls

The first step is left out, since it includes all that the program does before its loop. The limits
bound the memory that the profile takes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, supported_activities

from ..loaded_batches import LoaderWatch
from ..optimizer_steps import OptimizerSteps
from ..torch_versions import without_cycle_warning
from .marks import ModuleMarks, mark_step
from .other_profilers import OtherProfilers, is_profiling

MOST_STEPS = 8
_LOG_LEVEL = "KINETO_LOG_LEVEL"
# The profile ends with the step in which it exceeds one of these.
_MOST_SECONDS = 20.0
_MOST_CALLS = 100_000  # of modules: up to about a million events

_OWN_PROFILE = "the program runs PyTorch's profiler itself, and no other can run at that time"


@contextmanager
def _without_messages() -> Iterator[None]:
    """Keep Kineto from printing its progress, which it decides when it first starts."""
    if _LOG_LEVEL in os.environ:
        yield
        return
    os.environ[_LOG_LEVEL] = "99"
    try:
        yield
    finally:
        os.environ.pop(_LOG_LEVEL, None)


class ProfiledWindow:
    """Profiles some steps of this process.

    Attributes:
        steps_taken: the steps until now, profiled or not.
        loaded: what data loaders gave in each profiled step: samples, and the seconds of the wait.
        problems: why nothing was profiled, or not all.
    """

    def __init__(self) -> None:
        self.steps_taken = 0
        self.loaded: list[tuple[int | None, float]] = []
        self.problems: list[str] = []
        self._profile: profile | None = None
        self._is_running = False
        self._began = 0.0
        self._loaders = LoaderWatch()
        self._marks = ModuleMarks()
        self._others = OtherProfilers(self._give_way)
        self._steps = OptimizerSteps(self.end_step)

    def start(self) -> None:
        """Follow the steps from now on."""
        self._steps.start()

    def end_step(self) -> None:
        """Note the end of a step; begin to profile after the first one, and stop at a limit."""
        self.steps_taken += 1
        if self.steps_taken == 1:
            self._guard(self._begin)
        elif self._is_running:
            mark_step()
            self.loaded.append(self._loaders.take())
            if (
                len(self.loaded) >= MOST_STEPS
                or time.monotonic() - self._began > _MOST_SECONDS
                or self._marks.calls > _MOST_CALLS
            ):
                self._guard(self._end)

    def stop(self) -> None:
        """Follow and profile nothing from now on."""
        self._steps.stop()
        if self._is_running:
            self._guard(self._end)

    def export(self, path: Path) -> bool:
        """Write the trace to a file; return whether there is one."""
        done = self._profile
        if done is None:
            return False
        self._guard(lambda: done.export_chrome_trace(str(path)))
        return path.exists()

    def _begin(self) -> None:
        if is_profiling():
            self.problems.append(_OWN_PROFILE)
            return
        activities = {ProfilerActivity.CPU}
        # Without the first condition, the profiler would start CUDA in a program for the CPU.
        is_used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        supported = supported_activities()  # type: ignore[no-untyped-call]
        if is_used and ProfilerActivity.CUDA in supported:
            activities.add(ProfilerActivity.CUDA)
            torch.cuda.synchronize()
        with _without_messages(), without_cycle_warning():
            # The memory of the CPU has no place in a report, and is slow to follow.
            began = profile(activities=activities, profile_memory=len(activities) > 1)
            began.start()
        self._profile, self._is_running = began, True
        self._loaders.start()
        self._marks.start()
        self._others.start()
        self._began = time.monotonic()
        mark_step()

    def _end(self) -> None:
        self._is_running = False
        self._others.stop()
        self._marks.stop()
        self._loaders.stop()
        assert self._profile is not None
        self._profile.stop()

    def _give_way(self) -> None:
        self.problems.append(_OWN_PROFILE)
        self._guard(self._end)

    def _guard(self, action: Callable[[], Any]) -> None:
        """Run a part of ours; its failure must not be one of the program."""
        try:
            action()
        except Exception as error:
            self.problems.append(
                f"PyTorch's profiler failed: {type(error).__name__}: {error}".splitlines()[0]
            )
