"""Report an out-of-memory error while the refused request still waits: nothing is freed yet.

::

    blocks, each with the line that made it ─┐
    tensors, models, optimizers, variables  ─┼─ record of one device ── report
    the request                             ─┘

Nothing is recorded before, so what autograd keeps is inferred: gradients were enabled, and the
memory belongs to a tensor with a graph, or to no variable of the running functions.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from types import FrameType

import torch

from ..observe.census import Census
from ..observe.names import ModuleNames
from ..observe.source_line import SourceLine
from ..observe.storages import storages_of
from .batch_tensors import copies_batch
from .block import Block, Origin
from .classify import Kinds
from .device_record import DeviceRecord
from .event import Event
from .host_history import HostHistory
from .kept_variables import KeptVariable, find_kept_variables
from .kinds import Kind
from .module_calls import outermost_call
from .operator_log import OperatorLog
from .out_of_memory import OutOfMemoryReport, make_report
from .reason import FEWEST_PASSES
from .tensor_roles import TensorRoles
from .timeline import Timeline, read_timeline

_MOST_OF_BYTES = 0.9


@dataclass(frozen=True)
class MadeBlock:
    """A block that is allocated, and where the program made it.

    Attributes:
        address: the block's address.
        line: the line of the program; None if unknown.
        module: the name of the innermost module that ran; None outside modules.
        backward_passes: how many backward passes had begun.
        in_grad_mode: whether gradients were enabled.
        is_workspace: whether a library made it for itself.
    """

    address: int
    line: SourceLine | None
    module: str | None
    backward_passes: int
    in_grad_mode: bool
    is_workspace: bool


@dataclass(frozen=True)
class RefusedRequest:
    """A request for which a device has no memory.

    Attributes:
        requested_bytes: the size of the request, rounded up to whole blocks.
        free_bytes: the device's free memory, outside the caching allocator.
        line: the line of the program that made the request; None if unknown.
        module: the name of the innermost module that runs; None outside modules.
        operator: the name of the operator; empty for one that only allocates.
    """

    device: torch.device
    requested_bytes: int
    free_bytes: int
    line: SourceLine | None
    module: str | None
    operator: str


def report_request(
    request: RefusedRequest, made: Iterable[MadeBlock], stacks: Sequence[FrameType]
) -> OutOfMemoryReport:
    """Return a report of a request before the error frees anything.

    Args:
        request: the request.
        made: the blocks that are allocated on its device.
        stacks: the innermost frame of each thread of the program.
    """
    log, by_address = OperatorLog(), {each.address: each for each in made}
    roles = TensorRoles(log, ModuleNames(), HostHistory())
    census = roles.note_program(stacks)
    log.graph_memory = census.graph_memory
    log.count = 1
    log.origins[1] = running = _origin_of(request, stacks)
    timeline = _read_device(request, log, by_address)
    _classify(timeline.blocks, by_address, census, running, request.device)
    _number_calls([each for each in timeline.blocks if each.origin and each.origin.is_recorded])
    free, total = torch.cuda.mem_get_info(request.device)
    outside = total - free - torch.cuda.memory_reserved(request.device)
    refused = request.operator
    if not refused and running.phase == "outside" and copies_batch(request.line):
        refused = "aten::_to_copy"
    record = DeviceRecord(timeline, Kinds(timeline, log), outside, total, refused)
    variables = _variables_to_blame(timeline, running, stacks)
    return make_report(record, variables, stacks, census)


def _origin_of(request: RefusedRequest, stacks: Sequence[FrameType]) -> Origin:
    """Return what the program does when it makes the request."""
    # Private, as in `Recorder`.
    if torch._C._current_graph_task_id() != -1:
        phase = "backward"
    elif any(map(_in_optimizer, stacks)):
        phase = "optimizer"
    else:
        phase = "outside" if request.module is None else "forward"
    calls = [call for frame in stacks if (call := outermost_call(frame)) is not None]
    is_training = calls[0][0].training if calls else None
    recorded = torch.is_grad_enabled() and phase == "forward"
    return Origin(phase, request.module, request.line, recorded, is_training=is_training)


def _in_optimizer(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("torch.optim."):
            return True
        frame = frame.f_back
    return False


def _read_device(request: RefusedRequest, log: OperatorLog, made: dict[int, MadeBlock]) -> Timeline:
    segments = [
        segment
        for segment in torch.cuda.memory._snapshot()["segments"]
        if segment["device"] == request.device.index
    ]
    known = {}
    for address, each in made.items():
        phase = "outside" if each.module is None else "forward"
        known[address] = Block(address, 0, None, -1)
        known[address].origin = Origin(phase, each.module, each.line, False)
        known[address].has_tensor = not each.is_workspace
    event = Event("refuse", request.free_bytes, request.requested_bytes, 1, time.time())
    return read_timeline(request.device, segments, [event], log, known)


def _classify(
    blocks: Iterable[Block],
    made: dict[int, MadeBlock],
    census: Census,
    running: Origin,
    device: torch.device,
) -> None:
    """Give each block without a role its kind, and note which autograd keeps."""
    with_graph = {address for place, address in census.graph_memory if place == device}
    latest = max((each.backward_passes for each in made.values()), default=0)
    # During a backward pass, the current step's forward pass came before it.
    current = latest - 1 if running.phase == "backward" else latest
    for block in blocks:
        each = made.get(block.address)
        if each is None or block.origin is None:
            continue
        if each.is_workspace:
            block.kind = Kind.WORKSPACES
            continue
        has_graph = (block.data_address or block.address) in with_graph
        is_batch = each.module is None and copies_batch(each.line)
        is_kept = block.name is None and bool(with_graph) and not is_batch
        is_recorded = each.in_grad_mode and (has_graph or is_kept)
        is_current = each.backward_passes >= current
        # The backward pass of such a line runs at the same line.
        is_batch = is_batch and (each.in_grad_mode or each.backward_passes <= current)
        phase = "optimizer" if _is_of_step(each, running) else block.origin.phase
        block.origin = Origin(
            phase,
            block.origin.module,
            block.origin.line,
            is_recorded and block.kind is None,
        )
        if block.kind is None:
            if is_recorded:
                block.kind = Kind.ACTIVATIONS if is_current else Kind.OTHER
            elif is_batch:
                block.kind = Kind.BATCH
            else:
                block.kind = Kind.TEMPORARIES if block.name is None else Kind.OTHER


def _number_calls(blocks: Sequence[Block]) -> None:
    """Give each block that autograd keeps the number of the model's call to which it belongs.

    A call makes a block of each size at each line of each module. Lines that ran once, and lines
    that make several such blocks in a call, are outweighed by the others.
    """
    places: defaultdict[tuple[Origin | None, int], list[Block]] = defaultdict(list)
    for block in blocks:
        places[block.origin, block.bytes].append(block)
    calls, held_bytes = 1, 0
    total_bytes = sum(block.bytes for block in blocks)
    for alike in sorted(places.values(), key=len, reverse=True):
        calls = len(alike)
        held_bytes += calls * alike[0].bytes
        if held_bytes >= _MOST_OF_BYTES * total_bytes:
            break
    for alike in places.values():
        for index, block in enumerate(alike):
            assert block.origin is not None
            block.origin = replace(block.origin, call=index % calls)


def _is_of_step(made: MadeBlock, running: Origin) -> bool:
    return running.phase == "optimizer" and made.line == running.line


def _variables_to_blame(
    timeline: Timeline, running: Origin, stacks: Sequence[FrameType]
) -> list[KeptVariable]:
    """Return the variables to which a line adds tensors, without those of the running call alone.

    A variable of the training loop has a graph after every step; it is older than what the running
    call keeps.
    """
    current = {
        block.data_address or block.address
        for block in timeline.blocks
        if block.kind is Kind.ACTIVATIONS
    }
    variables = [each for frame in stacks for each in find_kept_variables(frame)]
    return [each for each in variables if _may_hold_calls(each, current, running)]


def _may_hold_calls(variable: KeptVariable, current: set[int], running: Origin) -> bool:
    with_graph = [each for each in variable.tensors if each.grad_fn is not None]
    if not with_graph:
        return True  # the lines decide for tensors without graphs
    if variable.in_model and "." not in variable.name:
        return False
    if variable.is_container:
        return len(with_graph) >= FEWEST_PASSES
    addresses = {storage.data_ptr() for each in with_graph for storage in storages_of(each)}
    return running.phase != "backward" and not addresses.isdisjoint(current)
