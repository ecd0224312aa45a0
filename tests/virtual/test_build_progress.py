"""What a person sees of a build: a bar on a terminal, else a line."""

from __future__ import annotations

import pytest

from anyrig.virtual.build_progress import BuildProgress


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")


def test_a_line_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with BuildProgress("g++ 12.2", 3) as progress:
        progress.advance()
    with BuildProgress.waiting_for("process 7 on host"):
        pass
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == (
        "anyrig: building the virtual GPUs, once for this PyTorch, with g++ 12.2\n"
        "anyrig: waiting for the virtual GPUs, which process 7 on host is building\n"
    )


@pytest.mark.usefixtures("terminal")
def test_a_bar_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with BuildProgress("g++ 12.2", 3) as progress:
        for _ in range(3):
            progress.advance()
    said = capsys.readouterr()
    assert said.out == ""
    assert "Building the virtual GPUs, once for this PyTorch" in said.err
    assert "3/3" in said.err
    assert "anyrig:" not in said.err
    assert said.err.endswith("\x1b[2K")  # taken off the screen


@pytest.mark.usefixtures("terminal")
def test_a_wait_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with BuildProgress.waiting_for("process 7 on host"):
        pass
    said = capsys.readouterr()
    assert said.out == ""
    assert "waiting for the virtual GPUs, which process 7 on host is building" in said.err
    assert "anyrig:" not in said.err
