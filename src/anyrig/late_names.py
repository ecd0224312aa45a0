"""Load public names, and with them PyTorch, on first use (PEP 562)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def load_late(
    package: str, module_of_name: Mapping[str, str], *, after: str | None = None
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return the `__getattr__` and the `__dir__` of a package.

    Args:
        package: its name.
        module_of_name: where each public name lives: a module relative to the package. A name whose
            module has the same name, such as ``"devices": ".devices"``, loads the module itself.
        after: a module to import before, if all names need it: what runs at the end of the import
            of torch, as in a rehearsal, would find a module of `package` half imported.
    """

    def get(name: str) -> object:
        module = module_of_name.get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if after is not None:
            import_module(after)
        try:
            loaded = import_module(module, package)
        except (ImportError, AttributeError):
            _refuse_missing(f"{package}{module}")
            raise
        value = loaded if module == f".{name}" else getattr(loaded, name)
        setattr(sys.modules[package], name, value)
        return value

    return get, lambda: sorted(module_of_name)


def _refuse_missing(module: str) -> None:
    """Raise the error of the room of `module` if the import failed for a name that PyTorch lost."""
    if "torch" in sys.modules:
        from .private_names import ROOMS, refuse_missing

        room = module.split(".")[1]
        if room in ROOMS:
            refuse_missing(room)
