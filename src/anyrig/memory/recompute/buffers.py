"""Protect the buffers of a block from its second forward pass."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...errors import ValueNeededError

_Key = tuple[str, str]  # the names of a module within the block, and of its buffer


class KeptBuffers:
    """The values that buffers of a block had before its forward pass.

    As a context manager, it gives the block these values during the recomputation, so that the
    present buffers do not change. Otherwise batch norm would count a batch twice, and spectral norm
    would iterate once more.
    """

    def __init__(self, block: nn.Module, modules: set[str] | None) -> None:
        """Keep the buffers of `modules` of the block; None for all modules."""
        self.block = block
        buffers = buffers_of(block)
        self.before = {key: (each, version_of(each)) for key, each in buffers.items()}
        self.values = {
            key: each.detach().clone()
            for key, each in buffers.items()
            if modules is None or key[0] in modules
        }
        self._present: list[tuple[nn.Module, str, Tensor]] = []

    def __enter__(self) -> None:
        for (path, name), value in self.values.items():
            module = self.block.get_submodule(path)
            self._present.append((module, name, getattr(module, name)))
            setattr(module, name, value.clone())  # a retained graph is recomputed twice

    def __exit__(self, *error: object) -> None:
        while self._present:
            setattr(*self._present.pop())


class WrittenBuffers:
    """The modules of a block whose buffers its forward pass changes.

    They are learned from the first pass in training mode and the first pass in evaluation mode.
    """

    def __init__(self) -> None:
        self._modules: dict[bool, set[str]] = {}  # by the block's mode

    def keep(self, block: nn.Module) -> KeptBuffers:
        """Keep the buffers that the forward pass may change."""
        return KeptBuffers(block, self._modules.get(block.training))

    def learn(self, kept: KeptBuffers) -> None:
        """Record which buffers the forward pass has changed, and keep only these."""
        mode, after = kept.block.training, buffers_of(kept.block)
        is_first = mode not in self._modules
        changed = {key[0] for key in after if _has_changed(kept, key, after[key], is_first)}
        written = self._modules[mode] = changed | self._modules.get(mode, set())
        for key in [key for key in kept.values if key[0] not in written]:
            del kept.values[key]
        for key, buffer in after.items():
            # Changed for the first time, as after `batch_norm.train()`: keep the present value.
            if key[0] in written and key not in kept.values:
                kept.values[key] = buffer.detach().clone()
        kept.before = {}


def _has_changed(kept: KeptBuffers, key: _Key, buffer: Tensor, is_first: bool) -> bool:
    before, version = kept.before.get(key, (None, None))
    if before is not buffer or version != version_of(buffer):
        return True
    # F.batch_norm changes its statistics, but not their versions.
    return is_first and not _equal(kept.values[key], buffer)


def buffers_of(block: nn.Module) -> dict[_Key, Tensor]:
    """Return the buffers of all modules of a block."""
    return {
        (path, name): buffer
        for path, module in block.named_modules()
        for name, buffer in module.named_buffers(recurse=False)
    }


def version_of(tensor: Tensor) -> int | None:
    """Return how often a tensor has been changed; None if PyTorch does not count it."""
    return None if tensor.is_inference() else tensor._version


def _equal(one: Tensor, other: Tensor) -> bool:
    try:
        return torch.equal(one, other)
    except ValueNeededError:  # shape-only: there are no values
        return True
