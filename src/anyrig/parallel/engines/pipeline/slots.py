"""The places of modules that hold parameters and buffers, and putting other tensors there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...own_class import has_own_class, move_objects, move_whole


@dataclass(frozen=True)
class Slot:
    """The place of one parameter or buffer in one module.

    Attributes:
        module: the module.
        table: the module's dictionary of parameters or of buffers.
        name: the key in the dictionary.
    """

    module: nn.Module
    table: dict[str, Any]
    name: str

    def get(self) -> Tensor | None:
        """Return the tensor in this place."""
        return self.table.get(self.name)

    def put(self, tensor: Tensor) -> None:
        """Put a tensor in this place."""
        self.table[self.name] = tensor
        if isinstance(self.module, nn.RNNBase):
            # Recurrent layers read their weights from this list; `__setattr__` refuses a tensor
            # that is not a Parameter. `lstm_in_sequential` in `divided_models.py` tests this.
            names = self.module._flat_weights_names
            if self.name in names:
                self.module._flat_weights[names.index(self.name)] = tensor


def list_slots(modules: Iterable[nn.Module]) -> tuple[Slot, ...]:
    """Return all places in modules and their children, each once."""
    seen: dict[nn.Module, None] = {}
    for module in modules:
        seen.update(dict.fromkeys(module.modules()))
    return tuple(
        Slot(module, table, name)
        for module in seen
        for table in (module._parameters, module._buffers)
        for name, tensor in table.items()
        if tensor is not None
    )


def tensors_in(slots: Iterable[Slot]) -> Iterator[tuple[Slot, Tensor]]:
    """Yield each place with its present tensor; places that are empty now are left out."""
    for slot in slots:
        tensor = slot.get()
        if tensor is not None:
            yield slot, tensor


@contextmanager
def replaced(replacements: Sequence[tuple[Slot, Tensor]]) -> Iterator[None]:
    """Put other tensors in the places of modules within this context."""
    before = [(slot, slot.get()) for slot, _ in replacements]
    try:
        for slot, tensor in replacements:
            slot.put(tensor)
        yield
    finally:
        for slot, old in before:
            if old is not None:
                slot.put(old)


def move_in_place(slots: Iterable[Slot], device: torch.device) -> None:
    """Move the tensors of places to a device; parameters and buffers remain the same objects."""
    with torch.no_grad():
        for slot, tensor in tensors_in(slots):
            if has_own_class(tensor):
                move_whole(tensor, device)
                move_objects(slot.module, device)
            elif tensor.device != device:
                tensor.data = tensor.data.to(device)
            if tensor.grad is not None and tensor.grad.device != device:
                tensor.grad.data = tensor.grad.data.to(device)
    for module in {slot.module: None for slot in slots}:
        if isinstance(module, nn.RNNBase):
            module.flatten_parameters()
