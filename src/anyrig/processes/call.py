"""The program that `launch` starts for each rank: ``python -m anyrig.processes.call FILE``."""

from __future__ import annotations

import io
import os
import pickle
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import cloudpickle
import torch

from ..errors import LaunchError
from .places import write_stack_on_request
from .rank_end import note_exception
from .time_limit import set_time_limit
from .torch_faults import end_rank, hold_destroyed_groups
from .whole_lines import write_whole_lines

# The exceptions of pickle for an object that cannot be pickled.
_CANNOT_BE_SENT = (pickle.PicklingError, TypeError, AttributeError, RecursionError)

_CALL = "call.pickle"
_RESULT = "result.pickle"


def write_call(
    folder: Path,
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Path:
    """Write a call to a file in `folder`, for the ranks to load, and return the file.

    Raises:
        LaunchError: part of the call cannot be pickled.
    """
    try:
        packed = _pack((function, tuple(args), dict(kwargs)))
    except _CANNOT_BE_SENT as error:
        name = getattr(function, "__qualname__", repr(function))
        raise LaunchError(
            f"{name} cannot be sent to other processes: {error}. Create such objects inside the "
            "function, or pass picklable objects in args"
        ) from error
    file = folder / _CALL
    # The path comes first: unpickling the rest may import modules from there.
    file.write_bytes(pickle.dumps(sys.path) + packed)
    return file


def read_result(folder: Path) -> Any:
    """Return the result of rank 0; None if rank 0 ran on another node."""
    file = folder / _RESULT
    # Safe to unpickle: a child of this process wrote the file.
    return pickle.loads(file.read_bytes()) if file.is_file() else None  # noqa: S301


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """A pickler that copies tensors to the CPU.

    A GPU tensor would be loaded to the GPU of the same index and start CUDA in the other process,
    where that index is another GPU or none.
    """

    def reducer_override(self, obj: Any) -> Any:
        # Parameters need no case here: their data, a plain tensor, is pickled separately.
        if type(obj) is torch.Tensor and obj.device.type != "cpu":
            copy = obj.detach().cpu().requires_grad_(obj.requires_grad)
            return copy.__reduce_ex__(pickle.HIGHEST_PROTOCOL)  # type: ignore[no-untyped-call]
        return super().reducer_override(obj)


def _pack(value: Any) -> bytes:
    """Pickle `value`; functions and classes that cannot be imported are pickled by value."""
    stream = io.BytesIO()
    _Pickler(stream, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    return stream.getvalue()


def main() -> NoReturn:
    """Make the call from the file that the first argument names; exit with 1 if it raises."""
    write_whole_lines()
    write_stack_on_request()
    status = 1
    try:
        hold_destroyed_groups()
        set_time_limit()
        _make_call(Path(sys.argv[1]))
        status = 0
    except SystemExit as leaving:
        note_exception(leaving)
        if leaving.code is None or isinstance(leaving.code, int):
            status = leaving.code or 0
        else:
            sys.stderr.write(f"{leaving.code}\n")
    except BaseException as error:
        # Drop the frames of this file from the traceback.
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
            frames = frames.tb_next
        note_exception(error.with_traceback(frames))
        traceback.print_exception(error)
    end_rank(status)


def _make_call(file: Path) -> None:
    with file.open("rb") as stream:  # safe to unpickle: the parent of this process wrote it
        sys.path[:] = pickle.load(stream)  # noqa: S301
        function, args, kwargs = pickle.load(stream)  # noqa: S301
    result = function(*args, **kwargs)
    if os.environ["RANK"] != "0":
        return
    try:
        packed = _pack(result)
    except _CANNOT_BE_SENT as error:
        raise LaunchError(
            f"the result of rank 0, of type {type(result).__name__}, cannot be sent back: {error}. "
            "Return a picklable object, or save it to a file and return the file's name"
        ) from error
    unfinished = file.with_name(f"{_RESULT}.unfinished")
    unfinished.write_bytes(packed)
    unfinished.replace(file.with_name(_RESULT))


if __name__ == "__main__":
    main()
