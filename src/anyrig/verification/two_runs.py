"""`verify`, which compares a training run on a rig with the same training on one device."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist

from ..devices.place import Places, as_rig
from ..devices.rig import Rig
from ..errors import VerificationError
from ..processes.group.membership import join_group
from ..processes.launch import launch
from .diagnosis import judge
from .one_rank_world import alone_in, new_group_of_first_rank
from .recorder import Recorder
from .records import RankRecord
from .replay import Replay
from .verdict import Verdict

Train = Callable[[Rig], object]


def verify(
    train: Train,
    rig: Places | None = None,
    *,
    steps: int = 3,
    dtype: torch.dtype = torch.float64,
    ranks: bool = False,
) -> Verdict:
    """Call `train` on a rig and on its first device, and compare their steps.

    ::

        def train(rig):
            model = anyrig.spread(Net(), rig)
            ...
            for x, y in loader:
                optimizer.zero_grad()
                loss(model(x), y).backward()
                optimizer.step()

        assert anyrig.verification.verify(train, "cuda:0,1")

    With `ranks`, one rank for each device of the rig calls `train`, in a process group; and so do
    all ranks of a group that call `verify`. Rank 0 then calls `train` once more, in a world of one
    rank.

    `train` makes its model, optimizer and loader itself, so that both calls begin alike. Before
    each, the random numbers are seeded. The call on one device gets the batches that the ranks'
    data loaders delivered, put together, and begins with the ranks' initial values. Dropout is off.

    Args:
        train: trains the model; its argument is the rig to use.
        rig: the devices; None for every accelerator, or, in a group, this rank's.
        steps: how many steps of an optimizer to compare.
        dtype: the default type of floating-point numbers in both calls.
        ranks: start a rank for each device of the rig.

    Returns:
        the verdict, which is true if the steps are the same; in a group, on every rank.

    Raises:
        Exception: `train` raised it.
        LaunchError: `train` raised in a rank that was started here.
    """
    if ranks:
        return launch(_verify_in_rank, (train, steps, dtype), rig=rig)
    group = new_group_of_first_rank() if _world_size() > 1 else None
    whole = as_rig("auto" if rig is None else rig)
    records = _gather(_record(train, whole, steps, dtype, _rank()))
    verdict = None
    if _rank() == 0:
        verdict = _compare_with_one(train, whole, steps, dtype, records, group)
    return _from_first_rank(verdict)


def _verify_in_rank(train: Train, steps: int, dtype: torch.dtype) -> Verdict:
    join_group()
    try:
        return verify(train, steps=steps, dtype=dtype)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def _compare_with_one(
    train: Train,
    rig: Rig,
    steps: int,
    dtype: torch.dtype,
    ranks: Sequence[RankRecord],
    group: dist.ProcessGroup | None,
) -> Verdict:
    first = Rig((rig.lead,), rig.reason)
    try:
        replay = Replay.of(ranks)
        with nullcontext() if group is None else alone_in(group):
            one = _record(train, first, steps, dtype, 0, replay)
    except VerificationError as error:
        return Verdict(2, reason=str(error), world_size=len(ranks))
    return judge(ranks, one)


def _record(
    train: Train,
    rig: Rig,
    steps: int,
    dtype: torch.dtype,
    rank: int,
    replay: Replay | None = None,
) -> RankRecord:
    recorder = Recorder(steps, widens=dtype == torch.float64, replay=replay)
    with _same_begin(dtype, rank):
        recorder.start()
        try:
            train(rig)
        finally:
            recorder.stop()
    return recorder.record(rank, _world_size())


@contextmanager
def _same_begin(dtype: torch.dtype, rank: int) -> Iterator[None]:
    """Seed the random numbers, and set the default type within the block."""
    before = torch.get_default_dtype()
    random.seed(rank)
    torch.manual_seed(rank)
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _world_size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def _rank() -> int:
    return dist.get_rank() if _world_size() > 1 else 0


def _gather(record: RankRecord) -> list[RankRecord]:
    if _world_size() == 1:
        return [record]
    gathered: list[Any] = [None] * _world_size()
    dist.all_gather_object(gathered, record)
    return gathered


def _from_first_rank(verdict: Verdict | None) -> Verdict:
    if _world_size() == 1:
        assert verdict is not None
        return verdict
    sent: list[Any] = [verdict]
    dist.broadcast_object_list(sent, src=0)
    found = sent[0]
    assert isinstance(found, Verdict)
    return found
