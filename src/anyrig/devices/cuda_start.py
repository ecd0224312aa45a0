"""Whether CUDA has started in this process, and what started it.

CUDA reads `CUDA_VISIBLE_DEVICES` once, when it starts. After a process has started CUDA, forked
children cannot use it. PyTorch starts CUDA at the first use of a CUDA device;
`torch.cuda.is_available()` and other libraries start the driver directly.
"""

from __future__ import annotations

import ctypes
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from ..private_names import refuse_missing

_DRIVER = "libcuda.so.1"
_NOT_INITIALIZED = 3  # CUDA_ERROR_NOT_INITIALIZED, of cuda.h
_USERS_OF_THE_DRIVER = ("torch", "cupy", "numba.cuda", "jax", "tensorflow", "pycuda", "cuda")

_HOW_TO_WATCH = (
    "to find the line, call anyrig.devices.watch_cuda_start() at the very start of the program"
)


@dataclass(frozen=True)
class CudaStart:
    """The start of CUDA in this process, or in its parent before a fork.

    Attributes:
        reason: what started CUDA, as text; if nothing watched the start, how to find out.
        line: ``"file.py:12"``, the innermost line outside PyTorch; None if nothing watched.
        imports: the modules that were being imported, outermost first.
    """

    reason: str
    line: str | None = None
    imports: tuple[str, ...] = ()


_watching = False
_watched: CudaStart | None = None


def cuda_start() -> CudaStart | None:
    """Return what started CUDA, or None if it has not started. Starts and imports nothing."""
    if is_forked_after_start():
        before = "" if _watched is None else f" ({_watched.reason})"
        return CudaStart(
            f"it had started before this process was forked{before}; start processes with the "
            "method 'spawn' or 'forkserver', or fork before CUDA is used"
        )
    cuda = _torch_cuda()
    if cuda is not None and cuda.is_initialized():
        return _watched or CudaStart(f"PyTorch started it; {_HOW_TO_WATCH}")
    if _driver_has_started():
        return _watched or CudaStart(_words_for_driver(torch_watched=_watching))
    return None


def is_forked_after_start() -> bool:
    """Return whether this process was forked after CUDA had started, so it cannot use CUDA."""
    # In a forked child, PyTorch reports that it is not initialised and cannot start CUDA.
    is_in_bad_fork = getattr(_torch_cuda(), "_is_in_bad_fork", None)
    return is_in_bad_fork is not None and bool(is_in_bad_fork())


def _torch_cuda() -> Any:
    # None while torch is being imported.
    return getattr(sys.modules.get("torch"), "cuda", None)


def watch_cuda_start() -> bool:
    """Record the line that makes PyTorch start CUDA, from now on. Imports torch.

    Returns:
        False if CUDA has already started.
    """
    global _watching
    if _watching:
        return True
    if cuda_start() is not None:
        return False
    import torch

    refuse_missing("devices")
    # The private queue of functions that PyTorch calls when it starts CUDA, on the stack of the
    # line that started it. There is no public hook; torch.manual_seed uses this queue.
    torch.cuda._lazy_call(_remember)  # type: ignore[no-untyped-call]
    _watching = True
    return True


def _remember() -> None:
    """Record the stack as text: frames would keep the caller's tensors alive."""
    global _watched
    code, line, imports = _blame(sys._getframe(1))
    if code is None:
        _watched = CudaStart("PyTorch started it, not from a line of Python", None, imports)
        return
    place = f"{code.co_filename}:{line}"
    function = "" if code.co_name == "<module>" else f" in {code.co_name}()"
    importing = f", while {' > '.join(imports)} was imported" if imports else ""
    _watched = CudaStart(f"{place}{function} started it{importing}", place, imports)


def _blame(frame: FrameType | None) -> tuple[CodeType | None, int, tuple[str, ...]]:
    """Return code and line of the innermost frame outside PyTorch, and the imports around it."""
    import torch

    ours = (str(Path(torch.__file__).parent) + os.sep, __file__)
    found: tuple[CodeType | None, int] = (None, 0)
    imports: list[str] = []
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith("<frozen importlib"):
            # The import system calls this function once for each module.
            if code.co_name == "_find_and_load":
                imports.append(str(frame.f_locals.get("name", "?")))
        elif found[0] is None and not code.co_filename.startswith(ours):
            found = (code, frame.f_lineno)
        frame = frame.f_back
    return (*found, tuple(reversed(imports)))


def _driver_has_started() -> bool:
    """Return whether `cuInit` has run, if the driver library is already loaded."""
    only_if_loaded = getattr(os, "RTLD_NOLOAD", None)
    if only_if_loaded is None:  # Windows: only PyTorch's own state is known
        return False
    try:
        driver = ctypes.CDLL(_DRIVER, mode=only_if_loaded | os.RTLD_NOW)
    except OSError:
        return False
    count = ctypes.c_int()
    return bool(driver.cuDeviceGetCount(ctypes.byref(count)) != _NOT_INITIALIZED)


def _words_for_driver(*, torch_watched: bool) -> str:
    loaded = [name for name in _USERS_OF_THE_DRIVER if name in sys.modules]
    suspects = f"; imported libraries that can do this: {', '.join(loaded)}" if loaded else ""
    watched = "" if torch_watched else f"; for starts by PyTorch, {_HOW_TO_WATCH}"
    return (
        "the CUDA driver was started directly, as torch.cuda.is_available() and other CUDA "
        f"libraries do{suspects}{watched}"
    )
