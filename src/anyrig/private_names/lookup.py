"""Look up names in the installed PyTorch in milliseconds: no module of PyTorch is imported.

A name in a module that is not imported yet is looked for in the text of its file, as are
attributes that the methods of a class, or other functions, set.
"""

from __future__ import annotations

import re
import sys
from functools import lru_cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

_MISSING = object()


def has_name(name: str) -> bool:
    """Return whether PyTorch has the module or attribute at the path `name`."""
    module = name
    rest: list[str] = []
    while module not in sys.modules and "." in module:
        module, _, before = module.rpartition(".")
        rest.insert(0, before)
    found: Any = sys.modules.get(module)
    for position, part in enumerate(rest):
        inner = _attribute(found, part)
        if inner is _MISSING:
            return _is_declared(found, rest[position:])
        found = inner
    return module in sys.modules


def has_header(header: str) -> bool:
    """Return whether PyTorch has the file `header` among its headers."""
    return _header(header).is_file()


def header_declares(header: str, name: str) -> bool:
    """Return whether `header` has the text `name`."""
    return has_header(header) and name in _text(_header(header))


def _attribute(found: Any, part: str) -> Any:
    # `getattr` on a module could import another: torch imports some on first access. The
    # namespaces of `torch.ops` are modules, too, and find their operators on first access.
    if isinstance(found, ModuleType) and not found.__name__.startswith("torch.ops"):
        return vars(found).get(part, _MISSING)
    return getattr(found, part, _MISSING)


def _is_declared(found: Any, path: list[str]) -> bool:
    """Return whether source files declare `path`, which Python does not find in `found`."""
    if isinstance(found, (type, FunctionType)):
        holders = found.__mro__ if isinstance(found, type) else (found,)
        modules = {holder.__module__ for holder in holders}
        files = [
            Path(getattr(sys.modules[module], "__file__", None) or "")
            for module in modules
            if module.partition(".")[0] == "torch" and module in sys.modules
        ]
        return len(path) == 1 and any(_mentions(file, path[0]) for file in files)
    if not isinstance(found, ModuleType):
        return False
    folder = Path(getattr(found, "__file__", None) or "none").parent
    for position, part in enumerate(path):
        file = folder / f"{part}.py"
        if file.is_file():
            return all(_mentions(file, inner) for inner in path[position + 1 :])
        folder = folder / part
        if not folder.is_dir():
            return position > 0 and all(
                _mentions(folder.parent / "__init__.py", inner) for inner in path[position:]
            )
    return True


def _mentions(file: Path, name: str) -> bool:
    return file.suffix == ".py" and bool(re.search(rf"\b{re.escape(name)}\b", _text(file)))


def _header(header: str) -> Path:
    include = Path(str(sys.modules["torch"].__file__)).parent / "include"
    return include / header


@lru_cache(maxsize=64)
def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
