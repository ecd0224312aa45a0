"""Notes on an exception that a stage raised."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ....transfer.tree import format_path, list_leaves
from ...notes import add_note
from .stage import Stage


@contextmanager
def explain_failure(
    stage: Stage,
    stages: Sequence[Stage],
    micro_batch: int,
    micro_batches: int,
    values: Mapping[str, Any] | None,
) -> Iterator[None]:
    """Add a note to an exception: the stage that raised it, its micro-batch and its input values.

    `values` is None in the backward pass.
    """
    try:
        yield
    except Exception as error:
        names = [block.name for block in stage.blocks]
        blocks = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
        add_note(
            error,
            f"in stage {stage.index} of 0 to {len(stages) - 1} ({blocks}) on {stage.device}, "
            f"micro-batch {micro_batch} of 0 to {micro_batches - 1}, "
            + ("backward" if values is None else f"which was given {_describe(values)}"),
        )
        raise


def _describe(values: Mapping[str, Any]) -> str:
    found = [
        f"{name}{'' if len(path) == 1 else format_path(path[1:])} "
        f"{'nested' if leaf.is_nested else tuple(leaf.shape)} "
        f"{str(leaf.dtype).removeprefix('torch.')}"
        for leaf, path in list_leaves(dict(values))
        if isinstance(leaf, torch.Tensor)
        for name in [path[0][1]]
    ]
    return ", ".join(found) or "no tensors"
