"""The state of a training run, independent of live objects and of files."""

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
        values: the other values of the state, by name: what modules return from
            ``get_extra_state``, tensors that safetensors cannot hold, and the description of a
            tensor that wraps others, whose inner tensors are among `tensors`.
    """

    tensors: Mapping[str, SavedTensor]
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class OptimizerState:
    """The state of one optimizer, by the names of the parameters.

    Attributes:
        tensors: the tensors of each parameter's state, such as ``exp_avg``, by parameter name.
        values: the other values of each parameter's state; and under ``""`` those that belong to no
            parameter.
        groups: the options of each group, such as ``lr``, and under ``"params"`` its parameters'
            names.
        kind: the optimizer's class, such as ``"torch.optim.adam.Adam"``; empty if unknown.
        dtypes: the element type of each parameter, such as ``"bfloat16"``, by name.
        in_shards: for each parameter in shards, the parts of its state that were in shards, too.
    """

    tensors: Mapping[str, Mapping[str, SavedTensor]]
    values: Mapping[str, Mapping[str, Any]]
    groups: Sequence[Mapping[str, Any]]
    kind: str = ""
    dtypes: Mapping[str, str] = field(default_factory=dict)
    in_shards: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Snapshot:
    """The state of a training run. Names do not depend on how a model was spread.

    ::

        objects ── capture ──▶ Snapshot ── write_snapshot ──▶ files
        objects ◀── restore ── Snapshot ◀── read_snapshot ─── files

    Tensors may be on a device, in shards (``DTensor``), or mapped from files.

    Attributes:
        modules: the modules, by the keyword of `save`; the model has the key ``"model"``.
        optimizers: the optimizers, by key; the only one has the key ``""``.
        states: what ``state_dict()`` of each other object returned, by name, such as
            ``"scheduler"``.
        random: the random numbers of each rank.
        given: the other values that the caller has given, such as ``"step"``.
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
