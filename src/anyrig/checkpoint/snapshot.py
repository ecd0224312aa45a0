"""The state of a training, apart from the objects that have it and the files that keep it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .tensor_in_parts import SavedTensor


@dataclass(frozen=True)
class ModuleState:
    """The state of one module.

    Attributes:
        tensors: parameters and buffers by name.
        values: what else the state has, by name: what modules return from ``get_extra_state``, and
            tensors that safetensors cannot hold.
    """

    tensors: Mapping[str, SavedTensor]
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class OptimizerState:
    """The state of one optimizer, by the names of the parameters.

    Attributes:
        tensors: of each parameter, by name: its tensors, such as ``exp_avg``.
        values: of each parameter: what else its state has; and under ``""`` what belongs to none.
        groups: the options of each group, such as ``lr``, and under ``"params"`` its parameters'
            names.
    """

    tensors: Mapping[str, Mapping[str, SavedTensor]]
    values: Mapping[str, Mapping[str, Any]]
    groups: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Snapshot:
    """The state of a training. Names do not depend on how a model was spread.

    ::

        objects ── capture ──▶ Snapshot ── write_snapshot ──▶ files
        objects ◀── restore ── Snapshot ◀── read_snapshot ─── files

    Tensors are anywhere: on a device, in shards (``DTensor``), or mapped from files.

    Attributes:
        modules: by the keyword of `save`; the model has the key ``"model"``.
        optimizers: by key; the only one has the key ``""``.
        states: what ``state_dict()`` returned of the other objects, such as ``"scheduler"``.
        random: the random numbers of each rank.
        given: what else the caller has given, such as ``"step"``.
    """

    modules: Mapping[str, ModuleState] = field(default_factory=dict)
    optimizers: Mapping[str, OptimizerState] = field(default_factory=dict)
    states: Mapping[str, Any] = field(default_factory=dict)
    random: Sequence[Mapping[str, Any]] = ()
    given: Mapping[str, Any] = field(default_factory=dict)

    @property
    def model(self) -> Mapping[str, SavedTensor] | None:
        """The tensors of the model; None if no model was saved."""
        found = self.modules.get("model")
        return None if found is None else found.tensors
