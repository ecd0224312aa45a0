"""A function as one rank a device, from Python or a notebook."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import cloudpickle

from ..devices.environment import environment_for
from ..devices.rig import Rig
from ..errors import LaunchError
from .ranks.call import Call, read_result
from .ranks.launcher import run_group
from .ranks.options import RunOptions

Result = TypeVar("Result")


def launch(
    function: Callable[..., Result],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    rig: Rig | str | None = None,
    nproc_per_device: int = 1,
    nnodes: str = "1",
    rdzv_endpoint: str | None = None,
    max_restarts: int = 0,
    log_folder: Path | str | None = None,
) -> Result:
    """Call `function` in one new process a device, and return what rank 0 returned.

    Each process has torchrun's environment (RANK, WORLD_SIZE, LOCAL_RANK …) and sees the devices of
    `rig` only. The function is sent by value where it cannot be imported, so it may live in a
    notebook or in a script without ``if __name__ == "__main__":``, and it does not matter whether
    CUDA has started in this process.

    Args:
        function: what to call.
        args: its positional arguments.
        kwargs: its named arguments.
        rig: the devices of this machine; None for every accelerator, else the CPU.
        nproc_per_device: ranks on each device.
        nnodes: how many machines, as in `anyrig run`; call `launch` on each.
        rdzv_endpoint: ``"host:port"`` at which several machines meet.
        max_restarts: how often the group is started again after a failure.
        log_folder: where each rank's output is kept beside being shown.

    Raises:
        LaunchError: a rank raised, was killed or left early; the message names it, and holds its
            traceback. Or something of the call cannot be sent to another process.
    """
    rig = Rig.parse(rig or "auto") if rig is None or isinstance(rig, str) else rig
    options = RunOptions(
        processes=len(rig) * nproc_per_device,
        nodes=nnodes,
        rdzv_endpoint=rdzv_endpoint,
        max_restarts=max_restarts,
        log_folder=None if log_folder is None else Path(log_folder),
    )
    with tempfile.TemporaryDirectory(prefix="anyrig-launch-") as folder:
        file = Path(folder, "call.pickle")
        file.write_bytes(_pickled(Call(function, tuple(args), dict(kwargs or {}), tuple(sys.path))))
        command = ["-u", "-m", "anyrig.parallel.ranks.call", str(file)]
        ended = run_group(options, command, environment_for(rig))
        if ended.signal is signal.SIGINT:
            raise KeyboardInterrupt
        if ended.signal is not None:
            os.kill(os.getpid(), ended.signal)
        if ended.failure is not None:
            first = ended.failure.first
            traceback = None if first is None else first.traceback
            raise LaunchError(str(ended.failure) + (f"\n{traceback}" if traceback else ""))
        return read_result(Path(folder))  # type: ignore[no-any-return]


def _pickled(call: Call) -> bytes:
    try:
        return cloudpickle.dumps(call)  # type: ignore[no-any-return]
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        name = getattr(call.function, "__qualname__", repr(call.function))
        raise LaunchError(
            f"{name} cannot be sent to other processes: {error}. Make what it needs inside the "
            "function, or pass it in args as something that can be pickled"
        ) from error
