"""`anyrig.resume`: continue from the latest checkpoint, or begin."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from ..errors import CheckpointError
from .exactness import require_exact
from .given_path import absolute_path
from .load import Loaded, load, targets_of
from .over_ranks import Ranks
from .prepared_save import named_states
from .series import Series, is_checkpoint_folder


def resume(
    path: str | os.PathLike[str],
    *,
    model: nn.Module | None = None,
    optimizer: Optimizer | Mapping[str, Optimizer] | Sequence[Optimizer] | None = None,
    scheduler: Any = None,
    scaler: Any = None,
    loader: Any = None,
    exact: bool = False,
    convert_dtypes: bool = False,
    verify: bool = True,
    timeout_seconds: float | None = None,
    **objects: Any,
) -> Loaded | None:
    """Load the latest checkpoint of a series; return None if the series has none yet.

    ::

        found = anyrig.resume("runs/a", model=model, optimizer=optimizer, loader=loader)
        step = 0 if found is None else found.step + 1

    If a script calls `resume`, ``anyrig run --max-restarts 3 train.py`` continues after a failure,
    and a second start of the same command continues where the first one stopped.

    On several ranks, every rank must call this function.

    Args:
        path: the folder of the series, as given to `anyrig.save`; it need not exist.
        model: as for `anyrig.load`; so are the arguments below that say "see `model`".
        optimizer: see `model`.
        scheduler: see `model`.
        scaler: see `model`.
        loader: see `model`.
        exact: continue with the same bits on another number of ranks, or raise CheckpointError with
            the reason, even if there is no checkpoint yet.
        convert_dtypes: see `model`.
        verify: see `model`.
        timeout_seconds: see `model`.
        objects: see `model`.

    Raises:
        CheckpointError: as for `anyrig.load`; also if `path` is a single checkpoint.
        CheckpointDamagedError: the series has checkpoints, and all are damaged.
        KeyMismatchError: the tensors do not match those of the model or the optimizer.
        OtherRankError: another rank failed in this call.
        RankWaitError: another rank did not arrive in time.
    """
    ranks = Ranks("anyrig.resume()", timeout_seconds)
    failed: BaseException | None = None
    folder, count = Path(), ""
    try:
        folder = absolute_path(path)
        if exact:
            named = named_states(scheduler=scheduler, scaler=scaler, loader=loader)
            require_exact(targets_of(model, optimizer, objects, named))
        if ranks.rank == 0:  # looks for all ranks
            count = str(_count_checkpoints(folder))
    except Exception as error:
        failed = error
    if ranks.agree({"path": str(folder)}, failed, count)[0] == "0":
        return None
    return load(
        folder,
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        scaler=scaler,
        loader=loader,
        exact=exact,
        convert_dtypes=convert_dtypes,
        verify=verify,
        timeout_seconds=timeout_seconds,
        **objects,
    )


def _count_checkpoints(folder: Path) -> int:
    if is_checkpoint_folder(folder):
        raise CheckpointError(
            f"{folder} is a single checkpoint. Give resume() the folder of the series, "
            f"{folder.parent}, or load this one with anyrig.load"
        )
    return len(Series(folder).folders()) if os.path.lexists(folder) else 0
