"""Whether a forward pass writes buffers, which then depend on the number of micro-batches."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .slots import Slot


@dataclass(frozen=True)
class _Seen:
    slot: Slot
    buffer: Tensor
    version: int
    values: Tensor


class BufferWatch:
    """Remembers a module's buffers before a call, with their values.

    Batch normalization writes its statistics without a new version of the tensor, and is found by
    `find_whole_batch_layer`.
    """

    def __init__(self, module: nn.Module) -> None:
        self._seen = [
            _Seen(Slot(each, each._buffers, name), buffer, buffer._version, buffer.clone())
            for each in module.modules()
            for name, buffer in each._buffers.items()
            if buffer is not None
        ]

    def find_written(self) -> str | None:
        """Return a description of a buffer that was written or replaced since, or None."""
        for seen in self._seen:
            if seen.slot.get() is not seen.buffer or seen.buffer._version != seen.version:
                return f"the buffer {seen.slot.name!r} of a {type(seen.slot.module).__name__}"
        return None

    def restore(self) -> None:
        """Give all buffers their former values."""
        with torch.no_grad():
            for seen in self._seen:
                seen.buffer.copy_(seen.values)
                seen.slot.put(seen.buffer)
