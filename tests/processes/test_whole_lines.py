"""A rank's output is shown in whole lines, even if it prints them slowly."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

RANK = """
import os, sys, time

class Slow:
    def __str__(self):
        time.sleep(0.3)
        return "word"

print(os.environ["RANK"], Slow(), Slow())
print(os.environ["RANK"], Slow(), file=sys.stderr)
print("killed", end="", flush=True)
os._exit(0)
"""


def test_a_line_printed_slowly_stays_whole(tmp_path: Path) -> None:
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    run = ["run", "--device", "cpu", "--nproc-per-device", "2", str(script)]
    ended = subprocess.run(
        [sys.executable, "-m", "anyrig", *run], capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 0, ended.stderr
    shown = ended.stdout.replace("[rank", "\n[rank").split("\n")
    for rank in range(2):
        assert f"[rank {rank}] {rank} word word" in shown
        assert f"[rank {rank}] killed" in shown
        assert f"[rank {rank}] {rank} word" in ended.stderr.splitlines()
