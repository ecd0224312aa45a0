"""`anyrig.save`: save the state of a training run as a new checkpoint of a series."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from ..errors import RankWaitError
from ..private_names import refuse_missing
from .over_ranks import Ranks
from .prepared_save import State, prepare_save
from .shards import whole_on_host


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
    sharded: bool | None = None,
    timeout_seconds: float | None = None,
    **values: Any,
) -> Path:
    """Save the state of a training run as a new checkpoint, and return the checkpoint's folder.

    ::

        anyrig.save("runs/a", model=model, optimizer=optimizer, loader=loader, step=step, keep=3)

    `path` is the folder of a *series* of checkpoints. Wherever the process or the machine stops,
    the series has the whole new checkpoint or is unchanged. The random numbers of Python, NumPy and
    PyTorch are saved, too.

    On several ranks, every rank must call this function. If the model is in shards, every rank
    writes its own shards to a folder that all nodes share; otherwise rank 0 writes, and the others
    wait.

    Args:
        path: the folder of the series; it is created if necessary.
        model: a module, plain or wrapped by `anyrig.spread`, DDP or FSDP2. The saved names and
            tensors do not depend on the wrapper.
        optimizer: one optimizer, or several in a dict or a list.
        scheduler: one scheduler, or several in a dict or a list; likewise `scaler`.
        scaler: a `GradScaler`.
        loader: what `anyrig.distribute` returned, or another loader with ``state_dict()``: its
            position is saved, so that no sample is skipped or seen twice.
        step: the step of the training run, counted by the caller.
        metric: the metric of the checkpoint, for ``load(which="best")``.
        best: whether the best metric is the ``"max"`` or the ``"min"``.
        keep: keep the newest `keep` checkpoints of the series and the best one, and remove the
            others; None keeps all.
        sharded: whether every rank writes a part of the checkpoint. None: only for a model in
            shards. True: also divide the parameters of a model under DDP. False: rank 0 gathers
            shards one tensor at a time.
        timeout_seconds: how long to wait for other ranks; None for the launcher's ``--timeout``,
            else ten minutes.
        values: what else to save: another module, another object with ``state_dict()``, or numbers,
            strings, tensors, and lists, tuples and dicts of these.

    Raises:
        CheckpointError: a value or an object cannot be saved, or a file cannot be written; the
            message names it. Earlier checkpoints are unchanged.
        OtherRankError: another rank failed in this call.
        RankWaitError: another rank did not arrive in time.
    """
    refuse_missing("checkpoint")
    ranks = Ranks("anyrig.save()", timeout_seconds)
    state = State(model, optimizer, scheduler, scaler, loader, step, metric, best, values)
    prepared = prepare_save(ranks, path, keep, state, whole_on_host, sharded)
    prepared.begin()
    folder, failed = "", None
    try:
        folder = prepared.write()
    except RankWaitError:  # another rank has not written; no rank may wait again
        raise
    except Exception as error:
        failed = error
    # Every rank takes part in the collectives of all tensors, even if rank 0 cannot write.
    prepared.read_to_the_end()
    return Path(ranks.agree({}, failed, folder)[0])
