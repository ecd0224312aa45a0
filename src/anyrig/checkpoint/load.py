"""`anyrig.load`: put the state of a checkpoint into the objects of a training run."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from ..errors import CheckpointError
from ..private_names import refuse_missing
from ..units import format_count
from .capture import by_key
from .choice import choose, was_removed
from .exactness import check_exact_state, go_on_exactly, require_same_training
from .manifest import Manifest, read_manifest
from .over_ranks import Ranks
from .prepared_save import divide_values, named_states
from .random_state import check_random_state, read_random_state, write_random_state
from .restore import Targets, prepare
from .snapshot import Snapshot
from .snapshot_files import VALUES_NAME, read_snapshot
from .undo import Undo
from .values_file import decode_text

# A training run that saves with ``keep=1`` removes a checkpoint as often as it saves.
_MOST_CHOICES = 100


@dataclass(frozen=True)
class Loaded:
    """What was loaded; ``loaded["name"]`` is a value that was saved under this name.

    Attributes:
        path: the checkpoint's folder.
        step: the step of the training run; None if it was not saved.
        metric: the metric of the checkpoint; None if it was not saved.
        values: the other values that were saved, by name.
        left: what was not restored, and why, such as random numbers of more devices.
    """

    path: Path
    step: int | None
    metric: float | None
    values: Mapping[str, Any]
    left: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Any:
        try:
            return self.values[name]
        except KeyError:
            has = ", ".join(sorted(self.values)) or "none"
            raise KeyError(f"{self.path} has no value {name!r}; it has {has}") from None

    def get(self, name: str, default: Any = None) -> Any:
        """Return a value, or `default` if nothing was saved under this name."""
        return self.values.get(name, default)


def load(
    path: str | os.PathLike[str],
    *,
    model: nn.Module | None = None,
    optimizer: Optimizer | Mapping[str, Optimizer] | Sequence[Optimizer] | None = None,
    scheduler: Any = None,
    scaler: Any = None,
    loader: Any = None,
    which: str = "latest",
    random_numbers: bool | None = None,
    exact: bool = False,
    convert_dtypes: bool = False,
    verify: bool = True,
    timeout_seconds: float | None = None,
    **objects: Any,
) -> Loaded:
    """Put the state of a checkpoint into objects, and return the values that were saved with it.

    ::

        found = anyrig.load("runs/a", model=model, optimizer=optimizer, loader=loader)
        found.step, found["epoch"], found.path

    Each object stays on its device, and can load a state that was saved by one process, by `spread`
    on several devices, or with DDP or FSDP2. Values have the bits that were saved. Everything is
    checked before anything changes, and if an object's own code fails, all objects are as before.

    On several ranks, every rank must call this function. Each reads what it needs, and verifies a
    part of the files.

    Args:
        path: the folder of a series, or of one checkpoint.
        model: gets parameters and buffers.
        optimizer: as for `save`; the same holds for `scheduler`, `scaler` and `loader`. An object
            that is not given stays as it is.
        scheduler: see `optimizer`.
        scaler: see `optimizer`.
        loader: its next iteration continues with the first global batch that was not received.
        which: the checkpoint of a series: ``"latest"``, or ``"best"`` by its metric. A damaged
            checkpoint is skipped, with a warning that names the file.
        random_numbers: whether to restore the random numbers of Python, NumPy and PyTorch; by
            default only with an `optimizer`, since training then continues. Several ranks restore
            them only if as many ranks have saved them.
        exact: require that the training run continues with the same bits on this number of ranks,
            and raise CheckpointError with the reason if it does not. See docs/checkpoints.md.
        convert_dtypes: convert floating-point values to the element types of the model's tensors,
            and complex ones likewise; otherwise other types are refused. The optimizer's state is
            converted where it had the type of its parameter.
        verify: whether to compare the content of all files with the hashes that were saved.
        timeout_seconds: how long to wait for other ranks; None for the launcher's ``--timeout``,
            else ten minutes.
        objects: other objects with ``load_state_dict()``, by the names that `save` was given.

    Raises:
        CheckpointError: there is no checkpoint, or it has no state for an object.
        CheckpointDamagedError: a file is missing, cut off or altered; the message names the file.
        KeyMismatchError: names, shapes or element types do not match those of the model or the
            optimizer, or the optimizer is of another class.
        OtherRankError: another rank failed in this call.
        RankWaitError: another rank did not arrive in time.
    """
    if random_numbers is None:
        random_numbers = exact or optimizer is not None
    refuse_missing("checkpoint")
    ranks = Ranks("anyrig.load()", timeout_seconds)
    chosen, manifest, snapshot = _read(ranks, path, which, verify)
    failed: BaseException | None = None
    apply: Callable[[Undo], None] = _nothing

    random: dict[str, Any] | str | None = None
    differing = ""
    try:
        named = named_states({*snapshot.states}, scheduler=scheduler, scaler=scaler, loader=loader)
        targets = targets_of(model, optimizer, objects, named, {*snapshot.optimizers})
        if exact:
            random, differing = require_same_training(targets, snapshot, chosen)
        elif random_numbers:
            random = _random_state(snapshot, chosen, ranks)
        if isinstance(random, dict):
            check_random_state(random)
        check_exact_state(snapshot, chosen)
        apply = prepare(snapshot, targets, chosen, convert_dtypes=convert_dtypes)
    except Exception as error:
        failed = error
    ranks.agree({}, failed)
    undo = Undo()
    try:
        try:
            apply(undo)
            if isinstance(random, dict):
                undo.add(partial(write_random_state, read_random_state()))
                random = write_random_state(random)
            if random_numbers:
                go_on_exactly(model, snapshot)
        except Exception as error:
            failed = error
        ranks.agree({}, failed)
    except BaseException:
        undo.run()
        raise
    values = {name: value for name, value in snapshot.given.items() if name != "step"}
    left = tuple(text for text in (random, differing) if isinstance(text, str) and text)
    return Loaded(chosen, snapshot.given.get("step"), manifest.metric, values, left)


def _read(
    ranks: Ranks, path: str | os.PathLike[str], which: str, verify: bool
) -> tuple[Path, Manifest, Snapshot]:
    """Choose a checkpoint, the same on every rank, and map its files. They may be removed later."""
    for _ in range(_MOST_CHOICES):
        chosen = choose(ranks, path, which, verify)
        if chosen is None:
            continue
        failed: BaseException | None = None
        try:
            manifest = read_manifest(chosen)
            snapshot = read_snapshot(chosen, manifest.files)
        except Exception as error:
            failed = error
        if "failed" not in ranks.agree({}, None, "" if failed is None else "failed"):
            return chosen, manifest, snapshot
        if not was_removed(ranks, chosen):
            ranks.agree({}, failed)
    raise CheckpointError(
        f"another process has removed each of {_MOST_CHOICES} checkpoints of {path} while it was "
        "read. Save with a larger keep="
    )


def _nothing(undo: Undo) -> None:
    pass


def targets_of(
    model: nn.Module | None,
    optimizer: Any,
    objects: Mapping[str, Any],
    named: Mapping[str, Any],
    saved: Collection[str] = (),
) -> Targets:
    """Return the objects to load into.

    Args:
        model: as for `load`; so are `optimizer` and `objects`.
        optimizer: see `model`.
        objects: see `model`.
        named: the scheduler, the scaler and the loader.
        saved: the keys of the optimizers in the checkpoint.
    """
    modules, others, plain = divide_values(model, objects)
    if plain:
        raise CheckpointError(
            f"load({next(iter(plain))}=…) takes an object with load_state_dict(); plain values "
            'are in what load returns, as found["name"]'
        )
    return Targets(modules, by_key("optimizer", optimizer, saved), {**others, **named})


def _random_state(snapshot: Snapshot, folder: Path, ranks: Ranks) -> dict[str, Any] | str:
    """Return the random numbers of this rank, or why there are none."""
    saved = len(snapshot.random)
    if saved != ranks.count:
        return (
            f"random numbers: saved by {format_count(saved, 'rank')}, loaded by {ranks.count}; "
            "each rank continues with its own"
        )
    return decode_text(snapshot.random[ranks.rank]["state"], folder / VALUES_NAME)
