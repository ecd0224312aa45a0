"""Importing anyrig does nothing and is fast."""

import json
import subprocess
import sys

IMPORT = """
import sys, time
before = set(sys.modules)
started = time.process_time()
import anyrig
seconds = time.process_time() - started
import json
print(json.dumps({"seconds": seconds, "modules": sorted(set(sys.modules) - before)}))
"""


def import_once() -> dict:
    command = [sys.executable, "-c", IMPORT]
    return json.loads(subprocess.run(command, capture_output=True, check=True, timeout=60).stdout)


def test_import_loads_nothing_that_takes_long() -> None:
    heavy = {"torch", "rich", "typer", "numpy", "psutil", "pynvml", "typing"}
    assert heavy.isdisjoint(import_once()["modules"])


def test_import_takes_under_50_ms() -> None:
    # Of the processor, and the best of several: a busy machine makes runs slow, never fast.
    assert min(import_once()["seconds"] for _ in range(5)) < 0.050
