"""What a save writes: the files of a checkpoint, and what its manifest says."""

from __future__ import annotations

import hashlib
import json
import math
import operator
import os
import platform
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .. import __version__
from ..errors import CheckpointError
from ..parallel.spread_module import engine_of
from .capture import by_key, capture
from .commit import Parts, commit
from .division import Division
from .exactness import EXACT, exact_state_of
from .folder_name import LARGEST_STEP
from .gather import Gather
from .given_path import absolute_path
from .manifest import FileFact, Manifest
from .over_ranks import Ranks
from .parallel_commit import ParallelCommit
from .pipeline_state import complete_pipelines, describe_pipelines
from .random_state import read_random_state
from .replicated import replicated_names
from .savable_names import require_distinct, require_savable
from .series import Series
from .shards import has_one_region, is_sharded
from .snapshot import Snapshot
from .snapshot_files import (
    Outline,
    captured_tensors,
    contents_of_snapshot,
    outline_of,
    read_snapshot,
)
from .tensor_files import Writing
from .values_file import encode_as_text


@dataclass
class PreparedSave:
    """A save that every rank has checked and can write.

    Attributes:
        ranks: the ranks that save together.
        series: gets the checkpoint.
        contents: the content of each file that this rank writes, by name. Parts are read once and
            in order. If rank 0 writes everything, reading a tensor in shards is a collective, for
            which the other ranks read parts without content.
        manifest: the manifest of the checkpoint; its number and its files are known when it is
            written.
        keep: as for `save`.
        gather: how this rank reads tensors.
        parallel: the commit, if every rank writes.
        expected: what a reader must find, so that older checkpoints may be removed.
    """

    ranks: Ranks
    series: Series
    contents: dict[str, Parts]
    manifest: Manifest
    keep: int | None
    gather: Gather
    parallel: ParallelCommit | None
    expected: Outline

    def begin(self) -> None:
        """Begin the commit. Every rank must call this, in its main thread."""
        if self.parallel is not None:
            self.parallel.begin()

    def write(self) -> str:
        """Write this rank's files; on rank 0, return the checkpoint's folder."""

        def describe(number: int, files: dict[str, FileFact]) -> Manifest:
            return replace(self.manifest, number=number, files=files)

        checkpoint = None
        if self.parallel is not None:
            checkpoint = self.parallel.write(self.contents, describe, self._check, self.keep)
        elif self.ranks.rank == 0:
            checkpoint = commit(
                self.series, self.contents, describe, check=self._check, keep=self.keep
            )
        return "" if checkpoint is None else str(checkpoint.path)

    def _check(self, folder: Path, files: Mapping[str, FileFact]) -> None:
        """Raise CheckpointError if a written folder cannot be loaded, or has other names."""
        try:
            found = outline_of(read_snapshot(folder, files))
        except CheckpointError as error:
            raise CheckpointError(
                f"what was saved cannot be loaded, so it was removed. Earlier checkpoints are "
                f"unchanged. {error}"
            ) from error
        for what, names in self.expected.items():
            if found.get(what) != names:
                odd = sorted({*names.items()} ^ {*found.get(what, {}).items()}, key=str)
                raise CheckpointError(
                    f"what was saved of {what} would be loaded differently, so it was removed. "
                    f"Earlier checkpoints are unchanged. The first difference is {odd[:1]}"
                )

    def read_to_the_end(self) -> None:
        """Read the rest of the contents, to take part in the collectives.

        Raises:
            Exception: this rank or another rank cannot gather a tensor.
        """
        if self.gather.failed is not None:
            raise self.gather.failed
        if self.parallel is None:
            for parts in self.contents.values():
                for _ in parts:
                    pass


@dataclass(frozen=True)
class State:
    """What to save; the attributes are the arguments of `anyrig.save`."""

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
    ranks: Ranks,
    path: str | os.PathLike[str],
    keep: int | None,
    state: State,
    to_host: Callable[[Tensor], Tensor],
    sharded: bool | None,
) -> PreparedSave:
    """Check a state on all ranks, and return the save, which can then be written.

    Args:
        ranks: the ranks that save together.
        path: the folder of the series.
        keep: as for `anyrig.save`.
        state: what to save.
        to_host: returns a whole tensor, or the part that this rank writes, in the host's memory.
        sharded: as for `anyrig.save`.

    Raises:
        CheckpointError: a value or an object cannot be saved.
        OtherRankError: another rank failed.
        RankWaitError: another rank did not arrive in time.
    """
    series = Series(Path())
    failed: BaseException | None = None
    at_step: int | None = None
    measured: float | None = None
    snapshot = Snapshot()
    contents: dict[str, Parts] = {}
    facts: dict[str, Any] = {}
    modules: dict[str, nn.Module] = {}
    described = ""
    is_parallel = False
    try:
        series = Series(absolute_path(path))
        facts["path"] = str(series.folder)
        at_step, measured, keep = _check(state.step, state.metric, state.best, keep)
        optimizers = by_key("optimizer", state.optimizer)
        others = named_states(scheduler=state.scheduler, scaler=state.scaler, loader=state.loader)
        modules, given, plain = divide_values(state.model, state.values)
        require_distinct(given, {*others, EXACT})
        snapshot = capture(modules, optimizers, others | given)
        require_savable(snapshot, [name for name in (*modules, *given) if name in state.values])
        described = describe_pipelines(snapshot)
        exact = exact_state_of(state.model)
        states = snapshot.states if exact is None else {**snapshot.states, EXACT: exact.as_state()}
        snapshot = replace(snapshot, states=states, given={**plain, "step": at_step})
        random = encode_as_text(read_random_state())
    except Exception as error:
        failed, random = error, ""
    told = [json.loads(text) for text in ranks.gather(json.dumps([random, described]))]
    gather = Gather(ranks, to_host)
    if failed is None:
        snapshot = replace(snapshot, random=[{"state": random} for random, _ in told])
        try:
            snapshot = complete_pipelines(snapshot, modules, [each[1] for each in told], ranks.rank)
            is_parallel = _all_write(ranks, sharded, snapshot)
            facts |= {"step": at_step, "sharded": sharded}
            facts |= _describe_tensors(snapshot, is_parallel)
            contents = contents_of_snapshot(
                snapshot,
                Writing(
                    ranks.rank,
                    gather if is_parallel or ranks.rank == 0 else gather.take_part,
                    Division(ranks.rank, ranks.count) if is_parallel else None,
                    replicated_names(modules, snapshot) if is_parallel else {},
                ),
            )
        except Exception as error:
            failed = error
    ranks.agree(facts, failed)
    parallel = ParallelCommit(ranks, series) if is_parallel else None

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
    expected = outline_of(snapshot) if ranks.rank == 0 else {}
    return PreparedSave(ranks, series, contents, manifest, keep, gather, parallel, expected)


def named_states(saved: Collection[str] = (), /, **given: Any) -> dict[str, Any]:
    """Return objects by name; several of one kind are named ``scheduler.<key>``.

    Args:
        saved: the names in the checkpoint that will be loaded.
        given: the objects.
    """
    found: dict[str, Any] = {}
    for what, value in given.items():
        keys = {name.removeprefix(f"{what}.") for name in saved}
        objects = _single(value) if what == "loader" else by_key(what, value, keys)
        found |= {f"{what}.{key}" if key else what: each for key, each in objects.items()}
    return found


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
) -> tuple[int | None, float | None, int | None]:
    """Return step, metric and keep as plain numbers."""
    count = None if keep is None else _whole("keep", keep)
    if count is not None and count < 1:
        raise CheckpointError(f"keep is the number of checkpoints to keep, at least 1; got {keep}")
    if best not in (None, "max", "min"):
        raise CheckpointError(f"best must be 'max' or 'min'; got {best!r}")
    if (metric is None) != (best is None):
        raise CheckpointError(
            f"metric={metric!r} and best={best!r} go together: give the metric, and whether its "
            "best value is the 'max' or the 'min'"
        )
    measured = None if metric is None else _measured(metric)
    if measured is not None and math.isnan(measured):
        raise CheckpointError(
            "metric is not a number (NaN), so no checkpoint is better or worse; leave metric= and "
            "best= out of this save"
        )
    number = None if step is None else _whole("step", step)
    if number is not None and not 0 <= number <= LARGEST_STEP:
        is_below = number < 0
        raise CheckpointError(
            f"step must not be below 0; got {number}" if is_below else "step must be below 2**63"
        )
    return number, measured, count


def _whole(name: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise CheckpointError(f"{name} must be a whole number; got {value!r:.80}") from None


def _measured(metric: Any) -> float:
    try:
        if isinstance(metric, (str, bytes)):
            raise TypeError
        return float(metric)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # torch: several elements
        raise CheckpointError(f"metric must be a number of float64; got {metric!r:.80}") from None


def _all_write(ranks: Ranks, sharded: bool | None, snapshot: Snapshot) -> bool:
    """Return whether every rank writes a part of the checkpoint, or rank 0 all of it."""
    if ranks.count == 1 or sharded is False:
        return False
    in_shards = {
        f"{stem}: {name}": tensor
        for stem, tensors in captured_tensors(snapshot).items()
        for name, tensor in tensors.items()
        if is_sharded(tensor)
    }
    odd = [name for name, tensor in in_shards.items() if not has_one_region(tensor)]
    if sharded and odd:
        raise CheckpointError(
            f"sharded=True writes one region of a tensor from each rank, and a rank has several "
            f"regions of {odd[0]}, as with FSDP2 on top of tensor parallelism. Leave out sharded=: "
            "rank 0 then gathers and writes the tensors"
        )
    return bool(sharded) or (bool(in_shards) and not odd)


def _describe_tensors(snapshot: Snapshot, is_parallel: bool) -> dict[str, Any]:
    """Return what must be equal on all ranks, which gather or divide the tensors together."""
    named = [
        (stem, name, str(tensor.dtype), tuple(tensor.shape), is_sharded(tensor))
        for stem, tensors in captured_tensors(snapshot).items()
        for name, tensor in tensors.items()
    ]
    if not is_parallel:
        return {"shards": sum(each[-1] for each in named)}
    digest = hashlib.sha256(repr(named).encode()).hexdigest()[:8]
    return {"tensors": f"{len(named)} (names, types and shapes have the hash {digest})"}


def _describe_layout(model: nn.Module | None, ranks: int) -> str:
    engine = engine_of(model)
    if engine is not None:
        layout = engine.layout
        over = f"over {ranks} ranks" if layout.group else f"over {len(layout.devices)} devices"
        return "one device" if layout.way == "alone" else f"{layout.way} {over}"
    kind = "no model" if model is None else type(model).__name__
    return f"{kind}, {ranks} ranks" if ranks > 1 else f"{kind}, one process"
