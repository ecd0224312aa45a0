"""The private names that a package defines itself, and those that its classes inherit."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections import defaultdict
from collections.abc import Iterable
from functools import cache

from python_names import FUNCTIONS, PythonFile, owner_of_namespace, text_of

_SET_ON_SELF = re.compile(r"self\.(\w+)\s*(?::[^=\n]+)?=[^=]|__setattr__\(\s*[\"'](\w+)")

# Objects of these classes are everywhere, so their attributes are never taken for anyrig's own.
_EVERYWHERE = (
    "torch.nn.Module",
    "torch.Tensor",
    "torch.UntypedStorage",
    "torch.optim.Optimizer",
    "torch.autograd.Function",
)


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name.strip("_") != ""


class OwnNames:
    """What the files of a package define."""

    def __init__(self, files: Iterable[PythonFile], package: str) -> None:
        self._anywhere: set[str] = set()
        self._package = f"{package}."
        self._of_class: dict[str, set[str]] = defaultdict(set)
        self._of_module: dict[str, set[str]] = defaultdict(set)
        self._bases: dict[str, set[str]] = defaultdict(set)
        self._subclasses: dict[str, set[str]] = defaultdict(set)
        self._foreign_bases: dict[str, set[str]] = defaultdict(set)
        self._families: dict[str, set[str]] = {}
        for file in files:
            for node in file.nodes:
                self._add(node, file)

    def is_own(self, name: str, holder: ast.expr | None, file: PythonFile) -> bool:
        """Return whether the attribute `name` of `holder` is the package's own."""
        owner = file.classes[holder] if holder is not None else None
        is_self = isinstance(holder, ast.Name) and holder.id in ("self", "cls")
        is_super = isinstance(holder, ast.Call) and ast.unparse(holder) == "super()"
        if owner is not None and (is_self or is_super):
            return name in self._of_family(owner) and not self.is_inherited(name, owner)
        if name in attributes_everywhere():
            return False
        near = {module_of(file, self._package), *file.imported}
        return any(name in self._of_module.get(module, ()) for module in near)

    def is_anywhere(self, name: str) -> bool:
        """Return whether the package defines `name` anywhere."""
        return name in self._anywhere and name not in attributes_everywhere()

    def is_inherited(self, name: str, owner: str) -> bool:
        """Return whether a class of another package, from which `owner` derives, has `name`."""
        paths = (path for each in _reach(owner, self._bases) for path in self._foreign_bases[each])
        return any(name in private_attributes(path) for path in paths)

    def _of_family(self, name: str) -> set[str]:
        """Return what the class `name`, its bases and its subclasses define."""
        if name not in self._families:
            family = _reach(name, self._bases) | _reach(name, self._subclasses)
            self._families[name] = set().union(*(self._of_class[each] for each in family))
        return self._families[name]

    def _add(self, node: ast.AST, file: PythonFile) -> None:
        owner = file.classes[node]
        if isinstance(node, ast.ClassDef):
            self._add_class(node, file)
            self._anywhere.add(node.name)
        elif isinstance(node, ast.arg):
            self._anywhere.add(node.arg)
        elif isinstance(node, FUNCTIONS):
            is_method = isinstance(file.parents[node], ast.ClassDef)
            self._define([node.name], owner if is_method else None, file)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            statement = file.parents[node]
            names = [node.id]
            if node.id == "__slots__":
                texts = (
                    text_of(each) for each in ast.walk(statement) if isinstance(each, ast.expr)
                )
                names = [text for text in texts if text]
            is_field = isinstance(file.parents.get(statement), ast.ClassDef)
            self._define(names, owner if is_field else None, file)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            is_self = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            if is_self:
                self._define([node.attr], owner, file)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            holder = owner_of_namespace(node.func.value)  # self.__dict__.update(_x=1)
            if isinstance(holder, ast.Name) and holder.id == "self":
                names = [keyword.arg for keyword in node.keywords if keyword.arg]
                self._define(names, owner, file)

    def _add_class(self, node: ast.ClassDef, file: PythonFile) -> None:
        for base in node.bases:
            named = base.value if isinstance(base, ast.Subscript) else base
            paths = file.resolve(named)
            foreign = {path for path in paths if not path.startswith(self._package)}
            self._foreign_bases[node.name] |= foreign
            for name in {ast.unparse(named), *(paths - foreign)}:
                last = name.rpartition(".")[2]
                self._bases[node.name].add(last)
                self._subclasses[last].add(node.name)

    def _define(self, names: Iterable[str], owner: str | None, file: PythonFile) -> None:
        private = set(filter(is_private, names))
        self._anywhere |= private
        if owner is not None:
            self._of_class[owner] |= private
            self._of_module[module_of(file, self._package)] |= private


def module_of(file: PythonFile, package: str) -> str:
    parts = file.file.with_suffix("").parts
    start = len(parts) - 1 - parts[::-1].index(package.rstrip("."))
    return ".".join(part for part in parts[start:] if part != "__init__")


@cache
def private_attributes(path: str) -> frozenset[str]:
    """Return the private attributes of the class at `path`, also those that its methods set."""
    module, _, name = path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError):
        return frozenset()
    if not inspect.isclass(found):
        return frozenset()
    names = set(dir(found))
    for each in inspect.getmro(found):
        if each.__module__.partition(".")[0] == "torch":
            try:
                source = inspect.getsource(each)
            except (OSError, TypeError):  # a class of C++
                continue
            names |= {name for pair in _SET_ON_SELF.findall(source) for name in pair}
    return frozenset(filter(is_private, names))


@cache
def attributes_everywhere() -> frozenset[str]:
    return frozenset().union(*map(private_attributes, _EVERYWHERE))


def _reach(start: str, next_of: dict[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    left = [start]
    while left:
        each = left.pop()
        if each not in seen:
            seen.add(each)
            left += next_of.get(each, ())
    return seen
