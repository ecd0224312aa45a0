"""Finds the private names of other packages that the files of a package use, by reading them.

A name is private if it, or a module on the way to it, begins with an underscore. In Python, the
uses are attributes, imports, methods that override a private method, and names in strings, as given
to `getattr`, `setattr`, `vars(...)[...]`, `import_module` and the like. Where the file says what an
object is, the use is a full path (`torch._C._cuda_init`); otherwise it is the attribute alone
(`._version`), unless the package defines that attribute itself:

    self._x      own if the class, its bases or its subclasses in the package define it, and no
                 class of another package from which the class derives
    other._x     own if a class in the file, or in a module that the file imports, defines it
    "_x"         own if anything in the package defines it

In C++, the uses are the headers of PyTorch, and names given to `.attr`, `import` and the like. Not
found: members of C++ classes, and operators by name, whose kernels have tests of their own.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from own_names import OwnNames, is_private
from python_names import FUNCTIONS, PythonFile, owner_of_namespace

_DOTTED = re.compile(r"\btorch(?:\.\w+)*\._(?!_)\w+(?:\.\w+)*")
_OPERATOR = re.compile(r"\baten::(_\w+)")
_INCLUDE = re.compile(
    r"#\s*include(?:_next)?\s*[<\"]((?:torch|ATen|c10|caffe2|tensorpipe)/[^>\"]+)[>\"]"
)
_CPP_NAME = re.compile(
    r"(?:\battr|\b\w*[gs]etattr|\bdelattr|\bhasattr|AttrString|ItemString|import\w*|Import\w*)"
    r"\s*\([^\";]*\"([\w.]+)\""
)

# Headers that PyTorch documents for extensions.
_PUBLIC_HEADER = re.compile(
    r"torch/(?!csrc/)(?!headeronly/)[\w/]+\.h|torch/csrc/(stable|inductor/aoti_torch/c)/.*"
    r"|ATen/ATen\.h|ATen/core/Tensor\.h"
    r"|ATen/ops/(?!_)(?!\w+_(native|ops|meta|dispatch|compositeexplicitautograd)\.h)\w+\.h"
)


@dataclass(frozen=True)
class Use:
    """A private name in a line of a file: a full path, or an attribute such as ``._version``."""

    file: str
    line: int
    name: str


def uses_in_package(package: Path) -> Iterator[Use]:
    """Yield the uses in all files of Python and C++ below `package`."""
    files = [PythonFile(path, package) for path in sorted(package.rglob("*.py"))]
    own = OwnNames(files, package.name)
    for file in files:
        place = str(file.file.relative_to(package))
        reader = _Reader(file, own, f"{package.name}.")
        for line, name in reader.uses():
            yield Use(place, line, name)
    for path in sorted(package.rglob("*")):
        if path.suffix in (".cpp", ".cc", ".cu", ".cuh", ".c", ".h", ".hpp", ".inc"):
            for line, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
                for name in names_in_cpp(text):
                    yield Use(str(path.relative_to(package)), line, name)


def names_in_cpp(text: str) -> Iterator[str]:
    yield from headers_in(text)
    for name in _CPP_NAME.findall(text):
        if name.startswith("torch.") and has_private_part(name):
            yield name
        elif is_private(name):
            yield f".{name}"


def headers_in(text: str) -> Iterator[str]:
    yield from (name for name in _INCLUDE.findall(text) if not _PUBLIC_HEADER.fullmatch(name))


def has_private_part(path: str) -> bool:
    return any(is_private(part) for part in path.split("."))


class _Reader:
    def __init__(self, file: PythonFile, own: OwnNames, package: str) -> None:
        self._file = file
        self._own = own
        self._package = package
        # These files give `torch._C` the names of a CUDA build, as keys of a dict.
        self._provides = any(
            isinstance(node, ast.FunctionDef) and node.name == "bindings" for node in file.nodes
        ) or any(path.endswith(".rebinding.bind") for path in file.imported)

    def uses(self) -> Iterator[tuple[int, str]]:
        for node in self._file.nodes:
            line = getattr(node, "lineno", 0)
            for name in self._names(node):
                yield line, name

    def _names(self, node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if has_private_part(alias.name))
        elif isinstance(node, ast.ImportFrom) and not node.level:
            paths = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from filter(has_private_part, paths)
        elif isinstance(node, ast.Attribute):
            yield from self._attribute(node)
        elif isinstance(node, FUNCTIONS) and is_private(node.name):
            owner = self._file.classes[node]
            is_method = isinstance(self._file.parents[node], ast.ClassDef)
            if is_method and owner and self._own.is_inherited(node.name, owner):
                yield f".{node.name}"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from self._string(node, node.value)
        elif isinstance(node, ast.keyword) and node.arg and is_private(node.arg):
            call = self._file.parents[node]
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
                yield from self._named(node.arg, owner_of_namespace(call.func.value))

    def _attribute(self, node: ast.Attribute) -> Iterator[str]:
        foreign = self._foreign(self._file.resolve(node))
        if foreign:
            yield from foreign
        elif is_private(node.attr) and not self._own.is_own(node.attr, node.value, self._file):
            yield f".{node.attr}"

    def _named(self, name: str, holder: ast.expr | None) -> Iterator[str]:
        """Yield the attribute `name` of `holder`, given as text, unless it is the package's own."""
        if holder is None:
            return
        paths = self._foreign({f"{path}.{name}" for path in self._file.resolve(holder)})
        if paths:
            yield from paths
        elif not self._own.is_own(name, holder, self._file):
            yield f".{name}"

    def _foreign(self, paths: set[str]) -> set[str]:
        return {
            path for path in paths if has_private_part(path) and not path.startswith(self._package)
        }

    def _string(self, node: ast.Constant, text: str) -> Iterator[str]:
        parent = self._file.parents[node]
        if isinstance(parent, ast.Expr):
            return  # a docstring
        yield from _DOTTED.findall(text)
        yield from (f"torch.ops.aten.{name}" for name in _OPERATOR.findall(text))
        yield from headers_in(text)
        if not (text.isidentifier() and is_private(text)):
            return
        holder = _holder(node, parent)
        if holder is not None:
            yield from self._named(text, holder)
        elif self._provides and isinstance(parent, (ast.Dict, ast.Tuple)):
            return
        elif not self._own.is_anywhere(text):
            yield f".{text}"


def _holder(node: ast.Constant, parent: ast.AST) -> ast.expr | None:
    """Return `x` if `node` names an attribute of it: ``getattr(x, "_y")``, ``vars(x)["_y"]``."""
    if isinstance(parent, ast.Call):
        if len(parent.args) > 1 and parent.args[1] is node:
            return parent.args[0]
        if isinstance(parent.func, ast.Attribute):
            return owner_of_namespace(parent.func.value)
    if isinstance(parent, ast.Subscript):
        return owner_of_namespace(parent.value)
    if isinstance(parent, ast.Compare):
        return owner_of_namespace(parent.comparators[0])
    return None
