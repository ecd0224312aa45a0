"""A recording of the memory of all devices that this process uses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from types import FrameType
from typing import Any

import torch
from torch.optim import Optimizer

# Private: PyTorch has no public API that lists the active modes.
# tests/memory/test_torch_names.py fails if the name changes.
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from ..errors import MemoryTrackingError
from ..observe.events import Events
from ..observe.hooks import Observer
from ..private_names import refuse_missing
from .block import Block
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

# A recording that keeps no history is condensed after this many operators: about 100 MB of entries.
_MOST_OPERATORS = 50_000


class Recording:
    """A recording of the allocations of every operator, from `start` to `stop`, on all devices.

    ::

        census at the start ─┐
        operators            ├─ roles of addresses ─┐
        optimizer hooks      │                      ├─ blocks with kind, module, name and line
        census at the end  ──┘      CUDA's history ─┤
                                    CPU storages   ─┘

    Without `keeps_history`, the recording forgets freed blocks from time to time, at the end of an
    optimizer step or before a model is called, so that it can last for a whole training run.
    """

    def __init__(self, *, keeps_history: bool = True, gives_way: bool = False) -> None:
        """Make a recording.

        Args:
            keeps_history: keep the history of the whole recording.
            gives_way: let another recording in the same thread end this one. Otherwise the other
                recording is refused.
        """
        self._keeps_history = keeps_history
        self._log = OperatorLog()
        self._host = HostHistory()
        self._modules = ModuleStack(self._begin_call)
        self._roles = TensorRoles(self._log, self._modules.names, self._host)
        self._cuda: CudaHistory | None = None
        give_way = self._give_way if gives_way else None
        self._recorder = Recorder(self._log, self._modules, self._roles, give_way)
        self._observer = Observer(Events(step_begun=self._begin_step, step_ended=self._end_step))
        self.snapshot: Snapshot | None = None  # from the last `read`, for PyTorch's viewer
        self._known: dict[torch.device, Mapping[int, Block]] = {}

    def start(self, frame: FrameType | None) -> None:
        """Begin to record. The names of variables come from `frame` and its callers."""
        self._log.graph_memory = self._roles.note_program((frame,)).graph_memory
        self._host.restart()
        if torch.cuda.is_available():
            torch.cuda.init()  # type: ignore[no-untyped-call]
            self._begin_cuda()
        self._begin()

    def start_before_cuda(self) -> None:
        """Begin to record before the program has tensors, and without initializing CUDA.

        A program may still choose its devices, and start processes by forking.
        """

        def begin_cuda() -> None:
            # An allocator such as cudaMallocAsync records no history. The program must run anyway.
            with suppress(RuntimeError):
                self._begin_cuda()

        # Private, as in `devices.cuda_start`: there is no public hook.
        torch.cuda._lazy_call(begin_cuda)  # type: ignore[no-untyped-call]
        self._begin()

    def _begin_cuda(self) -> None:
        if self._recorder.is_recording:
            self._cuda = begin_cuda_history()
            self._recorder.label = label_cuda_allocations()

    def _begin(self) -> None:
        refuse_missing("memory")
        self._modules.start()
        self._observer.start()
        self._recorder.__enter__()  # type: ignore[no-untyped-call]

    @property
    def is_recording(self) -> bool:
        """Whether this process is still being recorded, including CUDA's allocations."""
        return self._recorder.is_recording and self._cuda is not None

    def stop(self, *frames: FrameType | None) -> list[DeviceRecord]:
        """End the recording, and return the record of each device that this process has used."""
        self._recorder.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        return self.finish(*frames)

    def finish(self, *frames: FrameType | None) -> list[DeviceRecord]:
        """Do the same as `stop`, but leave the dispatch mode in place, where it does nothing.

        The mode cannot be removed while the program has other modes above it.
        """
        self._recorder.end()
        try:
            return self.read(*frames)
        finally:
            self._end()

    def read(self, *frames: FrameType | None) -> list[DeviceRecord]:
        """Return the record so far of each device that this process has used.

        The names of variables come from `frames` and their callers.
        """
        self._recorder.finish()
        self._roles.note_program(frames)
        return [self._describe(timeline) for timeline in self._timelines()]

    def _end(self) -> None:
        self._observer.stop()
        self._modules.stop()
        if self._cuda is not None:
            self._cuda.end()

    def _give_way(self) -> None:
        self._recorder.end()
        self._end()
        self._cuda = None
        self._log.clear()
        self._host.restart()

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
            if self._keeps_history:
                self.snapshot = annotate_snapshot(snapshot, self._cuda, self._log.origins)
            for index in range(torch.cuda.device_count()):
                # Private: other functions would create a CUDA context on an unused device.
                # tests/memory/test_torch_names.py fails if the name changes.
                if not torch._C._cuda_hasPrimaryContext(index):  # type: ignore[attr-defined]
                    continue
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

    def _begin_call(self, module: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
        if not self._recorder.is_recording:
            return
        if not self._recorder.in_backward:
            self._condense(_MOST_OPERATORS)
        self._roles.note_model(module)
        self._recorder.note_batch(module, inputs)

    def _begin_step(self, optimizer: Optimizer) -> None:
        self._roles.note_optimizer(optimizer)
        self._recorder.begin_step()

    def _end_step(self, optimizer: Optimizer) -> None:
        self._recorder.end_step()
        self._roles.note_optimizer(optimizer)
        self._condense(_MOST_OPERATORS // 2)

    def _condense(self, most_operators: int) -> None:
        """Forget freed blocks if there are more operators than `most_operators`.

        Blocks that are allocated keep their roles and origins.
        """
        if not self._keeps_history and len(self._log.origins) > most_operators:
            self.restart(self.read())


def refuse_two_recordings() -> None:
    """End a recording of this thread that gives way, such as that of ``--watch memory``.

    Raises:
        MemoryTrackingError: a recording that does not give way is active.
    """
    for mode in _get_current_dispatch_mode_stack():
        if not isinstance(mode, Recorder) or not mode.is_recording:
            continue
        if mode.give_way is None:
            raise MemoryTrackingError(
                "memory is already being tracked; end the outer track() or explain_oom() first"
            )
        mode.give_way()
