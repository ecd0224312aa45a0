"""Runs the programs of `failing_programs` and prints the first line of each report as JSON."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import time

import failing_programs
import torch

from anyrig.memory import explain_oom
from anyrig.virtual import install

PROGRAMS = {
    "large_batch": failing_programs.large_batch,
    "large_activations": failing_programs.large_activations,
    "large_optimizer_state": failing_programs.large_optimizer_state,
    "cache_list": failing_programs.cache_list,
    "kept_batches": failing_programs.kept_batches,
    "kept_losses": failing_programs.kept_losses,
    "kept_outputs": failing_programs.kept_outputs,
    "fragmentation": failing_programs.fragmentation,
    "another_process": failing_programs.another_process,
    "evaluation_with_gradients": failing_programs.evaluation_with_gradients,
    "growing_recurrent_state": failing_programs.growing_recurrent_state,
}
HOLD = """
import sys, torch
x = torch.empty(800 * 2**20, dtype=torch.uint8, device="cuda:0")
sys.stdin.read()
"""


def report_of(name: str) -> str:
    try:
        with explain_oom():
            PROGRAMS[name]()
    except torch.OutOfMemoryError as error:
        return str(error.report)
    return "it did not run out of memory"


def free_memory() -> None:
    """Leave nothing of a program in the GPU's memory."""
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()  # which PyTorch keeps until 2.14
    torch.cuda.empty_cache()


def main() -> None:
    install("1GiB", shape_only=True)
    gc.freeze()  # otherwise each collection visits all of PyTorch's modules
    reports = {}
    for name in PROGRAMS:
        if name == "another_process":
            other = subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE)
            while torch.cuda.mem_get_info()[0] > 300 * 2**20:
                assert other.poll() is None
                time.sleep(0.05)
        reports[name] = report_of(name)
        if name == "another_process":
            other.communicate()
        free_memory()
    print(json.dumps(reports))


if __name__ == "__main__":
    main()
