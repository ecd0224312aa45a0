"""A rank's output is shown in whole lines, even if it prints them slowly."""

from __future__ import annotations

from pathlib import Path

from forked_programs import run_anyrig

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
    flags = ("--device", "cpu", "--nproc-per-device", "2")
    ended = run_anyrig("run", *flags, str(script), timeout=60)
    assert ended.returncode == 0, ended.stderr
    shown = ended.stdout.replace("[rank", "\n[rank").split("\n")
    for rank in range(2):
        assert f"[rank {rank}] {rank} word word" in shown
        assert f"[rank {rank}] killed" in shown
        assert f"[rank {rank}] {rank} word" in ended.stderr.splitlines()
