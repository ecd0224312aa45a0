"""Name the parameters, gradients and optimizer state that were there when most memory was in use.

``csrc/memory/peak_kinds.h`` counts their bytes. After the first steps the peak seldom rises, and a
step without a new peak costs next to nothing.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, MutableMapping

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from ..memory.tensor_roles import reads_lazily, tensors_in
from ..observe.census import parameters_of
from ..observe.events import Events
from ..observe.hooks import Observer
from ..observe.storages import storages_of
from ..virtual.build import load_extension


class PeakWatch(Observer):
    """Names the parameters, gradients and optimizer state at the end of a step with a peak."""

    def __init__(self) -> None:
        # By identity, since a program's module may not be hashable.
        self._models: MutableMapping[nn.Module, None] = WeakIdKeyDictionary()
        self._optimizers: dict[int, weakref.ref[Optimizer]] = {}
        super().__init__(Events(step_begun=self._begin_update, step_ended=self._end_update))

    def note_model(self, model: nn.Module) -> None:
        """Note an outermost module, since its parameters may belong to no optimizer."""
        self._models[model] = None

    def end_step(self) -> None:
        """Note that a step has ended."""
        core = load_extension()
        if not core.has_open_peak():
            return
        optimizers = [one for known in self._optimizers.values() if (one := known()) is not None]
        parameters = [*self._parameters(optimizers)]
        states = [list(optimizer.state.values()) for optimizer in optimizers]
        core.close_peaks(
            _storages(parameters),
            _storages(one.grad for one in parameters if one.is_leaf and one.grad is not None),
            _storages(tensors_in(states)),
        )

    def _parameters(self, optimizers: Iterable[Optimizer]) -> Iterable[Tensor]:
        for optimizer in optimizers:
            yield from parameters_of(optimizer)
        for model in self._models:
            for part in model.modules():
                if not reads_lazily(part):
                    own = part.parameters(recurse=False)
                    yield from (one for one in own if not is_lazy(one))

    def _begin_update(self, optimizer: Optimizer) -> None:
        known = self._optimizers.get(id(optimizer))
        if known is None or known() is not optimizer:
            self._optimizers[id(optimizer)] = weakref.ref(optimizer)
        load_extension().note_update(True)

    def _end_update(self, optimizer: Optimizer) -> None:
        load_extension().note_update(False)


def _storages(tensors: Iterable[Tensor]) -> list[torch.UntypedStorage]:
    return [storage for tensor in tensors for storage in storages_of(tensor)]
