"""A part of a module, with the names of the whole."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

from torch import nn


class SomeEntries(MutableMapping[str, Any]):
    """Some entries of another mapping; what is set here is set in the other mapping, too."""

    def __init__(self, whole: MutableMapping[str, Any]) -> None:
        self._whole = whole
        self._names: dict[str, None] = {}

    def add_name(self, name: str) -> None:
        """Show one more entry."""
        self._names[name] = None

    def __getitem__(self, name: str) -> Any:
        if name not in self._names:
            raise KeyError(name)
        return self._whole[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._names[name] = None
        self._whole[name] = value

    def __delitem__(self, name: str) -> None:
        del self._names[name]
        del self._whole[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class Part(nn.Module):
    """Some parameters, buffers and children of a module, the same objects under the same names.

    If entries of the module are replaced later, as ``.to()`` replaces buffers, they are replaced
    here, too, and vice versa.
    """

    def __init__(self, whole: nn.Module) -> None:
        super().__init__()
        self._parameters = SomeEntries(whole._parameters)  # type: ignore[assignment]
        self._buffers = SomeEntries(whole._buffers)  # type: ignore[assignment]
        self._non_persistent_buffers_set = whole._non_persistent_buffers_set
        self._whole = (whole,)  # in a tuple, so that it is not a child

    def include(self, path: str) -> None:
        """Add the parameter, buffer or submodule of this name, if it is one."""
        name, _, rest = path.partition(".")
        whole = self._whole[0]
        if not rest:
            if name in whole._modules:
                self._modules[name] = whole._modules[name]
            elif name in whole._parameters:
                self._parameters.add_name(name)  # type: ignore[attr-defined]
            elif name in whole._buffers:
                self._buffers.add_name(name)  # type: ignore[attr-defined]
            return
        child = whole._modules.get(name)
        if child is None:
            return
        inside = self._modules.get(name)
        if inside is None:
            inside = self._modules[name] = Part(child)
        if isinstance(inside, Part):
            inside.include(rest)
