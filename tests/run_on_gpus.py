"""Run the tests of GPUs on this machine's own: ``make test-gpu``.

They are the tests marked ``gpus`` and, with ``ANYRIG_TEST_RIG=own``, those of `virtual/on_rig`,
which state what real GPUs do. Each file runs in a process of its own, because a failed kernel
leaves CUDA unusable for a process and a file may count on an empty GPU. Several files run at a
time; the tests marked ``whole_gpu`` run last, one file after another.

Each file's output, and its results as JUnit XML, are in the folder RESULTS. ANYRIG_TEST_RIG may
also name a virtual rig, to try this program on a machine without a GPU.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

TESTS = Path(__file__).parent
ON_RIG = TESTS / "virtual/on_rig"
RIG_NAME, OWN = "ANYRIG_TEST_RIG", "own"
RIG = os.environ.get(RIG_NAME, OWN)
ASKS_NVML = "PYTORCH_NVML_BASED_CUDA_CHECK"  # a process that starts CUDA's driver cannot be forked
NO_TESTS = 5  # pytest's status if no test is selected
PASSED = (0, NO_TESTS)


def main() -> int | str:
    parser = argparse.ArgumentParser(description="Run the tests of GPUs on this machine's own.")
    parser.add_argument("--processes", type=int, default=4, help="files that run at a time")
    parser.add_argument("--seconds", type=float, default=300, help="limit for one file")
    parser.add_argument("--results", type=Path, default=Path("build/gpu"), help="folder")
    parser.add_argument("files", type=Path, nargs="*", help="files of tests; by default all")
    chosen = parser.parse_args()
    if RIG == OWN and not torch.cuda.is_available():
        return f"no CUDA device works here; to try this on virtual GPUs, set {RIG_NAME}=H100-SXM"
    chosen.results.mkdir(parents=True, exist_ok=True)
    files = [file.resolve() for file in chosen.files] or [*on_rig(), *of_gpus()]
    alone = [file for file in files if "mark.whole_gpu" in file.read_text()]

    def run(file: Path, is_alone: bool = False) -> bool:
        return run_file(file, is_alone, chosen.results, chosen.seconds)

    with ThreadPoolExecutor(chosen.processes) as threads:
        passed = [*threads.map(run, files)]
    passed += [run(file, is_alone=True) for file in alone]
    print(f"{passed.count(False)} of {len(passed)} runs failed; see {chosen.results}", flush=True)
    return int(not all(passed))


def on_rig() -> list[Path]:
    return sorted(ON_RIG.glob("test_*.py"))


def of_gpus() -> list[Path]:
    """Return the files outside `on_rig` that have tests marked ``gpus``."""
    files = (file for file in TESTS.rglob("test_*.py") if ON_RIG not in file.parents)
    return sorted(file for file in files if "mark.gpus" in file.read_text())


def run_file(file: Path, is_alone: bool, results: Path, limit_seconds: float) -> bool:
    """Run a file's tests that need a whole GPU, or its others; return whether all passed."""
    which = "whole_gpu" if is_alone else "not whole_gpu"
    if ON_RIG not in file.parents:
        which = f"gpus and {which}"
    name = ".".join(file.relative_to(TESTS).with_suffix("").parts) + (".alone" if is_alone else "")
    words = ["-q", "-p", "no:cacheprovider", "-o", "faulthandler_timeout=60"]
    words += ["-m", f"{which} and not sweep", f"--junitxml={results / name}.xml", str(file)]
    if RIG != OWN and ON_RIG not in file.parents:
        words += ["--rig", RIG]
    output, start = results / f"{name}.txt", time.monotonic()
    with output.open("wb") as written:
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *words],
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=subprocess.STDOUT,
            env={**os.environ, RIG_NAME: RIG, ASKS_NVML: "1"},
            start_new_session=True,
        )
        try:
            status = process.wait(limit_seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            status = process.wait()
            written.write(f"\nkilled after {limit_seconds:g} s\n".encode())
    lines = output.read_text(errors="replace").splitlines() or [""]
    ended = "" if status in PASSED else f" (status {status})"
    print(f"{time.monotonic() - start:6.1f} s  {name}: {lines[-1]}{ended}", flush=True)
    return status in PASSED


if __name__ == "__main__":
    sys.exit(main())
