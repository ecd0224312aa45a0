"""`WriteLog`, the operators that write to saved memory, and their lines, without virtual GPUs."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from .hazard import Place
from .lines import place_here


@dataclass(frozen=True)
class LoggedWrite:
    """A write to memory that is watched; writes are numbered in their order."""

    number: int
    place: Place
    operator: str


class WriteLog(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows the operators of this thread and its backward passes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.last_number = 0
        self._watched: dict[int, int] = defaultdict(int)
        self._writes: dict[int, list[LoggedWrite]] = {}

    def watch(self, address: int) -> None:
        """Log writes to the memory at an address, until `release` ends this watch."""
        self._watched[address] += 1

    def release(self, address: int) -> bool:
        """End one watch, and forget the writes if it was the last; return whether it was."""
        self._watched[address] -= 1
        if self._watched[address] > 0:
            return False
        del self._watched[address]
        self._writes.pop(address, None)
        return True

    def first_write(self, address: int, after: int) -> LoggedWrite | None:
        """Return the first write to the memory at an address after the write numbered `after`."""
        writes = self._writes.get(address, ())
        return next((write for write in writes if write.number > after), None)

    def add(self, address: int, place: Place, operator: str) -> None:
        """Log a write."""
        self.last_number += 1
        write = LoggedWrite(self.last_number, place, operator)
        self._writes.setdefault(address, []).append(write)

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run an operator and log what it writes."""
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        for get in _written_arguments(function):
            for tensor in _tensors(get(args, kwargs)):
                address = _address(tensor)
                if address in self._watched:
                    self.add(address, place_here("written"), str(function.name()))
        return result


@functools.cache
def _written_arguments(function: Any) -> tuple[Callable[[Any, Any], Any], ...]:
    """Return functions that get the arguments to whose memory an operator writes."""
    if function.overloadpacket is torch.ops.aten.set_:  # gives a tensor other memory
        return ()

    def getter(index: int, name: str) -> Callable[[Any, Any], Any]:
        return lambda args, kwargs: args[index] if index < len(args) else kwargs.get(name)

    return tuple(
        getter(index, argument.name)
        for index, argument in enumerate(function._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)


def _address(tensor: Tensor) -> int:
    try:
        return torch.Tensor.untyped_storage(tensor).data_ptr()
    except (RuntimeError, NotImplementedError):  # a tensor without memory
        return 0
