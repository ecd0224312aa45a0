"""Find the line of the user's program that is running."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from pathlib import Path
from types import FrameType

import torch

# In this function the main thread waits for the backward pass: torch/autograd/graph.py.
_BACKWARD = "_engine_run_backward"

_NOT_THE_PROGRAM = (
    *(f"{Path(__file__).parents[2]}{os.sep}", f"{Path(torch.__file__).parent}{os.sep}"),
    str(contextlib.__file__),
)


def place_of_caller() -> str:
    """Return the line of the program that is running, as ``"train.py:31 in step"``.

    In a thread of PyTorch's backward pass, return the line at which the main thread waits.
    """
    frame = sys._getframe(1)
    found = _find_program(frame)
    if found is None and blocks_main_thread():
        found = _find_program(_frame_of_main_thread())
    frame = found or frame
    name = Path(frame.f_code.co_filename).name
    return f"{name}:{frame.f_lineno} in {frame.f_code.co_name}"


def blocks_main_thread() -> bool:
    """Return whether the main thread waits for the current thread, or is that thread.

    PyTorch runs a GPU's backward pass in a thread of its own, for which the main thread waits.
    """
    if threading.current_thread() is threading.main_thread():
        return True
    frame = _frame_of_main_thread()
    while frame is not None and _find_program(frame) is not frame:
        if frame.f_code.co_name == _BACKWARD:
            return True
        frame = frame.f_back
    return False


def _frame_of_main_thread() -> FrameType | None:
    return sys._current_frames().get(threading.main_thread().ident or 0)


def _find_program(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame of the program, not of anyrig, PyTorch or contextlib."""
    while frame is not None and any(part in frame.f_code.co_filename for part in _NOT_THE_PROGRAM):
        frame = frame.f_back
    return frame
