"""`anyrig.save`: the state of a training, as a new checkpoint of a series."""

from __future__ import annotations

import operator
import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .. import __version__
from ..errors import CheckpointError
from ..parallel.layout import Layout
from .capture import by_key, capture
from .commit import Parts, commit
from .manifest import FileFact, Manifest
from .over_ranks import Ranks
from .random_state import read_random_state
from .series import Series
from .shards import is_sharded, whole_on_host
from .snapshot import Snapshot
from .snapshot_files import contents_of_snapshot
from .values_file import encode_as_text


def save(
    path: str | os.PathLike[str],
    *,
    model: nn.Module | None = None,
    optimizer: Optimizer | Mapping[str, Optimizer] | Sequence[Optimizer] | None = None,
    scheduler: Any = None,
    scaler: Any = None,
    loader: Any = None,
    step: int | None = None,
    metric: float | None = None,
    best: str | None = None,
    keep: int | None = None,
    timeout_seconds: float | None = None,
    **values: Any,
) -> Path:
    """Save the state of a training as a new checkpoint, and return the checkpoint's folder.

    ::

        anyrig.save("runs/a", model=model, optimizer=optimizer, loader=loader, step=step, keep=3)

    `path` is the folder of a *series* of checkpoints. Wherever the process or the machine stops,
    the series has the whole new checkpoint or is as before. The random numbers of Python, NumPy and
    PyTorch are saved, too.

    Over ranks, every rank must call this function. Rank 0 writes, and the others wait.

    Args:
        path: the folder of the series; it is created if necessary.
        model: a module, or what `anyrig.spread`, DDP or FSDP2 made of one. Names and tensors do not
            depend on the form.
        optimizer: one, or several in a dict or a list.
        scheduler: one, or several in a dict or a list; likewise `scaler`.
        scaler: a `GradScaler`.
        loader: what `anyrig.distribute` returned, or another loader with ``state_dict()``: its
            position is saved, so that no sample is skipped or seen twice.
        step: the number of the training's step.
        metric: what the checkpoint is judged by, for ``load(which="best")``.
        best: whether the best metric is the ``"max"`` or the ``"min"``.
        keep: keep the newest `keep` checkpoints of the series and the best one, and remove the
            others; None keeps all.
        timeout_seconds: how long to wait for other ranks; None for the launcher's ``--timeout``,
            else ten minutes.
        values: what else to save: another module, another object with ``state_dict()``, or numbers,
            texts, tensors, and lists, tuples and dicts of these.

    Raises:
        CheckpointError: a value or an object cannot be saved, or a file cannot be written; the
            message names it. Earlier checkpoints are unchanged.
        OtherRankError: another rank failed in this call.
        RankWaitError: another rank did not come in time.
    """
    ranks = Ranks("anyrig.save()", timeout_seconds)
    series = Series(Path(path).absolute())
    failed: BaseException | None = None
    at_step: int | None = None
    measured: float | None = None
    snapshot = Snapshot()
    contents: dict[str, Parts] = {}
    try:
        at_step, measured = _check(step, metric, best, keep)
        optimizers = by_key("optimizer", optimizer)
        others = named_states(scheduler=scheduler, scaler=scaler, loader=loader)
        modules, others_given, plain = divide_values(model, values)
        snapshot = capture(modules, optimizers, others | others_given)
        snapshot = replace(snapshot, given={**plain, "step": at_step})
        random = encode_as_text(read_random_state())
    except Exception as error:
        failed, random = error, ""
    states = ranks.gather(random)
    if failed is None:
        snapshot = replace(snapshot, random=[{"state": state} for state in states])
        try:
            to_host = whole_on_host if ranks.rank == 0 else _take_part
            contents = contents_of_snapshot(snapshot, to_host)
        except Exception as error:
            failed = error
    ranks.agree({"path": str(series.folder), "step": at_step, "shards": _sharded(snapshot)}, failed)

    def describe(number: int, files: dict[str, FileFact]) -> Manifest:
        return Manifest(
            number=number,
            step=at_step,
            metric=measured,
            best=best,
            layout=_describe_layout(model, ranks.count),
            ranks=ranks.count,
            saved_at=time.time(),
            versions={
                "anyrig": __version__,
                "torch": str(torch.__version__),
                "python": platform.python_version(),
            },
            files=files,
        )

    folder = ""
    try:
        if ranks.rank == 0:
            folder = str(commit(series, contents, describe, keep=keep).path)
    except Exception as error:
        failed = error
    # Every rank takes part in the collectives of all tensors, even if rank 0 cannot write.
    _read_to_the_end(contents)
    ranks.agree({}, failed)
    return Path(ranks.gather(folder)[0])


def named_states(**given: Any) -> dict[str, Any]:
    """Return objects by name; several of one kind are ``scheduler.<key>``."""
    return {
        f"{what}.{key}" if key else what: each
        for what, value in given.items()
        for key, each in (by_key(what, value) if what != "loader" else _single(value)).items()
    }


def _single(value: Any) -> dict[str, Any]:
    return {} if value is None else {"": value}


def divide_values(
    model: nn.Module | None, values: Mapping[str, Any]
) -> tuple[dict[str, nn.Module], dict[str, Any], dict[str, Any]]:
    """Return modules, other objects with a state, and plain values, by name."""
    modules: dict[str, nn.Module] = {} if model is None else {"model": model}
    others: dict[str, Any] = {}
    plain: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, nn.Module):
            modules[name] = value
        elif callable(getattr(value, "state_dict", None)):
            others[name] = value
        else:
            plain[name] = value
    return modules, others, plain


def _check(
    step: int | None, metric: float | None, best: str | None, keep: int | None
) -> tuple[int | None, float | None]:
    """Return step and metric as plain numbers."""
    if keep is not None and keep < 1:
        raise CheckpointError(f"keep is the number of checkpoints to keep, at least 1; got {keep}")
    if best not in (None, "max", "min"):
        raise CheckpointError(f"best is 'max' or 'min', for a metric; got {best!r}")
    if (metric is None) != (best is None):
        raise CheckpointError(
            f"metric={metric!r} and best={best!r} go together: give the metric, and whether its "
            "best value is the 'max' or the 'min'"
        )
    try:
        number = None if step is None else operator.index(step)
    except TypeError:
        raise CheckpointError(f"step is a whole number; got {step!r}") from None
    if number is not None and number < 0:
        raise CheckpointError(f"step is not below 0; got {number}")
    return number, None if metric is None else float(metric)


def _take_part(tensor: Tensor) -> Tensor:
    """Take part in gathering a tensor that rank 0 writes; return a tensor without elements."""
    if is_sharded(tensor):
        whole_on_host(tensor)
    return torch.empty(0)


def _read_to_the_end(contents: Mapping[str, Parts]) -> None:
    for parts in contents.values():
        for _ in parts:
            pass


def _sharded(snapshot: Snapshot) -> int:
    """Return how many tensors are in shards, which all ranks gather together."""
    tensors = [each for module in snapshot.modules.values() for each in module.tensors.values()]
    for state in snapshot.optimizers.values():
        tensors += [tensor for parts in state.tensors.values() for tensor in parts.values()]
    return sum(map(is_sharded, tensors))


def _describe_layout(model: nn.Module | None, ranks: int) -> str:
    layout = getattr(model, "_layout", None)
    if isinstance(layout, Layout):
        over = f"over {ranks} ranks" if layout.group else f"over {len(layout.devices)} devices"
        return "one device" if layout.how == "alone" else f"{layout.how} {over}"
    kind = "no model" if model is None else type(model).__name__
    return f"{kind}, {ranks} ranks" if ranks > 1 else f"{kind}, one process"
