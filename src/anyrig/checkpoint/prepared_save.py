"""What a save writes: the files of a checkpoint, and what its manifest says."""

from __future__ import annotations

import json
import operator
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .. import __version__
from ..errors import CheckpointError
from ..parallel.layout import Layout
from .capture import by_key, capture
from .commit import Parts, commit
from .manifest import FileFact, Manifest
from .over_ranks import Ranks
from .pipeline_state import complete_pipelines, describe_pipelines
from .random_state import read_random_state
from .series import Checkpoint, Series
from .shards import is_sharded, whole_on_host
from .snapshot import Snapshot
from .snapshot_files import contents_of_snapshot
from .values_file import encode_as_text


@dataclass
class PreparedSave:
    """A save of which every rank knows that it can be written.

    Attributes:
        series: gets the checkpoint.
        contents: of each file, by name. Parts are read once, in order, and on every rank: to read
            a tensor in shards is a collective.
        manifest: of the checkpoint; its number and its files are known when it is written.
        keep: as for `save`.
    """

    series: Series
    contents: dict[str, Parts]
    manifest: Manifest
    keep: int | None

    def write(self) -> Checkpoint:
        """Commit the checkpoint. On rank 0 only."""

        def describe(number: int, files: dict[str, FileFact]) -> Manifest:
            return replace(self.manifest, number=number, files=files)

        return commit(self.series, self.contents, describe, keep=self.keep)

    def read_to_the_end(self) -> None:
        """Read what has not been read of the contents, which takes part in the collectives."""
        for parts in self.contents.values():
            for _ in parts:
                pass


@dataclass(frozen=True)
class State:
    """What a save is given; the attributes are the arguments of `anyrig.save`."""

    model: nn.Module | None
    optimizer: Any
    scheduler: Any
    scaler: Any
    loader: Any
    step: int | None
    metric: float | None
    best: str | None
    values: Mapping[str, Any]


def prepare_save(
    ranks: Ranks, path: Path, keep: int | None, state: State, to_host: Callable[[Tensor], Tensor]
) -> PreparedSave:
    """Check a state on all ranks, and return what is to be written.

    Args:
        ranks: the ranks that save together.
        path: the folder of the series.
        keep: as for `anyrig.save`.
        state: what is saved.
        to_host: on rank 0, returns a whole tensor in the host's memory.

    Raises:
        CheckpointError: a value or an object cannot be saved.
        OtherRankError: another rank failed.
        RankWaitError: another rank did not come in time.
    """
    series = Series(path.absolute())
    failed: BaseException | None = None
    at_step: int | None = None
    measured: float | None = None
    snapshot = Snapshot()
    contents: dict[str, Parts] = {}
    modules: dict[str, nn.Module] = {}
    described = ""
    try:
        at_step, measured = _check(state.step, state.metric, state.best, keep)
        optimizers = by_key("optimizer", state.optimizer)
        others = named_states(scheduler=state.scheduler, scaler=state.scaler, loader=state.loader)
        modules, given, plain = divide_values(state.model, state.values)
        snapshot = capture(modules, optimizers, others | given)
        described = describe_pipelines(snapshot)
        snapshot = replace(snapshot, given={**plain, "step": at_step})
        random = encode_as_text(read_random_state())
    except Exception as error:
        failed, random = error, ""
    told = [json.loads(text) for text in ranks.gather(json.dumps([random, described]))]
    if failed is None:
        snapshot = replace(snapshot, random=[{"state": state} for state, _ in told])
        try:
            snapshot = complete_pipelines(snapshot, modules, [each[1] for each in told], ranks.rank)
            take = to_host if ranks.rank == 0 else _take_part
            contents = contents_of_snapshot(snapshot, take)
        except Exception as error:
            failed = error
    ranks.agree({"path": str(series.folder), "step": at_step, "shards": _sharded(snapshot)}, failed)

    manifest = Manifest(
        number=1,  # until it is written
        step=at_step,
        metric=measured,
        best=state.best,
        layout=_describe_layout(state.model, ranks.count),
        ranks=ranks.count,
        saved_at=time.time(),
        versions={
            "anyrig": __version__,
            "torch": str(torch.__version__),
            "python": platform.python_version(),
        },
        files={},
    )
    return PreparedSave(series, contents, manifest, keep)


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
