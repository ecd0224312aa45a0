"""Something to do as soon as torch has been imported, and not before.

A script may set ``CUDA_VISIBLE_DEVICES`` or ``OMP_NUM_THREADS`` above its ``import torch``. Were
torch imported on its behalf before it starts, that would come too late.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def when_torch_is_imported(action: Callable[[], object]) -> None:
    """Call `action` once torch has been imported: now if it has been, else within that import."""
    if "torch" in sys.modules:
        action()
    else:
        sys.meta_path.insert(0, TorchWatch(action))


class TorchWatch(MetaPathFinder):
    """Finds torch through the finders behind it, and calls `action` once it has been imported."""

    def __init__(self, action: Callable[[], object]) -> None:
        self._action = action

    def find_spec(  # noqa: D102
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "torch":
            return None
        others = sys.meta_path[sys.meta_path.index(self) + 1 :]
        specs = (finder.find_spec(name, path, target) for finder in others)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._imported)
        return spec

    def _imported(self) -> None:
        sys.meta_path.remove(self)
        self._action()


class _Loader(Loader):
    def __init__(self, loader: Loader, imported: Callable[[], None]) -> None:
        self._loader = loader
        self._imported = imported

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # From here on torch has its own loader, so that nothing of this is left to be seen.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._imported()
