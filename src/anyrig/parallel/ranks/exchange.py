"""How many samples each rank has in one forward, which decides the weight of its gradients.

::

    rank 0   7 samples ──┐                   ┌──▶ its gradients * 7 * 3 / 15
    rank 1   5 samples ──┼── each to all ────┼──▶               * 5 * 3 / 15
    rank 2   3 samples ──┘                   └──▶               * 3 * 3 / 15

The mean over the ranks, which DDP and FSDP2 compute, is then the mean over the samples.

Ranks meet before they use the devices' collectives: when a backward pass begins, and before a
forward that has collectives. So one rank alone may run a forward that has no backward pass. Each
rank also announces its next call. If the calls differ, every rank raises before collectives of
different calls could be matched.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...errors import RankMismatchError
from ...processes.group.board import MEETING, UNEVEN_BATCHES, wait_for_hosts
from ...processes.group.caller_place import place_of_caller
from ...processes.group.direct_messages import direct_messages_of
from ...processes.group.membership import Context
from ..shares.measure import StepTime
from ..torch_versions import prepare_simulated_answer

_MESSAGE = struct.Struct("8q3d")  # an `_Announcement` and three numbers


class Phase(IntEnum):
    """The half of a step in which ranks meet."""

    FORWARD = 1
    BACKWARD = 2
    UNUSED = 3  # the end of a backward pass that left parameters without a gradient
    MEAN = 4  # a mean over targets that the module or the loss takes


class _Announcement(NamedTuple):
    """What a rank sends to all others: the fields of its `Exchange`, as numbers."""

    takes_part: int = 0  # 0 if the rank's loop in `join` has ended; then all fields are 0
    samples: int = 0
    phase: int = 0
    model: int = 0
    forward: int = 0
    learns: int = 0
    with_loss: int = 0
    reduces: int = 0

    def __str__(self) -> str:
        """Return the call in words."""
        which = f"forward {self.forward}" if self.forward else "a forward"
        without = "" if self.learns else " without gradients"
        if self.phase == Phase.MEAN:
            return f"mean over targets {self.forward} in a forward of spread model {self.model}"
        what = which if self.phase == Phase.FORWARD else f"the backward pass of {which}"
        if self.phase == Phase.UNUSED:
            what = f"parameters without a gradient in {what}"
        return f"{what}{without} of spread model {self.model}"


class _Messages:
    """What an exchange receives and sends, in tensors whose memory Python reads and writes."""

    def __init__(self, ranks: int) -> None:
        size = ranks * _MESSAGE.size
        tensors = torch.empty(2, size, dtype=torch.uint8, device="cpu").unbind()
        view = ctypes.c_char * size
        self.received, self.sent = (view.from_address(each.data_ptr()) for each in tensors)
        self.args = *tensors, [], []  # of all-to-all; gloo's all-gather costs four times as much


@dataclass(eq=False)
class Exchange:
    """What the ranks announce about one forward and its backward pass, through their hosts.

    `start` does not wait. `finish`, and each property that needs the other ranks, does.
    """

    context: Context
    model: int  # the number of the spread model; the ranks create models in the same order
    samples: int | None  # of this rank; None if its loop in `join` has ended
    own_loss: bool = False  # whether this rank computes a loss in the forward
    own_reduces: bool = True  # whether this rank reduces gradients in the backward pass
    forward: int = 0  # the number of the forward among those in which ranks meet; 0 for any other
    time: StepTime | None = None  # of this rank's own work, without waiting
    extra_of_ranks: Sequence[tuple[float, ...]] = ()  # the numbers that each rank gave to `start`
    leads_to_global_loss: bool = False  # whether the global loss is computed from the outputs
    divisor: Tensor | None = None  # what the global loss was divided by, once it was computed
    number: int = 0  # of this exchange in the group; 0 before `start`
    _own: _Announcement | None = None
    _messages: _Messages | None = None
    _work: Any = None
    _announced: list[_Announcement] | None = None

    def start(self, phase: Phase, learns: bool = True, extra: Sequence[float] = (0, 0, 0)) -> None:
        """Announce that this rank is at `phase`, with gradients if `learns`, and send `extra`."""
        context = self.context
        point = (phase, self.model, self.forward, learns)
        flags = (self.own_loss, self.own_reduces)
        self._own = _Announcement(True, self.samples or 0, *point, *flags)
        self.number = context.counts[MEETING] = context.counts[MEETING] + 1
        sent = _Announcement() if self.samples is None else self._own
        messages = context.messages.pop() if context.messages else _Messages(self.world_size)
        messages.sent.raw = _MESSAGE.pack(*sent, *extra) * self.world_size
        self._messages = messages
        direct, gloo = direct_messages_of(context), context.gloo
        prepare_simulated_answer(context.group.backend, messages.received, messages.sent)
        self._work = direct.alltoall(messages) if direct else gloo.alltoall_base(*messages.args)

    def finish(self) -> None:
        """Wait until every rank has announced itself; do nothing if no exchange is under way.

        Raise RankWaitError, which names a rank that did not come in time, or RankMismatchError if
        the ranks announced different calls.
        """
        if self._messages is None:
            return
        with self.waiting():
            wait_for_hosts(self._work, self._own, self.number)
        received = [*_MESSAGE.iter_unpack(self._messages.received)]
        self.context.messages.append(self._messages)  # for the next exchange
        self._announced = announced = [_Announcement(*numbers[:-3]) for numbers in received]
        self.extra_of_ranks = [numbers[-3:] for numbers in received]
        self._messages = self._work = None
        # From `phase` to `learns`, which `str` describes.
        if len({each[2:6] for each in announced if each.takes_part}) > 1:
            raise RankMismatchError(
                f"{_describe(announced)}; rank {self.context.group.rank} is at "
                f"{place_of_caller()}. Their collectives would mix. Let all ranks make the same "
                "calls of spread models; on one rank alone, call model.module under "
                f"torch.no_grad(), unless it is in shards. {UNEVEN_BATCHES}"
            )

    def meet(self, phase: Phase) -> None:
        """Announce that this rank has reached `phase`, and wait for every rank."""
        self.start(phase)
        self.finish()

    def add(self, phase: Phase, *numbers: float) -> list[float]:
        """Announce that this rank has reached `phase`; return the sums of the ranks' numbers."""
        self.start(phase, extra=[*numbers, *[0.0] * (3 - len(numbers))])
        self.finish()
        return [sum(column) for column in zip(*self.extra_of_ranks, strict=True)][: len(numbers)]

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Leave the time spent in the block out of `time`."""
        if self.time is not None:
            self.time.toggle()
        yield
        if self.time is not None:
            self.time.toggle()

    def _all(self) -> list[_Announcement]:
        if self._announced is None:
            if self._messages is None:
                self.start(Phase.BACKWARD)
            self.finish()
        assert self._announced is not None
        return self._announced

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self.context.group.world_size

    @property
    def active_ranks(self) -> list[int]:
        """The ranks whose loop in `join` has not ended."""
        return [rank for rank, each in enumerate(self._all()) if each.takes_part]

    @property
    def has_backward(self) -> bool:
        """Whether this rank's backward pass of this forward has begun."""
        return self._own is not None and self._own.phase in (Phase.BACKWARD, Phase.UNUSED)

    @property
    def with_loss(self) -> bool:
        """Whether any rank computes a loss in this forward."""
        return any(each.with_loss for each in self._all())

    @property
    def reduces(self) -> bool:
        """Whether any rank reduces gradients in this backward pass, so that all must."""
        return any(each.reduces for each in self._all())

    @property
    def part(self) -> float:
        """This rank's part of all samples; 0 if there are none."""
        total = self.total_samples
        return (self.samples or 0) / total if total else 0.0

    @property
    def weight(self) -> float:
        """The factor on this rank's gradients before the mean over all ranks."""
        total = self.total_samples
        return (self.samples or 0) * self.world_size / total if total else 0.0

    @property
    def samples_of_ranks(self) -> list[int]:
        """The number of samples of each rank."""
        return [each.samples for each in self._all()]

    @property
    def first_with_samples(self) -> int:
        """The first rank that has samples; 0 if none has."""
        return next((rank for rank, count in enumerate(self.samples_of_ranks) if count), 0)

    @property
    def total_samples(self) -> int:
        """The number of samples of all ranks."""
        return sum(self.samples_of_ranks)


def _describe(announced: Sequence[_Announcement]) -> str:
    """Return which ranks announced which call."""
    ranks: dict[str, list[str]] = {}
    for rank, each in enumerate(announced):
        if each.takes_part:
            ranks.setdefault(str(each), []).append(str(rank))
    return ", while ".join(
        f"rank{'s' if len(same) > 1 else ''} {', '.join(same)} came to {call}"
        for call, same in ranks.items()
    )
