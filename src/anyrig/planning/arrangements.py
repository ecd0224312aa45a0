"""The arrangements of a rig's GPUs among which `anyrig plan` chooses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..virtual.rig import VirtualRig
from .arrangement import PIPELINE, REPLICAS, SHARDS, Arrangement, Value

_MICRO_BATCHES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)
# zero-bubble-few is for ranks on CPUs, where Python is the limit, and like zero-bubble-h2 on GPUs.
_SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero-bubble", "zero-bubble-h2", "zero-bubble-v")
_CHECKPOINTS = ("never", "except_last", "always")


def arrangements_on(
    rig: VirtualRig,
    *,
    precision: str | None = None,
    micro_batches: Sequence[int] = _MICRO_BATCHES,
) -> list[Arrangement]:
    """Return every arrangement that uses all GPUs of a rig, the simplest first.

    ::

        one process      Replicas, Pipeline             on one node
        a rank per GPU   Replicas, Shards, Pipeline     Shards and Pipeline also in sets of ranks

    On unequal GPUs there is one set, as sets of neighbouring ranks would differ. On one node, a
    single pipeline is left to one process: it takes as long by the clock, which counts no Python.

    Args:
        rig: the rig.
        precision: the dtype of autocast; None for the program's own.
        micro_batches: the numbers of micro-batches of pipelines.
    """
    found = _arrangements(rig, micro_batches)
    return [replace(one, precision=precision) for one in found]


def _arrangements(rig: VirtualRig, micro_batches: Sequence[int]) -> list[Arrangement]:
    gpus = len(rig.devices)
    found = [Arrangement(REPLICAS, 1)] if rig.node_count == 1 else []
    if gpus == 1:
        return found
    is_equal = len({device.key for device in rig.devices}) == 1
    sets = [count for count in range(1, gpus) if gpus % count == 0] if is_equal else [1]
    found.append(Arrangement(REPLICAS, gpus))
    for count in sets:
        for keeps in (False, True):  # gathered parameters, until their backward pass
            values = _given(replicas=count, reshard_after_forward=None if not keeps else False)
            found.append(Arrangement(SHARDS, gpus, values))
    if rig.node_count == 1:
        found += [Arrangement(PIPELINE, 1, values) for values in _pipelines(1, micro_batches)]
    for count in sets:
        if count > 1 or rig.node_count > 1:
            pipelines = _pipelines(count, micro_batches)
            found += [Arrangement(PIPELINE, gpus, values) for values in pipelines]
    return found


def _pipelines(
    replicas: int, micro_batches: Sequence[int]
) -> Iterator[tuple[tuple[str, Value], ...]]:
    for schedule in _SCHEDULES:
        for number in micro_batches:
            for checkpoint in _CHECKPOINTS:
                if checkpoint == "except_last" and number == 1:
                    continue  # as "never"
                yield _given(
                    micro_batches=number,
                    schedule=schedule,
                    checkpoint=None if checkpoint == "never" else checkpoint,
                    replicas=replicas,
                )


def _given(**values: Value | None) -> tuple[tuple[str, Value], ...]:
    """Return attributes of a plan without those that have their defaults."""
    return tuple(
        (name, value)
        for name, value in values.items()
        if value is not None and (name, value) != ("replicas", 1)
    )
