"""Report what fills a device after an out-of-memory error of a program that was not tracked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import FrameType

import torch

from ..observe.census import take_census
from ..observe.source_line import current_line
from .batch_tensors import can_be_halved, find_batch
from .block import Origin
from .device_footprint import describe_moment
from .device_record import DeviceRecord
from .free_memory import FreeMemory
from .half_precision import half_dtype
from .kept_variables import KeptVariable, find_kept_variables
from .kinds import Kind
from .lasting_state import lasting_state
from .moment import Moment
from .out_of_memory import OutOfMemoryReport
from .reason import (
    FEWEST_PASSES,
    Cause,
    Reason,
    blame_container,
    blame_graphs,
    find_reason,
)
from .recording import Recording
from .refusal_message import RefusalMessage, read_refusal
from .remedies import find_remedies
from .timeline import Refusal

# Sizes in the message are rounded to two decimal places.
_ROUNDING = 0.01


def report_untracked(error: BaseException, stacks: Sequence[FrameType]) -> OutOfMemoryReport | None:
    """Return what fills the device now that `error` has ended the running functions.

    The functions' variables still exist. Memory that only C++ code held is freed; the message of
    the error shows how much it was.

    Args:
        error: a `torch.OutOfMemoryError`.
        stacks: the innermost frame of each thread that the error passed through, from
            `list_stacks`.

    Returns:
        The report, with the line that ran out of memory, but without the lines that allocated the
        rest; None if the message of the error is not that of CUDA's caching allocator.
    """
    message = read_refusal(str(error))
    if message is None:
        return None
    device = torch.device("cuda", message.device)
    recording = Recording()
    recording.start(None)
    records = recording.stop(*stacks)
    record = next(each for each in records if each.timeline.device == device)
    return _report(record, message, stacks)


def _report(
    record: DeviceRecord, message: RefusalMessage, stacks: Sequence[FrameType]
) -> OutOfMemoryReport:
    requested, cached = message.requested_bytes, message.cached_bytes
    timeline, total = record.timeline, record.total_bytes
    reserved = timeline.reserved_at(timeline.end)
    free = torch.cuda.mem_get_info(timeline.device)[0]
    line = next((line for frame in stacks if (line := current_line(frame))), None)
    phase = "optimizer" if _ran_optimizer(stacks) else None
    origin = Origin(phase, None, line, False)
    # If less is cached, what fills the rest of the memory is the better reason.
    fragments = cached if cached >= reserved / 3 else 0
    then = replace(timeline, start_allocated_bytes=reserved - fragments, origins={0: origin})
    reason = find_reason(replace(record, timeline=then), Refusal(-1, requested, free), ())
    moment = replace(describe_moment(record, timeline.end), line=line)
    variables = [each for frame in stacks for each in find_kept_variables(frame)]
    if reason.cause in (Cause.OTHER, Cause.ACTIVATIONS):
        reason = (
            _find_kept_graphs(variables, moment)
            or _find_kept_tensors(variables, timeline.device, moment.allocated_bytes)
            or reason
        )
    freed = reserved - cached - moment.allocated_bytes
    census = take_census()
    held = FreeMemory(requested, cached, None, free, reserved)
    return OutOfMemoryReport(
        timeline.device,
        moment,
        reason,
        total,
        held,
        freed if freed > _ROUNDING * reserved else 0,
        find_remedies(
            moment,
            reason,
            census.own_models,
            torch.cuda.device_count(),
            can_halve=can_be_halved(find_batch(record, timeline.end, stacks, census)),
            tensors=census.tensors,
            free=held,
            half=half_dtype(timeline.device),
        ),
        None if total is None else total - free - reserved,
        lasting_state(timeline.device, census.own_models, census.optimizers),
    )


def _find_kept_graphs(variables: Sequence[KeptVariable], moment: Moment) -> Reason | None:
    """Return the variable that keeps the graphs of several calls, if these hold half of the memory.

    The error has freed the graph of the call that it ended.
    """
    held = moment.by_kind().get(Kind.ACTIVATIONS, 0)
    if held < moment.allocated_bytes / 2:
        return None
    for variable in variables:
        lives_longer = not variable.in_model or "." in variable.name
        if variable.is_container and variable.has_graphs and lives_longer:
            calls = variable.count_calls()
            if calls >= FEWEST_PASSES:
                return blame_graphs(variable, held, calls)
    return None


def _find_kept_tensors(
    variables: Sequence[KeptVariable], device: torch.device, allocated: int
) -> Reason | None:
    """Return the variable to which a line adds tensors, if it holds half of the memory."""
    for variable in variables:
        storages = [each.untyped_storage() for each in variable.tensors if each.device == device]
        held = {each.data_ptr(): each.nbytes() for each in storages}
        count = sum(held.values())
        if variable.is_container and len(held) >= FEWEST_PASSES and count >= allocated / 2:
            return blame_container(variable, count, len(held))
    return None


def _ran_optimizer(stacks: Sequence[FrameType]) -> bool:
    for frame in stacks:
        above: FrameType | None = frame
        while above is not None:
            if above.f_globals.get("__name__", "").startswith("torch.optim."):
                return True
            above = above.f_back
    return False
