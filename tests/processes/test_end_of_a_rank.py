"""`end_process` and `end_launcher` do what a program expects at its end."""

from __future__ import annotations

import gzip
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import atexit, gzip, io, sys, threading, time
from anyrig.processes.torch_faults import end_launcher, end_process

folder, way, status = sys.argv[1:]
text = open(f"{folder}/text", "w")
text.write("lines")
held = open(f"{folder}/bytes", "wb")
held.write(b"bytes")
packed = gzip.open(f"{folder}/packed", "wt")
packed.write("packed")
closed = open(f"{folder}/closed", "w")
closed.close()
sys.stdout.write("out")
sys.stderr = io.TextIOWrapper(open(f"{folder}/err", "wb"))
sys.stderr.write("err")
atexit.register(lambda: sys.stdout.write(" handler"))

def late():
    time.sleep(0.2)
    sys.stdout.write(" thread")

thread = threading.Thread(target=late, daemon=way != "process")
thread.start()
(end_process if way == "process" else end_launcher)(int(status))
"""


@pytest.mark.parametrize(
    ("way", "status", "code"),
    [
        ("process", 3, 3),
        ("process", -1, 255),
        ("process", 128 + signal.SIGINT, -signal.SIGINT),  # a shell ends its script then
        ("launcher", 259, 3),
        ("launcher", 0, 0),
    ],
)
def test_buffered_output_is_written_and_the_status_kept(
    way: str, status: int, code: int, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), way, str(status)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == code, ended.stderr
    assert (tmp_path / "err").read_text() == "err"
    if way == "launcher":
        assert ended.stdout == "out handler"
        return
    assert ended.stdout == "out thread handler"
    assert (tmp_path / "text").read_text() == "lines"
    assert (tmp_path / "bytes").read_bytes() == b"bytes"
    assert gzip.decompress((tmp_path / "packed").read_bytes()) == b"packed"
