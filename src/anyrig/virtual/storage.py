"""Untyped storages of virtual devices: making and resizing them.

The CPU build's `torch.UntypedStorage` does not know how to do either for CUDA; FSDP resizes
storages to free parameters, and loading makes them.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch


def patch(core: ModuleType) -> None:
    """Teach `torch.UntypedStorage` to make and resize storages of CUDA devices."""
    storage: Any = torch.UntypedStorage
    new_elsewhere = storage.__new__
    resize_elsewhere = storage.resize_

    def new(cls: type, *arguments: Any, device: Any = None, **options: Any) -> Any:
        if device is None or torch.device(device).type != "cuda":
            options = options if device is None else {**options, "device": device}
            return new_elsewhere(cls, *arguments, **options)
        if arguments and not isinstance(arguments[0], int):
            values = new_elsewhere(cls, *arguments, **options)
            return values.to(device=torch.device(device))
        size = arguments[0] if arguments else 0
        return torch.empty(size, dtype=torch.uint8, device=device).untyped_storage()

    def resize_(self: Any, size: int) -> Any:
        if self.device.type != "cuda":
            return resize_elsewhere(self, size)
        alias = torch.empty(0, dtype=torch.uint8, device=self.device).set_(self)
        core.resize_storage(alias, size)
        return self

    storage.__new__ = new
    storage.resize_ = resize_
