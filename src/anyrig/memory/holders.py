"""What holds memory: variables, graphs, tracebacks of exceptions, and reference cycles."""

from __future__ import annotations

import gc
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from types import FrameType, ModuleType, TracebackType
from typing import Any

from torch import Tensor

from ..observe.census import find_instances, tensors_of_variable
from ..observe.source_line import SourceLine, is_library_code
from ..observe.storages import storages_of
from .block import Block
from .kept_variables import find_kept_variables


@dataclass(frozen=True, eq=False)
class Holder:
    """What holds tensors; the `Holder` itself does not keep them alive.

    Attributes:
        subject: the subject of a sentence, such as ``"losses"``.
        cure: what to write instead, or what to do.
        line: the line of the program to change; None if unknown.
        addresses: the addresses of the memory that the subject holds.
        nodes: the sequence numbers of the graph nodes that the subject keeps alive, and with them
            the memory that their operators allocated.
    """

    subject: str
    cure: str
    line: SourceLine | None = None
    addresses: set[int] = field(default_factory=set)
    nodes: set[int] = field(default_factory=set)

    def holds(self, block: Block) -> bool:
        """Return whether the subject holds a block."""
        is_node = block.origin is not None and block.origin.node in self.nodes
        return is_node or (block.data_address or block.address) in self.addresses

    def add(self, tensors: Iterable[Tensor]) -> None:
        """Add the memory of tensors, and the nodes of their graphs."""
        pending: list[Any] = []
        for tensor in tensors:
            self.addresses.update(storage.data_ptr() for storage in storages_of(tensor))
            pending.append(tensor.grad_fn)
        seen: set[Any] = {None}
        while pending:
            node = pending.pop()
            if node not in seen:
                seen.add(node)
                # Private, as in `recorder`; tests/memory/test_torch_names.py notices a change.
                self.nodes.add(node._sequence_nr())
                pending += [each for each, _ in node.next_functions]


# The search compares each of these tensors with all objects of the program.
_MOST_SEARCHED = 64
_DROP = "drop what is not needed again"
_DETACH = "keep tensor.detach() instead, whose graph ends there"


def find_holders(frame: FrameType | None) -> list[Holder]:
    """Return what holds tensors now, the most specific first.

    Args:
        frame: the innermost running function. Its callers are searched, too.
    """
    return [
        *_hold_in_adding_lines(frame),
        *_hold_in_tracebacks(frame),
        *_hold_in_variables(frame),
    ]


def _hold_in_adding_lines(frame: FrameType | None) -> Iterator[Holder]:
    for variable in find_kept_variables(frame):
        subject, cure = variable.graph_cure if variable.has_graphs else (variable.name, _DROP)
        holder = Holder(subject, cure, variable.line)
        holder.add(variable.tensors)
        yield holder


def _hold_in_tracebacks(frame: FrameType | None) -> Iterator[Holder]:
    """Yield the variables of ended functions that a traceback keeps alive."""
    running = set(_callers(frame))
    holders: dict[tuple[str, str], Holder] = {}
    for traceback in find_instances(TracebackType)[TracebackType]:
        ended = traceback.tb_frame
        if ended in running or is_library_code(ended.f_code):
            continue
        for name, value in list(ended.f_locals.items()):
            function = ended.f_code.co_name
            holder = Holder(
                f"the traceback of an exception, which has {name} of {function},",
                "end the handling of the exception, or clear its __traceback__",
            )
            holder = holders.setdefault((name, function), holder)
            holder.add(tensor for _, tensor in tensors_of_variable(name, value))
    yield from holders.values()


def _hold_in_variables(frame: FrameType | None) -> Iterator[Holder]:
    seen: set[int] = set()
    for caller in _callers(frame):
        if is_library_code(caller.f_code):
            continue
        for variables in (caller.f_locals, caller.f_globals):
            if id(variables) in seen:
                continue
            seen.add(id(variables))
            for name, value in list(variables.items()):
                for text, part in _attributes(name, value):
                    tensors = [tensor for _, tensor in tensors_of_variable(text, part)]
                    if tensors:
                        has_graphs = any(tensor.grad_fn is not None for tensor in tensors)
                        holder = Holder(text, _DETACH if has_graphs else _DROP)
                        holder.add(tensors)
                        yield holder


def _attributes(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield a variable, and the attributes of its object that are not private."""
    if name.startswith("__") or isinstance(value, (ModuleType, type)):
        return
    yield name, value
    own = getattr(value, "__dict__", None)
    if type(own) is dict and not callable(getattr(type(value), "__get__", None)):
        for attribute, part in list(own.items()):
            if not attribute.startswith("_"):
                yield f"{name}.{attribute}", part


def _callers(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def hold_in_objects(addresses: Collection[int]) -> Holder:
    """Return a holder of the memory at `addresses` that Python objects hold.

    A tensor that a graph has saved keeps its Python object, although no other object refers to it.
    """
    tensors = [
        tensor
        for tensor in find_instances(Tensor)[Tensor]
        if any(storage.data_ptr() in addresses for storage in storages_of(tensor))
    ][:_MOST_SEARCHED]
    holder = Holder("an object that no running function names", "find what refers to it")
    for referrer in gc.get_referrers(*tensors):
        if referrer is not tensors and not isinstance(referrer, FrameType):
            found = gc.get_referents(referrer)
            holder.add(each for each in found if issubclass(type(each), Tensor))
    return holder


def collect_cycles() -> list[Holder]:
    """Collect the garbage, and return the reference cycles in it that held tensors."""
    flags, before = gc.get_debug(), len(gc.garbage)
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
    finally:
        gc.set_debug(flags)
    garbage: list[Any] = gc.garbage[before:]
    del gc.garbage[before:]
    return [*_hold_in_cycles(garbage)]


def _hold_in_cycles(garbage: Collection[Any]) -> Iterator[Holder]:
    cure = "break the cycle, for example with weakref.ref, or call gc.collect()"
    holders: dict[str, Holder] = {}
    for each in garbage:
        own = getattr(each, "__dict__", None)
        if type(own) is dict and not isinstance(each, Tensor):
            name = type(each).__name__
            holder = holders.setdefault(name, Holder(f"a reference cycle with a {name}", cure))
            holder.add(tensor for _, tensor in tensors_of_variable("", own))
    yield from holders.values()
    others = Holder("a reference cycle", cure)
    others.add(each for each in garbage if issubclass(type(each), Tensor))
    yield others
