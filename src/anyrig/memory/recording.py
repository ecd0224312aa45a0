"""A recording of the memory of all devices that this process uses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

# Private: PyTorch has no public API that lists the active modes.
# tests/memory/test_torch_names.py fails if the name changes.
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.hooks import RemovableHandle

from ..errors import MemoryTrackingError
from .block import Block
from .census import take_census, variables_of
from .classify import Kinds
from .cuda_history import (
    CudaHistory,
    Snapshot,
    begin_cuda_history,
    events_of,
    label_cuda_allocations,
)
from .device_record import DeviceRecord
from .host_history import HostHistory
from .module_stack import ModuleStack
from .operator_log import OperatorLog
from .recorder import Recorder
from .tensor_roles import TensorRoles
from .timeline import Timeline, read_timeline
from .viewer import annotate_snapshot

_CPU = torch.device("cpu")


class Recording:
    """A recording of the allocations of every operator, from `start` to `stop`, on all devices.

    ::

        census at the start ─┐
        operators            ├─ roles of addresses ─┐
        optimizer hooks      │                      ├─ blocks with kind, module, name and line
        census at the end  ──┘      CUDA's history ─┤
                                    CPU storages   ─┘
    """

    def __init__(self) -> None:
        self._log = OperatorLog()
        self._host = HostHistory()
        self._modules = ModuleStack(self._begin_call)
        self._roles = TensorRoles(self._log, self._modules, self._host)
        self._cuda: CudaHistory | None = None
        self._label = label_cuda_allocations()
        self._recorder = Recorder(self._log, self._modules, self._roles, self._label)
        self._handles: list[RemovableHandle] = []
        self.snapshot: Snapshot | None = None  # from the last `read`, for PyTorch's viewer
        self._known: dict[torch.device, Mapping[int, Block]] = {}

    def start(self, frame: FrameType | None) -> None:
        """Begin to record. The names of variables come from `frame` and its callers."""
        self._log.graph_devices = self._note_all(frame)
        self._host.restart()
        self._cuda = begin_cuda_history()
        self._modules.start()
        self._handles = [
            register_optimizer_step_pre_hook(self._begin_step),
            register_optimizer_step_post_hook(self._end_step),
        ]
        self._recorder.__enter__()  # type: ignore[no-untyped-call]

    def stop(self, frame: FrameType | None) -> list[DeviceRecord]:
        """End the recording, and return the record of each device that held memory."""
        self._recorder.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        try:
            return self.read(frame)
        finally:
            for handle in self._handles:
                handle.remove()
            self._modules.stop()
            if self._cuda is not None:
                self._cuda.end()

    def read(self, frame: FrameType | None) -> list[DeviceRecord]:
        """Return the record until now of each device that held memory."""
        self._recorder.finish()
        self._note_all(frame)
        records = [self._describe(timeline) for timeline in self._timelines()]
        return [record for record in records if record.timeline.blocks]

    def restart(self, records: list[DeviceRecord]) -> None:
        """Begin a new recording, which keeps the roles of the blocks that are still allocated.

        `records` are the result of `read`.
        """
        self._known = {record.timeline.device: record.kinds.blocks_at_end() for record in records}
        self._log.clear()
        self._host.restart()
        if self._cuda is not None:
            self._cuda = self._cuda.restart()

    def _timelines(self) -> Iterator[Timeline]:
        if self._cuda is not None:
            snapshot = self._cuda.read()
            self.snapshot = annotate_snapshot(snapshot, self._cuda, self._log.origins)
            for index in range(torch.cuda.device_count()):
                device = torch.device("cuda", index)
                before = [part for part in self._cuda.before if part["device"] == index]
                events = events_of(self._cuda, snapshot, index)
                yield read_timeline(device, before, events, self._log, self._known_on(device))
        yield read_timeline(
            _CPU, self._host.before, self._host.events, self._log, self._known_on(_CPU)
        )

    def _known_on(self, device: torch.device) -> Mapping[int, Block]:
        return self._known.get(device, {})

    def _describe(self, timeline: Timeline) -> DeviceRecord:
        outside = total = None
        if timeline.device.type == "cuda":
            free, total = torch.cuda.mem_get_info(timeline.device)
            outside = total - free - torch.cuda.memory_reserved(timeline.device)
        kinds = Kinds(timeline, self._log)
        return DeviceRecord(timeline, kinds, outside, total, self._log.refused)

    def _note_all(self, frame: FrameType | None) -> frozenset[torch.device]:
        """Record the roles of all tensors; return the devices of tensors with graphs."""
        census = take_census()
        self._roles.note(list(census.tensors), None)
        self._roles.note_variables(variables_of(frame))
        for model in census.models:
            self._roles.note_model(model)
        for optimizer in census.optimizers:
            self._roles.note_optimizer(optimizer)
        return census.graph_devices

    def _begin_call(self, module: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
        self._roles.note_model(module)
        self._recorder.note_batch(module, inputs)

    def _begin_step(self, optimizer: Optimizer, *_: Any) -> None:
        self._roles.note_optimizer(optimizer)
        self._recorder.begin_step()

    def _end_step(self, optimizer: Optimizer, *_: Any) -> None:
        self._recorder.end_step()
        self._roles.note_optimizer(optimizer)


def refuse_two_recordings() -> None:
    """Check that no recording is active in this thread.

    Raises:
        MemoryTrackingError: a recording is active.
    """
    if any(isinstance(mode, Recorder) for mode in _get_current_dispatch_mode_stack()):
        raise MemoryTrackingError(
            "memory is already being tracked; end the outer track() or explain_oom() first"
        )
