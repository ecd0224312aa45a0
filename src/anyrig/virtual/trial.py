"""A trial of the library that was built for a PyTorch newer than the tested versions.

The library uses private parts of PyTorch. A part whose meaning has changed may still compile, and
then crash the process. So a separate process runs a small program first.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from ..errors import BuildError
from .inheritance import VARIABLE

# The gradient of the sum of `x @ x` is 4 + 4 for each of the 16 elements.
_PROGRAM = """
import pathlib, sys, torch
from anyrig.virtual.build import load_library
load_library(pathlib.Path(sys.argv[1]))
from anyrig.virtual import install
install("1x1GiB", children=False)
x = torch.ones(4, 4, device="cuda", requires_grad=True)
(x @ x).sum().backward()
assert x.grad.tolist() == 4 * [4 * [8.0]], x.grad
"""

_LIMIT_SECONDS = 120.0


class UndecidedTrialError(BuildError):
    """The trial took too long, for example on a busy machine: it may succeed another time."""


def try_library(library: Path, limit_seconds: float = _LIMIT_SECONDS) -> None:
    """Run a small program on a virtual GPU of `library`, in a separate process.

    Raises:
        UndecidedTrialError: the program has not ended within `limit_seconds`.
        BuildError: the program fails or crashes.
    """
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    command = [sys.executable, "-c", _PROGRAM, str(library)]
    try:
        done = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            timeout=limit_seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UndecidedTrialError(
            f"a trial of the virtual backend, which PyTorch {_torch_version()} needs because it is "
            f"newer than the versions with which the backend was tried, did not end within "
            f"{limit_seconds:.0f} s; run the program again when the machine is less busy"
        ) from None
    if done.returncode < 0:
        raise BuildError(_refusal(f"was ended by {signal.Signals(-done.returncode).name}"))
    if done.returncode > 0:
        last_line = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise BuildError(_refusal(f"failed: {last_line}"))


def _torch_version() -> str:
    import torch

    return str(torch.__version__)


def _refusal(outcome: str) -> str:
    return (
        f"virtual GPUs cannot work with PyTorch {_torch_version()}, which is newer than the "
        f"versions with which they were tried: a trial program {outcome}; install an older PyTorch "
        "or a newer anyrig, or try again with: anyrig virtual build --again"
    )
