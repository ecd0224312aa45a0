"""Put a `Snapshot` into live objects: all checks first, then all changes.

Values are written in place, so a model stays in its memory, and an optimizer keeps its parameters.
What may fail goes first::

    others, optimizers, modules that load in a way of their own ──▶ other modules ──▶ copies into
    each change with what undoes it                                 the optimizers' present state
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ..errors import CheckpointError
from .capture import explain_stateless
from .names import names_of_parameters
from .restore_module import prepare_module
from .restore_optimizer import prepare_optimizer
from .snapshot import Snapshot
from .undo import Undo


@dataclass(frozen=True)
class Targets:
    """The objects that get a state.

    Attributes:
        modules: the modules by name; each gets parameters and buffers.
        optimizers: the optimizers by key, as for `capture`.
        others: the other objects with ``load_state_dict``, by name.
    """

    modules: Mapping[str, nn.Module]
    optimizers: Mapping[str, Optimizer]
    others: Mapping[str, Any]


def prepare(
    snapshot: Snapshot, targets: Targets, source: object, *, convert_dtypes: bool = False
) -> Callable[[Undo], None]:
    """Check that a snapshot fits, and return a function that puts it into the objects.

    Args:
        snapshot: what to restore.
        targets: the objects that get the state.
        source: names the checkpoint in errors.
        convert_dtypes: whether to convert floating-point values to the types of the objects.

    Returns:
        A function that gets an `Undo`, to which it adds how to undo its changes.

    Raises:
        KeyMismatchError: names, shapes or types differ; the message lists them. Nothing has
            changed.
        CheckpointError: the checkpoint has no state for an object. Nothing has changed.
    """
    for name, target in targets.others.items():
        _check_other(snapshot, name, target, source)
    modules: list[tuple[str, bool, Callable[[Undo], None]]] = []
    for name, module in targets.modules.items():
        if name not in snapshot.modules:
            raise CheckpointError(_has_no(name, source))
        state = snapshot.modules[name]
        fallible, change = prepare_module(state, name, module, source, convert=convert_dtypes)
        modules.append((name, fallible, change))
    names = names_of_parameters(targets.modules)
    optimizers: list[tuple[str, Callable[[Undo], list[Callable[[], object]]]]] = []
    for key, optimizer in targets.optimizers.items():
        called = f"optimizer {key!r}" if key else "optimizer"
        if key not in snapshot.optimizers:
            raise CheckpointError(_has_no(called, source))
        saved = snapshot.optimizers[key]
        load = prepare_optimizer(saved, optimizer, names, source, convert=convert_dtypes)
        optimizers.append((called, load))

    def apply(undo: Undo) -> None:
        _restore_others(snapshot, targets.others, source, undo)
        later: list[Callable[[], object]] = []
        with torch.no_grad():
            for called, load in optimizers:
                with _explained(called, source):
                    later += load(undo)
            for called, _, change in sorted(modules, key=lambda each: not each[1]):
                with _explained(called, source):
                    change(undo)
            for write in later:
                write()

    return apply


@contextmanager
def _explained(called: str, source: object) -> Iterator[None]:
    """Turn an error of an object's own code into one that names the object."""
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:
        raise CheckpointError(
            f"the {called} refuses its state in {source}: {type(error).__name__}: {error}. Nothing "
            "was loaded"
        ) from error


def _has_no(what: str, source: object) -> str:
    return (
        f"{source} has no state of this {what}. Leave it out of load(), or load another checkpoint"
    )


def _check_other(snapshot: Snapshot, name: str, target: Any, source: object) -> None:
    if name not in snapshot.states:
        raise CheckpointError(_has_no(name, source))
    if not callable(getattr(target, "load_state_dict", None)):
        raise CheckpointError(
            f"{name} is a {type(target).__name__}, which has no load_state_dict()"
            + explain_stateless(name)
        )


def _restore_others(
    snapshot: Snapshot, others: Mapping[str, Any], source: object, undo: Undo
) -> None:
    for name, target in others.items():
        before = copy.deepcopy(target.state_dict())
        if not before and not snapshot.states[name]:
            continue  # a disabled GradScaler refuses its own state
        undo.add(partial(target.load_state_dict, before))
        try:
            target.load_state_dict(copy.deepcopy(snapshot.states[name]))
        except Exception as error:
            raise CheckpointError(
                f"this {type(target).__name__} refuses the state of {name} in {source}: "
                f"{error}. Nothing was loaded"
            ) from error
