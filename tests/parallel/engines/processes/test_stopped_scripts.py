"""A script that is killed or interrupted, at any moment, leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from forked_programs import run_forked

PROGRAM = Path(__file__).with_name("stopped_scripts.py")
# Two seconds are promised; on a busy machine, a worker that is being started may take longer.
MOST_SECONDS = 20.0
SCRIPTS = [
    ("SIGKILL", -9, 2),
    ("SIGINT", 0, 1),
    pytest.param("SIGKILL", -9, 30, marks=pytest.mark.sweep),
    pytest.param("SIGINT", 0, 30, marks=pytest.mark.sweep),
]


@pytest.mark.parametrize(("signal", "status", "times"), SCRIPTS)
def test_a_stopped_script_leaves_nothing(
    signal: str, status: int, times: int, tmp_path: Path
) -> None:
    """An interrupted script goes on to train, and ends by itself with status 0."""
    words = (str(PROGRAM), signal, str(times), "1", str(tmp_path))
    done = run_forked(*words, timeout=300 + 60 * times)
    assert done.returncode == 0, done.stderr
    found = [line.split() for line in done.stdout.splitlines()]
    assert [int(each) for each, _, _ in found] == [status] * times, done.stderr
    # The fork server, and a worker once it is forked.
    assert all(1 <= int(started) <= 2 for _, started, _ in found)
    assert all(float(seconds) < MOST_SECONDS for _, _, seconds in found)
