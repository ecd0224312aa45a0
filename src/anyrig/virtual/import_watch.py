"""Wrapping the first import of a module, without importing the module early."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class ImportWatch(MetaPathFinder):
    """A finder that calls `execute(load)` instead of running a module's code.

    `load` runs the module's code. Insert the watch into ``sys.meta_path``. It delegates the search
    to the finders behind it, and removes itself once `load` or `execute` has returned.
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
        """Call the watch's `execute` for `module`, whose original loader is `loader`."""

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
        # Give the module its original loader back, so that the watch leaves no trace.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._watch.execute(self._loader, module)
