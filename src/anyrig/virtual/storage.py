"""Creation and resizing of untyped storages on virtual GPUs.

`torch.UntypedStorage` in a CPU build supports neither for CUDA. `torch.load` creates storages, and
FSDP resizes them to free parameters.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch


def patch(core: ModuleType) -> None:
    """Make `torch.UntypedStorage` create and resize storages of CUDA devices."""
    storage: Any = torch.UntypedStorage
    original_new = storage.__new__
    original_resize = storage.resize_

    def new(cls: type, *arguments: Any, device: Any = None, **options: Any) -> Any:
        if device is None or torch.device(device).type != "cuda":
            options = options if device is None else {**options, "device": device}
            return original_new(cls, *arguments, **options)
        if arguments and not isinstance(arguments[0], int):
            values = original_new(cls, *arguments, **options)
            return values.to(device=torch.device(device))
        size = arguments[0] if arguments else 0
        return torch.empty(size, dtype=torch.uint8, device=device).untyped_storage()

    def resize_(self: Any, size: int) -> Any:
        if self.device.type != "cuda":
            return original_resize(self, size)
        alias = torch.empty(0, dtype=torch.uint8, device=self.device).set_(self)
        core.resize_storage(alias, size)
        return self

    storage.__new__ = new
    storage.resize_ = resize_
