"""Runs PyTorch's examples of distributed training, unchanged, on a virtual rig, again and again.

By hand, with a copy of github.com/pytorch/examples:

    python tests/virtual/repeat_examples.py FOLDER [NAME ...] [--runs 50] [--shape-only]

Each run has a time limit and a folder. A run that does not exit with 0 is reported with the end of
its output and, if it hung, the stack of each of its processes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

LIMIT_SECONDS = 120
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=RANKS")

# The folder below `distributed`, and the arguments after `anyrig rehearse --rig RIG`.
EXAMPLES: dict[str, tuple[str, tuple[str, ...]]] = {
    "multigpu": ("ddp-tutorial-series", ("multigpu.py", "2", "1")),
    "multigpu_torchrun": ("ddp-tutorial-series", (*TORCHRUN, "multigpu_torchrun.py", "2", "1")),
    "ddp": ("ddp", (*TORCHRUN, "example.py")),
    "FSDP2": ("FSDP2", (*TORCHRUN, "example.py")),
    "tensor_parallel": ("tensor_parallelism", (*TORCHRUN, "tensor_parallel_example.py")),
    "sequence_parallel": ("tensor_parallelism", (*TORCHRUN, "sequence_parallel_example.py")),
    "fsdp_tp": ("tensor_parallelism", (*TORCHRUN, "fsdp_tp_example.py")),
}


def run(example: str, folder: Path, rig: str, ranks: int, flags: list[str]) -> tuple[str, float]:
    """Run one example once; return its failure (empty if none) and its seconds."""
    place, words = EXAMPLES[example]
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch) / place
        shutil.copytree(folder / "distributed" / place, work)
        start = time.monotonic()
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "anyrig", "rehearse", "--rig", rig, *flags),
                *(word.replace("RANKS", str(ranks)) for word in words),
            ],
            cwd=work,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        fault = ""
        try:
            output, _ = process.communicate(timeout=LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            fault = f"not done after {LIMIT_SECONDS} s\n"
            output = _last_words(process)
        seconds = time.monotonic() - start
        if process.returncode != 0:
            fault += f"exit code {process.returncode}\n{output[-6000:]}"
        return fault, seconds


def _last_words(process: subprocess.Popen[str]) -> str:
    """Make each process print its stack, and end all of them."""
    started = [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
    for each in started:
        each.send_signal(signal.SIGABRT)
        time.sleep(0.5)
    for each in started:
        if each.is_running():
            each.kill()
    output, _ = process.communicate(timeout=30)
    return output


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--rig", default="2x4GiB")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--shape-only", action="store_const", const=["--shape-only"], default=[])
    parser.add_argument(
        "--assume-values", action="store_const", const=["--assume-values"], default=[]
    )
    given = parser.parse_args()
    faults: dict[str, list[str]] = {}
    for name in given.names or EXAMPLES:
        seconds = []
        for index in range(given.runs):
            flags = given.shape_only + given.assume_values
            fault, took = run(name, given.folder, given.rig, given.ranks, flags)
            seconds.append(took)
            if fault:
                faults.setdefault(name, []).append(fault)
                print(f"{name}, run {index + 1}: {fault}", flush=True)
        good = given.runs - len(faults.get(name, []))
        result = {"example": name, "runs": given.runs, "ended well": good}
        print(json.dumps({**result, "seconds": round(sum(seconds) / len(seconds), 1)}), flush=True)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
