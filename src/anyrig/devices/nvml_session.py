"""Sessions of the NVIDIA Management Library (NVML), and its errors as text.

NVML counts its users: the first `nvmlInit` opens the driver (tens of milliseconds with several
GPUs), the last `nvmlShutdown` closes it. Each query of `nvml.py` opens a session;
``with session():`` around several queries makes them share one, with the GPUs' handles. An open
session keeps the kernel module in use, so a long-running loop should open one for each round.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

# Codes of nvmlReturn_t, from nvml.h; copied so that this file does not import pynvml.
_INVALID_ARGUMENT = 2
_NOT_SUPPORTED = 3
_NO_PERMISSION = 4
_NOT_FOUND = 6
_DRIVER_NOT_LOADED = 9
_LIBRARY_NOT_FOUND = 12
_FUNCTION_NOT_FOUND = 13
_GPU_IS_LOST = 15
_RESET_REQUIRED = 16
_LIBRARY_MISMATCH = 18
_ARGUMENT_VERSION_MISMATCH = 25
UNKNOWN_ERROR = 999

# Codes that mean that the GPU does not report the quantity, not that it is broken.
_NO_ANSWER = frozenset(
    {
        _INVALID_ARGUMENT,
        _NOT_SUPPORTED,
        _NO_PERMISSION,
        _NOT_FOUND,
        _FUNCTION_NOT_FOUND,
        _ARGUMENT_VERSION_MISMATCH,
    }
)

_WORDS = {
    _NO_PERMISSION: "the driver refuses access; check the permissions of /dev/nvidia*, and whether "
    "the container or batch job was given this device",
    _DRIVER_NOT_LOADED: "the NVIDIA driver is installed but its kernel module is not loaded; "
    "try `sudo modprobe nvidia`, then `nvidia-smi`",
    _LIBRARY_NOT_FOUND: "there is no NVIDIA driver here (libnvidia-ml.so.1 cannot be loaded); "
    "install the driver, or start the container with GPUs (`docker run --gpus all`)",
    _FUNCTION_NOT_FOUND: "the NVIDIA driver is too old for this query; update it",
    _GPU_IS_LOST: "the GPU is lost: it has fallen off the bus or stopped answering; see `dmesg` "
    "for an Xid message, then reset it (`sudo nvidia-smi --gpu-reset`) or restart the machine",
    _RESET_REQUIRED: "the GPU needs a reset before it can be used: `sudo nvidia-smi --gpu-reset`",
    _LIBRARY_MISMATCH: "the NVIDIA driver was updated while the old kernel module stayed loaded; "
    "restart the machine, or unload and load the module",
}


class NvmlUnavailableError(Exception):
    """NVML cannot be used. Caught within `devices`: a missing driver is not a failure.

    Attributes:
        driver_present: whether there is a driver that does not answer.
    """

    def __init__(self, reason: str, *, driver_present: bool) -> None:
        super().__init__(reason)
        self.driver_present = driver_present


@dataclass
class Session:
    """An open session of NVML.

    Attributes:
        nvml: the module pynvml, initialised.
        handles: the handles of the GPUs by bare UUID, filled by `nvml.py`; None until then.
        silent: the errors of GPUs that do not report their UUID.
    """

    nvml: Any
    handles: dict[str, Any] | None = None
    silent: list[str] = field(default_factory=list)

    def call(self, function: str, *arguments: object) -> Any:
        """Call a function of pynvml by name; a function missing from pynvml is an NVML error."""
        found = getattr(self.nvml, function, None)
        if found is None:
            raise self.nvml.NVMLError(_FUNCTION_NOT_FOUND)
        try:
            return found(*arguments)
        except self.nvml.NVMLLibraryMismatchError:  # raised by pynvml for a missing function
            raise self.nvml.NVMLError(_FUNCTION_NOT_FOUND) from None


class Questions:
    """Queries of one GPU.

    A quantity that the GPU does not report is None. The first error of a broken GPU is kept.

    Attributes:
        error: the first error as text, or None.
    """

    def __init__(self, opened: Session) -> None:
        self._session = opened
        self.error: str | None = None

    def ask(self, function: str, *arguments: object, ignore: frozenset[int] = frozenset()) -> Any:
        """Return the result of pynvml's `function`, or None.

        Args:
            function: a name in pynvml.
            arguments: the arguments of the function.
            ignore: further error codes that mean that the quantity is not reported.
        """
        try:
            return self._session.call(function, *arguments)
        except self._session.nvml.NVMLError as error:
            if error.value not in _NO_ANSWER | ignore:
                self.error = self.error or words_for(error)
            return None


def words_for(error: Any) -> str:
    """Return the text of an NVMLError, with the remedy for common errors."""
    code = int(error.value)
    return f"{_WORDS[code]} (NVML: {error})" if code in _WORDS else f"NVML: {error} (code {code})"


@contextmanager
def session() -> Iterator[Session]:
    """Open NVML, or share the open session of any thread.

    Raises:
        NvmlUnavailableError: there is no driver, or it does not answer; the message says why.
    """
    opened = _sessions.enter()
    try:
        yield opened
    finally:
        _sessions.leave()


@contextmanager
def shared_session() -> Iterator[None]:
    """Share one NVML session among all queries in the block; without a driver, do nothing.

    Opening NVML takes many times longer than a query, so a table of several GPUs, or one that is
    updated every second, uses one session.
    """
    with ExitStack() as stack:
        with suppress(NvmlUnavailableError):
            stack.enter_context(session())
        yield


class _Sessions:
    """The open session and its number of users."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._open: Session | None = None

    def enter(self) -> Session:
        with self._lock:
            if self._open is None:
                self._open = _open()
            self._users += 1
            return self._open

    def leave(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0 and self._open is not None:
                closing, self._open = self._open, None
                # An error means that the driver was unloaded meanwhile: there is nothing to close.
                with suppress(closing.nvml.NVMLError):
                    closing.call("nvmlShutdown")


def _open() -> Session:
    try:
        import pynvml
    except ImportError as error:
        raise NvmlUnavailableError(
            f"the package nvidia-ml-py cannot be imported ({error}); "
            "run `pip install nvidia-ml-py`",
            driver_present=False,
        ) from error
    opened = Session(pynvml)
    try:
        opened.call("nvmlInit")
    except pynvml.NVMLError as error:
        raise NvmlUnavailableError(
            words_for(error), driver_present=error.value != _LIBRARY_NOT_FOUND
        ) from error
    return opened


_sessions = _Sessions()


def _forget_sessions() -> None:
    """Reset the state in a forked child: another thread of the parent may have held the lock."""
    global _sessions
    _sessions = _Sessions()


_register_at_fork: Callable[..., None] | None = getattr(os, "register_at_fork", None)
if _register_at_fork is not None:  # not on Windows
    _register_at_fork(after_in_child=_forget_sessions)
