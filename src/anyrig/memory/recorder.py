"""Record every operator, and label the allocations that it makes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ..observe.source_line import current_line
from .block import Origin
from .forks import count_forks
from .kinds import Kind
from .module_stack import ModuleStack
from .operator_log import OperatorLog
from .tensor_roles import TensorRoles, tensors_in

# Operators that return one of their arguments, but may allocate memory for it.
_RESIZING = ("aten::resize_", "aten::set_", "aten::resize_as_")


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that records every operator of this thread and of its backward passes.

    The threads of the replicas of `anyrig.spread` have the modes of their caller, so this mode
    records their operators too.

    ::

        operator 7: addmm ─┬─ its number labels the entries of CUDA's history   (label)
                           ├─ the addresses of its outputs become roles         (log.roles)
                           └─ its module and line become its origin             (log.origins)

    Each operator of a backward pass belongs to a node of the graph. The node's sequence number
    identifies the operator of the forward pass that created the node, and the backward operator
    gets the module and the line of that operator. Threads number their nodes independently, so the
    device is part of the key.

    Attributes:
        label: labels the following entries of CUDA's history; see `label_cuda_allocations`.
        give_way: ends the recording, so that another one can begin in the same thread; None if
            this recording must not be ended by another one.
    """

    def __init__(
        self,
        log: OperatorLog,
        modules: ModuleStack,
        roles: TensorRoles,
        give_way: Callable[[], None] | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.label: Callable[[int], object] = lambda number: None
        self.give_way = give_way
        self._log = log
        self._modules = modules
        self._roles = roles
        self._origin_of_node: dict[tuple[torch.device | None, int], Origin] = {}
        self._makes_outputs: dict[Any, bool] = {}
        self._thread_state = threading.local()
        self._in_backward = False
        self._backward_lock = threading.Lock()
        self._forks = count_forks()
        self._fork: int | None = self._forks.count  # None after `end`

    @property
    def is_recording(self) -> bool:
        """Whether operators are recorded: before `end`, and not in a forked process."""
        return self._fork == self._forks.count

    @property
    def in_backward(self) -> bool:
        """Whether the last operator belonged to a backward pass."""
        return self._in_backward

    def end(self) -> None:
        """Record nothing from now on, even if the mode cannot be removed yet."""
        self._fork = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if not self.is_recording:  # a forked process must not call CUDA
            return func(*args, **(kwargs or {}))
        number = self._log.begin_operator()
        origin = self._origin(number, args, _device_of(args, kwargs))
        self._log.origins[number] = origin
        self.label(number)
        try:
            output = func(*args, **(kwargs or {}))
        except torch.OutOfMemoryError:
            self._log.refused = func.name()
            raise
        makes_outputs = self._makes_outputs.get(func)
        if makes_outputs is None:
            makes_outputs = self._makes_outputs[func] = _makes_outputs(func)
        if makes_outputs:
            kind = Kind.BATCH if origin.phase == "outside" and _copies(func, args, output) else None
            self._roles.note(output, kind, operator=number)
        return output

    def begin_step(self) -> None:
        """Record that an optimizer step begins in this thread."""
        self._thread_state.in_step = True

    def end_step(self) -> None:
        """Record that the optimizer step has ended, and drop the origins of graph nodes.

        No later backward pass is expected to use a graph from before the step.
        """
        self._thread_state.in_step = False
        self._log.step_ends.append(self._log.count)
        self._origin_of_node.clear()

    def note_batch(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        """Record the inputs of an outermost module as the batch."""
        for tensor in tensors_in(inputs):
            if not tensor.requires_grad:
                self._roles.note(tensor, Kind.BATCH)

    def finish(self) -> None:
        """Record the end of a backward pass that no operator has followed."""
        self._end_backward(self._log.count + 1)

    def _origin(self, number: int, args: tuple[Any, ...], device: torch.device | None) -> Origin:
        running = self._modules.running()
        module = running.names[-1] if running.names else None
        is_recorded = torch.is_grad_enabled()
        # Private: PyTorch has no public API for the backward pass and the node that are running.
        # tests/memory/test_torch_names.py fails if the names change.
        if torch._C._current_graph_task_id() != -1:
            self._begin_backward(number)
            node = None if is_recorded else torch._C._current_autograd_node()
            if node is not None:
                known = self._origin_of_node.get((device, node._sequence_nr()))
                if known is not None:
                    return Origin("backward", known.module, known.line, False, known.call)
            return Origin("backward", module, current_line(), is_recorded)
        self._end_backward(number)
        line = current_line() or running.line
        call = running.call or self._modules.calls
        if getattr(self._thread_state, "in_step", False):
            return Origin("optimizer", module, line, False, call)
        phase = "outside" if module is None else "forward"
        if not (is_recorded and _requires_grad(args)):
            return Origin(phase, module, line, False, call, running.is_training)
        # The node of this operator is the last node that this thread created.
        node_number = torch._C._autograd._get_sequence_nr() - 1
        origin = Origin(phase, module, line, True, call, running.is_training, node_number)
        self._origin_of_node.setdefault((device, node_number), origin)
        return origin

    def _begin_backward(self, number: int) -> None:
        if not self._in_backward:
            with self._backward_lock:
                if not self._in_backward:
                    self._in_backward = True
                    self._log.backward_starts.append(number)

    def _end_backward(self, number: int) -> None:
        if self._in_backward:
            with self._backward_lock:
                if self._in_backward:
                    self._in_backward = False
                    self._log.backward_ends.append(number)


def _makes_outputs(func: Any) -> bool:
    """Return whether an operator may return tensors with memory of their own."""
    schema = getattr(func, "_schema", None)
    if schema is None or schema.name in _RESIZING:
        return True
    return any(argument.is_out for argument in schema.arguments) or any(
        result.alias_info is None for result in schema.returns
    )


def _device_of(args: tuple[Any, ...], kwargs: Any) -> torch.device | None:
    """Return the device on which an operator allocates; None if its arguments do not show it."""
    device = kwargs.get("device") if kwargs else None
    if isinstance(device, torch.device):
        return device
    for arg in args:
        if isinstance(arg, Tensor):
            return arg.device
        if isinstance(arg, list | tuple) and arg and isinstance(arg[0], Tensor):
            return arg[0].device
    return None


def _copies(func: Any, args: tuple[Any, ...], output: Any) -> bool:
    """Return whether an operator copied a tensor from another device."""
    source = args[0] if args else None
    return (
        isinstance(source, Tensor)
        and isinstance(output, Tensor)
        and not source.requires_grad
        and source.device != output.device
    )


def _requires_grad(args: tuple[Any, ...]) -> bool:
    return any(
        arg.requires_grad
        if isinstance(arg, Tensor)
        else isinstance(arg, list | tuple) and any(t.requires_grad for t in tensors_in(arg))
        for arg in args
    )
