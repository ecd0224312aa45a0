"""The values on their way between the stages of one process.

A value goes from the stage that made it directly to each stage that reads it::

    stage 0 ──▶ stage 1 ──▶ stage 2
       └────── skip ──────────▲
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ....transfer.tree import map_leaves
from .parcel import Parcel, send, send_all
from .stage import Gradients, Stage, tensors_of


class Mailbox:
    """Sends values to their readers, and gradients back, for all micro-batches of one call."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        self._stages = stages
        self._readers: dict[str, list[Stage]] = defaultdict(list)
        for stage in stages:
            for name in stage.reads:
                self._readers[name].append(stage)
        # By the reading stage, the micro-batch and the name.
        self._values: dict[tuple[int, int, str], Any] = {}
        # By the micro-batch and the name, the gradients of each reader: in the order of the stages.
        self._gradients: dict[tuple[int, str], dict[int, list[Parcel | None]]] = defaultdict(dict)
        self._sources: dict[tuple[int, str], list[torch.device]] = {}

    def post(self, micro_batch: int, values: Mapping[str, Any]) -> None:
        """Send values, which have no graph, to the stages that read them."""
        for name, value in values.items():
            self._sources[micro_batch, name] = [tensor.device for tensor in tensors_of(value)]
            for reader in self._readers[name]:
                flags = [tensor.requires_grad for tensor in tensors_of(value)]
                parcels = send_all(value, reader.device)
                self._values[reader.index, micro_batch, name] = parcels, flags

    def fetch(self, stage: Stage, micro_batch: int) -> dict[str, Any]:
        """Return the values that a stage reads; tensors whose gradient is needed are leaves."""
        found = {}
        for name in stage.reads:
            parcels, flags = self._values.pop((stage.index, micro_batch, name))
            found[name] = _unpack(parcels, flags)
        return found

    def post_gradients(self, stage: Stage, micro_batch: int, gradients: Gradients) -> None:
        """Send the gradients of a stage's read values to the stages that made the values."""
        for name, given in gradients.items():
            sources = self._sources[micro_batch, name]
            self._gradients[micro_batch, name][stage.index] = [
                None if gradient is None else send(gradient, source)
                for gradient, source in zip(given, sources, strict=True)
            ]

    def fetch_gradients(self, micro_batch: int, names: Sequence[str]) -> Gradients:
        """Return the gradients of values, added over their readers in the order of the stages."""
        found: Gradients = {}
        for name in names:
            self._sources.pop((micro_batch, name), None)
            of_readers = self._gradients.pop((micro_batch, name), {})
            columns = zip(*(of_readers[index] for index in sorted(of_readers)), strict=True)
            found[name] = [_add(column) for column in columns]
        return found


def _unpack(parcels: Any, flags: Sequence[bool]) -> Any:
    # Parcels come in the order in which `tensors_of` lists the tensors.
    left = iter(flags)
    return map_leaves(
        parcels,
        lambda leaf, _: (
            leaf.take().requires_grad_(next(left)) if isinstance(leaf, Parcel) else leaf
        ),
    )


def _add(column: Sequence[Parcel | None]) -> Tensor | None:
    total: Tensor | None = None
    for parcel in column:
        if parcel is not None:
            gradient = parcel.take()
            total = gradient if total is None else total + gradient
    return total
