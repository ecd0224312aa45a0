"""Something to do when a module is imported for the first time, and not before."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class ImportWatch(MetaPathFinder):
    """Finds a module through the finders behind it, and lets `execute(load)` run it.

    `load` runs the module's own code. The watch belongs on ``sys.meta_path`` and takes itself off
    when the code has run, or when `execute` did without it.
    """

    def __init__(self, module: str, execute: Callable[[Callable[[], None]], None]) -> None:
        self._module = module
        self._execute = execute

    def find_spec(  # noqa: D102
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self._module:
            return None
        others = sys.meta_path[sys.meta_path.index(self) + 1 :]
        specs = (finder.find_spec(name, path, target) for finder in others)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self)
        return spec

    def execute(self, loader: Loader, module: ModuleType) -> None:
        """Run the module found, whose own loader is `loader`."""

        def load() -> None:
            loader.exec_module(module)
            sys.meta_path.remove(self)

        self._execute(load)
        if self in sys.meta_path:
            sys.meta_path.remove(self)


class _Loader(Loader):
    def __init__(self, loader: Loader, watch: ImportWatch) -> None:
        self._loader = loader
        self._watch = watch

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # From here on the module has its own loader, so that nothing of this is left to be seen.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._watch.execute(self._loader, module)
