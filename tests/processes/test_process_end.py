"""`end_process`, `end_rank` and `end_launcher` do what a program expects at its end."""

from __future__ import annotations

import gzip
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import atexit, ctypes, gzip, io, sys, threading, time
from anyrig.process_end import end_process
from anyrig.processes.torch_faults import end_launcher, end_rank

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

thread = threading.Thread(target=late, daemon=way == "launcher")
thread.start()
if way != "launcher":
    ctypes.CDLL(None).printf(b" C")  # buffered: standard output is a pipe
{"process": end_process, "rank": end_rank, "launcher": end_launcher}[way](int(status))
"""


@pytest.mark.parametrize(
    ("way", "status", "code"),
    [
        ("process", 3, 3),
        ("process", 128 + signal.SIGINT, 128 + signal.SIGINT),
        ("rank", 3, 3),
        ("rank", -1, 255),
        ("rank", 128 + signal.SIGINT, -signal.SIGINT),  # a shell ends its script then
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
    assert ended.stdout == "out thread handler C"
    assert (tmp_path / "text").read_text() == "lines"
    assert (tmp_path / "bytes").read_bytes() == b"bytes"
    assert gzip.decompress((tmp_path / "packed").read_bytes()) == b"packed"


WAITING = """
import sys, threading, time
from anyrig.process_end import end_process

threading.Thread(target=time.sleep, args=[60]).start()
threading._shutdown = lambda wait=threading._shutdown: (print("waiting", flush=True), wait())
end_process(0)
"""


def test_ctrl_c_ends_the_wait_for_threads_without_a_traceback() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WAITING], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, "")
