"""`anyrig checkpoint` in this process, and checkpoints to call it with."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

from anyrig.checkpoint.commit import commit
from anyrig.checkpoint.manifest import FileFact, Manifest
from anyrig.checkpoint.random_state import read_random_state
from anyrig.checkpoint.series import Series
from anyrig.checkpoint.values_file import encode_as_text, encode_values
from anyrig.cli.app import main


def anyrig(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    """Call the command in this process; return its exit status, output and error output."""
    sys.argv = ["anyrig", "checkpoint", *map(str, words)]
    try:
        main()
        status = 0
    except SystemExit as ended:
        status = int(ended.code or 0)
    written = capsys.readouterr()
    assert "Traceback" not in written.err
    return status, written.out, written.err


def values_of(step: int) -> dict[str, Any]:
    """Return the values of one process without an optimizer."""
    nothing: dict[str, Any] = {name: {} for name in ("optimizers", "states")}
    random = [{"state": encode_as_text(read_random_state())}]
    return {"modules": {"model": {}}, **nothing, "given": {"step": step}, "random": random}


def save_step(series: Path, step: int, metric: float | None = None, **tensors: object) -> Path:
    weights = {"weight": torch.full((2, 3), float(step)), "bias": torch.zeros(3), **tensors}
    contents = {
        "model.safetensors": [save(weights)],
        "optimizer.safetensors": [save({"weight.exp_avg": torch.full((2, 3), step / 10)})],
        "values.pt": [encode_values(values_of(step))],
    }

    def describe(number: int, files: dict[str, FileFact]) -> Manifest:
        best = None if metric is None else "max"
        return Manifest(number, step, metric, best, "one process", 1, time.time(), {}, files)

    return commit(Series(series), contents, describe).path


def flip(path: Path, position: int = -1) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)
