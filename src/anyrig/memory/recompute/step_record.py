"""Run a training step, and record the memory at the beginning and end of each block."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ...errors import MemoryTrackingError
from .buffers import version_of
from .timed_forward import TimedForward, Timer

Event = tuple[Literal["enter", "leave", "backward"], int, int]  # what, block, number of the call


@dataclass(frozen=True)
class Mark:
    """The memory of the device at one event of a block.

    Attributes:
        allocated_bytes: the allocated bytes at the event.
        peak_bytes: the peak since the previous mark.
    """

    event: Event
    allocated_bytes: int
    peak_bytes: int


@dataclass(frozen=True)
class StepRecord:
    """The memory of one step.

    Attributes:
        marks: the marks, in the order of time.
        last_peak_bytes: the peak since the last mark.
        seconds: the time of each block's recomputations, on the device; 0 if the block was kept.
    """

    marks: tuple[Mark, ...]
    last_peak_bytes: int
    seconds: tuple[float, ...]

    @property
    def events(self) -> tuple[Event, ...]:
        """The events without the memory: the same for all records of one step."""
        return tuple(mark.event for mark in self.marks)

    def peak_after(self, number: int) -> int:
        """Return the peak from a mark to the next one; -1 for the beginning of the step."""
        following = number + 1
        if following == len(self.marks):
            return self.last_peak_bytes
        return self.marks[following].peak_bytes

    def owner_after(self, number: int) -> int | None:
        """Return the block whose forward or backward pass begins at a mark; None if none does."""
        if number < 0:
            return None
        what, block, _ = self.marks[number].event
        return None if what == "leave" else block


class StepRecorder:
    """Runs a step, and records the memory of `device` at each event of the blocks.

    ::

        block 0   ├enter──leave┤                                          ├backward …
        block 1                ├enter──leave┤                ├backward────┤
        marks     ▲            ▲▲           ▲                ▲            ▲
                                                  the head, and the loss
    """

    def __init__(
        self,
        step: Callable[[], object],
        blocks: Mapping[str, nn.Module],
        device: torch.device,
    ) -> None:
        self._step = step
        self._names = [*blocks]
        self._blocks = [*blocks.values()]
        self._forwards = [TimedForward(block) for block in blocks.values()]
        self._device = device
        self._marks: list[Mark] = []
        self._calls: Counter[int] = Counter()

    def run(self, kept: Collection[int]) -> StepRecord:
        """Run the step; the blocks whose numbers are not in `kept` are recomputed."""
        self._marks, self._calls = [], Counter()
        with ExitStack() as stack:
            for number, block in enumerate(self._blocks):
                forward = self._forwards[number]
                forward.timer = Timer()
                if number not in kept:
                    forward.install()
                    stack.callback(forward.remove)
                hooks = _BlockHooks(self, number)
                for handle in (
                    block.register_forward_pre_hook(hooks.enter, prepend=True, with_kwargs=True),
                    block.register_forward_hook(hooks.leave, with_kwargs=True),
                ):
                    stack.callback(handle.remove)
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self._device)
            self._step()
        last_peak_bytes = torch.cuda.max_memory_allocated(self._device)
        torch.cuda.synchronize(self._device)
        seconds = tuple(forward.timer.seconds() for forward in self._forwards)
        return StepRecord(tuple(self._marks), last_peak_bytes, seconds)

    def count_call(self, block: int) -> int:
        """Count a call of a block; return how often this step has called the block."""
        self._calls[block] += 1
        return self._calls[block]

    def mark(self, event: Event) -> None:
        """Record the memory at an event."""
        allocated_bytes = torch.cuda.memory_allocated(self._device)
        peak_bytes = torch.cuda.max_memory_allocated(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        self._marks.append(Mark(event, allocated_bytes, peak_bytes))

    def refuse_changed_input(self, block: int) -> None:
        """Raise the error for a block that changes its input.

        Raises:
            MemoryTrackingError: always.
        """
        raise MemoryTrackingError(
            f"{self._names[block]!r} changes its input in place, so its forward pass cannot be "
            "repeated; let the block change a copy, or leave the block out: name the other blocks "
            "with blocks=[...]"
        )


class _BlockHooks:
    """The hooks of one block while a step is recorded."""

    def __init__(self, recorder: StepRecorder, number: int) -> None:
        self._recorder = recorder
        self._number = number
        self._calls: list[int] = []
        self._versions: list[list[int | None]] = []

    def enter(self, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._calls.append(self._recorder.count_call(self._number))
        self._versions.append(_versions((args, kwargs)))
        self._recorder.mark(("enter", self._number, self._calls[-1]))

    def leave(
        self, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        number, call = self._number, self._calls.pop()
        if self._versions.pop() != _versions((args, kwargs)):
            self._recorder.refuse_changed_input(number)
        self._recorder.mark(("leave", number, call))
        is_first = True

        def begin_backward(gradient: Tensor) -> None:
            nonlocal is_first
            if is_first:
                is_first = False
                self._recorder.mark(("backward", number, call))

        for tensor in _tensors_in(output):
            if tensor.requires_grad:
                tensor.register_hook(begin_backward)  # type: ignore[no-untyped-call]


def _versions(value: Any) -> list[int | None]:
    return [version_of(tensor) for tensor in _tensors_in(value)]


def _tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _tensors_in(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _tensors_in(each)
