"""Find variables that collect tensors in a loop, and the lines that add to them."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from types import FrameType
from typing import Any

from torch import Tensor

from ..observe.census import tensors_of_variable
from ..observe.source_line import SourceLine, is_library_code
from .module_calls import module_calls

_MOST_NODES = 1_000_000
_ADDING_METHODS = ("append", "extend", "insert", "add", "update", "setdefault")


@dataclass(frozen=True)
class KeptVariable:
    """A variable, or an attribute of one, to which a line of its function adds tensors.

    Attributes:
        name: the variable's name, such as ``losses`` or ``self.losses``.
        line: the line, such as ``losses.append(loss)``, ``total += loss`` or ``h = cell(x, h)``.
        is_container: whether the variable is a container of tensors rather than a tensor.
        in_model: whether its function was called by a module, so that a local variable lives no
            longer than the call.
    """

    name: str
    line: SourceLine
    is_container: bool
    tensors: tuple[Tensor, ...]
    in_model: bool = False

    @property
    def has_graphs(self) -> bool:
        """Whether one of its tensors keeps a graph for a backward pass."""
        return any(tensor.grad_fn is not None for tensor in self.tensors)

    @property
    def is_scalar(self) -> bool:
        """Whether all of its tensors have a single element, as losses do."""
        return all(tensor.numel() == 1 for tensor in self.tensors)

    def count_calls(self) -> int:
        """Return an upper bound, at least 1, of how many calls of a model have graphs that it
        keeps.

        A container has a tensor for each call. If a tensor extends its own graph in each call, the
        graph has one node of the type of its last node for each call.
        """
        with_graph = [tensor for tensor in self.tensors if tensor.grad_fn is not None]
        if self.is_container or not with_graph:
            return max(1, len(with_graph))
        last = with_graph[0].grad_fn
        return sum(type(node) is type(last) for node in _nodes_of(last))

    @property
    def graph_cure(self) -> tuple[str, str]:
        """What keeps graphs, and what to write instead: subject and cure of a sentence."""
        if self.is_scalar and self.is_container:
            return self.name, "append loss.item() or loss.detach() instead"
        if self.is_scalar:
            cure = "add loss.item() or loss.detach() instead"
            return f"{self.name} is a tensor with a graph and", cure
        if self.is_container:
            cure = "append output.detach(), or output.detach().cpu() if the device does not need it"
            return self.name, cure
        cure = f"call {self.name}.detach_() where the gradient may end"
        return f"{self.name} carries its graph from pass to pass and", cure


def find_kept_variables(frame: FrameType | None) -> Iterator[KeptVariable]:
    """Yield the variables of running functions to which a line of the same function adds tensors.

    Args:
        frame: the innermost function. Its callers are searched too.
    """
    last_call = max(module_calls(frame), key=lambda each: each[0], default=(-1, None))[0]
    depth = 0
    while frame is not None:
        if not is_library_code(frame.f_code):
            yield from _find_in_function(frame, in_model=depth < last_call)
        frame, depth = frame.f_back, depth + 1


def _find_in_function(frame: FrameType, *, in_model: bool) -> Iterator[KeptVariable]:
    code = frame.f_code
    lines = _adding_lines(code.co_filename, code.co_firstlineno, code.co_name)
    for name, number in lines.items():
        value = _find_value(name, frame)
        tensors = tuple(tensor for _, tensor in tensors_of_variable(name, value))
        if tensors:
            line = SourceLine(code.co_filename, number, code.co_name)
            yield KeptVariable(name, line, not isinstance(value, Tensor), tensors, in_model)


def _nodes_of(last: Any) -> Iterator[Any]:
    """Yield the nodes of the graph that ends with a node."""
    seen, waiting = {last}, [last]
    while waiting and len(seen) < _MOST_NODES:
        node = waiting.pop()
        yield node
        for before, _ in node.next_functions:
            if before is not None and before not in seen:
                seen.add(before)
                waiting.append(before)


def _find_value(name: str, frame: FrameType) -> Any:
    """Return the value of a variable, or of attributes such as ``self.losses``; None if unknown.

    Only the objects' own attributes are read, so that no code of the program runs.
    """
    variable, *attributes = name.split(".")
    value = frame.f_locals.get(variable, frame.f_globals.get(variable))
    for attribute in attributes:
        own = getattr(value, "__dict__", {})
        value = own.get(attribute, own.get("_buffers", {}).get(attribute))  # buffers of a module
    return value


@cache
def _adding_lines(file: str, first: int, function: str) -> dict[str, int]:
    """Return the last line that adds to each variable of a function, by the variable's name."""
    try:
        tree: ast.AST = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:  # such as a notebook's cell with magic commands
        return {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == function:
            starts = [node.lineno, *(decorator.lineno for decorator in node.decorator_list)]
            if first in starts:
                tree = node
                break
    found = sorted((number, name) for node in ast.walk(tree) for name, number in _added_to(node))
    return {name: number for number, name in found}


def _added_to(node: ast.AST) -> Iterator[tuple[str, int]]:
    if isinstance(node, ast.AugAssign):
        yield from ((name, node.lineno) for name in _names(node.target))
    elif isinstance(node, ast.Assign):
        used = set(_names(node.value))
        targets = {name for target in node.targets for name in _names(target)}
        yield from ((name, node.lineno) for name in sorted(targets & used))
    elif isinstance(node, ast.Call):
        method = node.func
        if isinstance(method, ast.Attribute) and method.attr in _ADDING_METHODS:
            yield from ((name, node.lineno) for name in _names(method.value))


def _names(node: ast.AST) -> Iterator[str]:
    """Yield the variables in an expression, and attributes of variables such as ``self.losses``."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        for part in (node.func.value, *node.args, *node.keywords):  # without the method
            yield from _names(part)
        return
    base = node
    while isinstance(base, ast.Attribute):
        base = base.value
    if isinstance(base, ast.Name):
        yield ast.unparse(node)
    else:
        for child in ast.iter_child_nodes(node):
            yield from _names(child)
