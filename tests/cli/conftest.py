"""Arguments and checkpoints for tests of `anyrig checkpoint`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import typer.rich_utils
from checkpoint_command import save_step


@pytest.fixture
def own_arguments(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(typer.rich_utils, "MAX_WIDTH", 1000)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def series(tmp_path: Path) -> Path:
    for step, metric in ((100, 0.9), (200, 0.8), (300, None)):
        save_step(tmp_path / "runs", step, metric)
    return tmp_path / "runs"
