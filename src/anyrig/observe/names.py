"""`ModuleNames`, the names of modules within their models."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from torch import nn
from torch.utils.weak import WeakIdKeyDictionary


class ModuleNames:
    """Names modules as in the state dict of the outermost module.

    If there are several outermost modules, such as a generator and a discriminator, the names in
    all but the first begin with the class of the outermost module. A replica has the names of its
    module.
    """

    def __init__(self) -> None:
        # By identity, since a program's module may not be hashable. The keys are those of
        # `_key_of`.
        self._names: MutableMapping[Any, str] = WeakIdKeyDictionary()
        self._outermost: MutableMapping[Any, None] = WeakIdKeyDictionary()

    def add_outermost(self, module: nn.Module) -> None:
        """Name an outermost module and its submodules, unless it has a name."""
        key = _key_of(module)
        if key in self._names:
            return
        self._outermost[key] = None
        prefix = "" if len(self._outermost) == 1 else type(module).__name__
        for name, child in module.named_modules():
            self._names.setdefault(_key_of(child), ".".join(filter(None, (prefix, name))))
        self._names.setdefault(key, type(module).__name__)  # a wrapper of an inner module

    def name_of(self, module: nn.Module) -> str:
        """Return a module's name, or its class's name if no outermost module contains it."""
        return self._names.get(_key_of(module), type(module).__name__)

    def name_within(self, outermost: nn.Module, module: nn.Module) -> str:
        """Return a module's name; `outermost` is the outermost module whose forward runs."""
        self.add_outermost(outermost)
        return self.name_of(module)


def _key_of(module: nn.Module) -> Any:
    """Return an object that identifies a module, and its replicas.

    The replicas of `anyrig.spread` and of `torch.nn.DataParallel` share this set of names with
    their module. tests/memory/test_replicas.py fails if they no longer do.
    """
    return vars(module).get("_non_persistent_buffers_set", module)
