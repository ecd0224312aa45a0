"""Fused kernels of compiled graphs, as the virtual clock sees them.

Inductor fuses a chain of memory-bound operators into one kernel, which reads the chain's inputs and
writes its results, but no intermediate results::

    mm | add | gelu | native_dropout | mm          three operators, one kernel: the clock is paused
         ^ begin                    ^ end          between the two marks

The graph still runs operator by operator. The marks make its operators take the time of the kernel.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

# Operators that Inductor fuses although they are not computed element by element.
_FUSED = frozenset(
    {
        "aten::_softmax", "aten::_log_softmax", "aten::_softmax_backward_data",
        "aten::_log_softmax_backward_data", "aten::native_layer_norm",
        "aten::native_layer_norm_backward", "aten::native_dropout", "aten::sum", "aten::mean",
        "aten::amax", "aten::amin", "aten::var_mean", "aten::_to_copy", "aten::clone",
    }
)  # fmt: skip


def mark_fused_kernels(module: GraphModule) -> None:
    """Insert marks around the operators of `module` that Inductor would compute in one kernel."""
    for chain in list(_chains(module.graph)):
        found, device = _bytes_of(chain), _gpu_of(chain)
        if found is not None and device is not None:
            _insert_marks(module.graph, chain, (device, *found))
    module.recompile()


def run_with_marks(run: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    """Return a function that calls `run`, and then pauses the clock again if it was paused."""

    def run_and_resume(arguments: list[Any]) -> Any:
        core = _core()
        was_paused = core.pause_clock(False)
        core.pause_clock(was_paused)
        try:
            return run(arguments)
        finally:
            core.pause_clock(was_paused)

    # AOTAutograd frees the inputs while a function with this mark runs.
    run_and_resume._boxed_call = True  # type: ignore[attr-defined]
    return run_and_resume


def begin_fused_kernel() -> bool:
    """Make the operators that follow take no time. Return whether they took none before."""
    was_paused: bool = _core().pause_clock(True)
    return was_paused


def end_fused_kernel(was_paused: bool, device: int, bytes_read: int, bytes_written: int) -> None:
    """Make operators take time as before, and charge one kernel on the GPU `device`."""
    core = _core()
    core.pause_clock(was_paused)
    core.run_fused(device, bytes_read, bytes_written)


def _core() -> Any:
    return sys.modules["anyrig_virtual_extension"]


def _chains(graph: Graph) -> Iterable[list[Node]]:
    """Yield the runs of two or more operators that Inductor fuses, with the views among them."""
    chain: list[Node] = []
    for node in graph.nodes:
        if _is_fused(node) or (chain and _moves_nothing(node)):
            chain.append(node)
            continue
        if sum(map(_is_fused, chain)) > 1:
            yield chain
        chain = []


def _is_fused(node: Node) -> bool:
    operator = node.target
    if node.op != "call_function" or not isinstance(operator, torch._ops.OpOverload):
        return False
    if operator._schema.is_mutable:
        return False
    return torch.Tag.pointwise in operator.tags or operator._schema.name in _FUSED


def _moves_nothing(node: Node) -> bool:
    operator = node.target
    if node.op != "call_function":
        return False
    if isinstance(operator, torch._ops.OpOverload):
        return operator.is_view
    return getattr(operator, "__name__", "") == "getitem"


def _bytes_of(chain: list[Node]) -> tuple[int, int] | None:
    """Return the bytes that a kernel for `chain` reads and writes; None if a size is unknown."""
    inside = set(chain)
    read: dict[Node, int] = {}
    written: dict[Node, int] = {}
    for node in chain:
        if not _is_fused(node):
            continue
        for argument in node.all_input_nodes:
            source = argument
            while source in inside and not _is_fused(source):
                source = source.all_input_nodes[0]
            if source not in inside:
                size = min(_size(argument), _size(source))
                read[source] = max(read.get(source, 0), size)
        if any(user not in inside for user in _users(node, inside)):
            written[node] = _size(node)
    sizes = [*read.values(), *written.values()]
    if any(size < 0 for size in sizes):
        return None
    return sum(read.values()), sum(written.values())


def _users(node: Node, inside: set[Node]) -> Iterable[Node]:
    """Yield the operators that use `node`, directly or through views."""
    for user in node.users:
        if user in inside and not _is_fused(user):
            yield from _users(user, inside)
        else:
            yield user


def _size(node: Node) -> int:
    """Return the bytes of a node's tensors; -1 if a size depends on the inputs."""
    total = 0
    for tensor in _tensors(node):
        count = tensor.numel()
        if not isinstance(count, int):
            return -1
        total += count * tensor.element_size()
    return total


def _tensors(node: Node) -> list[torch.Tensor]:
    value = node.meta.get("val")
    values = value if isinstance(value, tuple | list) else (value,)
    return [tensor for tensor in values if isinstance(tensor, torch.Tensor)]


def _gpu_of(chain: list[Node]) -> int | None:
    """Return the index of the GPU that computes all of `chain`, or None if no single GPU does."""
    devices = {
        tensor.device
        for node in chain
        for tensor in _tensors(node)
        if tensor.device.type != "cpu" or tensor.dim() > 0
    }
    device = devices.pop() if len(devices) == 1 else None
    return None if device is None or device.type != "cuda" else device.index


def _insert_marks(graph: Graph, chain: list[Node], kernel: tuple[int, int, int]) -> None:
    with graph.inserting_before(chain[0]):
        was_paused = graph.call_function(begin_fused_kernel)
    with graph.inserting_after(chain[-1]):
        graph.call_function(end_fused_kernel, (was_paused, *kernel))
