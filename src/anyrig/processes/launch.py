"""Call a function in one rank per device, from Python or a notebook."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from ..devices.environment import environments_of_ranks
from ..devices.place import Places, as_rig
from ..devices.rig import Rig
from ..errors import LaunchError
from .call import read_result, write_call
from .failure import GroupFailure
from .launcher import run_group
from .options import RunOptions

Result = TypeVar("Result")


def launch(
    function: Callable[..., Result],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    rig: Places | None = None,
    nproc_per_device: int = 1,
    nnodes: str = "1",
    rdzv_endpoint: str | None = None,
    max_restarts: int = 0,
    timeout_seconds: float | None = None,
    log_dir: Path | str | None = None,
) -> Result:
    """Call `function` in one new process per device, and return the result of rank 0.

    Each process has torchrun's environment (RANK, WORLD_SIZE, LOCAL_RANK …) and sees only the
    devices of `rig`. A function that cannot be imported, such as a function of a notebook or of a
    script without ``if __name__ == "__main__":``, is sent by value. This process may already have
    initialized CUDA. Tensors in the arguments and in the result arrive on the CPU.

    Args:
        function: the function that every rank calls.
        args: its positional arguments.
        kwargs: its keyword arguments.
        rig: the devices of this node; None for every accelerator, else the CPU.
        nproc_per_device: the number of ranks on each device.
        nnodes: the number of nodes, as in `anyrig run`; call `launch` on each node.
        rdzv_endpoint: the rendezvous of several nodes, ``"host:port"``.
        max_restarts: the maximum number of restarts after a failure.
        timeout_seconds: the default timeout of collectives; None for PyTorch's.
        log_dir: the folder for each rank's output.

    Returns:
        the result of rank 0; None if rank 0 is on another node.

    Raises:
        LaunchError: a rank raised, was killed or left early; the message names the rank and has
            its traceback. Or the call or the result cannot be pickled, or this process is itself a
            rank of a group.
        KeyboardInterrupt: Ctrl-C was pressed; the message says where each rank was.
    """
    if int(os.environ.get("WORLD_SIZE") or "1") > 1:
        raise LaunchError(
            f"anyrig.launch was called in rank {os.environ.get('RANK')} of a group of "
            f"{os.environ['WORLD_SIZE']}, so each rank would start a group of its own. Run the "
            "program with `python` instead of a launcher, or call the function itself"
        )
    rig = as_rig("auto" if rig is None else rig)
    options = RunOptions(
        processes=len(rig) * nproc_per_device,
        nodes=nnodes,
        rdzv_endpoint=rdzv_endpoint,
        max_restarts=max_restarts,
        timeout_seconds=timeout_seconds,
        log_dir=None if log_dir is None else Path(log_dir),
    )
    return cast(Result, call_in_ranks(function, args, kwargs or {}, rig, options))


def call_in_ranks(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    rig: Rig,
    options: RunOptions,
) -> Any:
    """Call `function` in new ranks on the devices of `rig`, and return the result of rank 0.

    The result is None if rank 0 is on another node. See `launch` for the exceptions.
    """
    with tempfile.TemporaryDirectory(prefix="anyrig-launch-") as folder:
        file = write_call(Path(folder), function, args, kwargs)
        command = ["-m", "anyrig.processes.call", str(file)]
        environments = environments_of_ranks(rig, options.processes)
        ended = run_group(options, command, environments, temporary_folders=[Path(folder)])
        if ended.failure is not None and ended.signal is None:
            raise LaunchError(_with_traceback(ended.failure))
        result = None if ended.signal is not None else read_result(Path(folder))
    if ended.signal is signal.SIGINT:
        raise KeyboardInterrupt(str(ended.failure))
    if ended.signal is not None:
        # The ranks have ended: let the signal have its usual effect on this process.
        sys.stderr.write(f"anyrig: {ended.failure}\n")
        os.kill(os.getpid(), ended.signal)
    return result


def _with_traceback(failure: GroupFailure) -> str:
    traceback = None if failure.first is None else failure.first.traceback
    return str(failure) if traceback is None else f"{failure}\n{traceback}"
