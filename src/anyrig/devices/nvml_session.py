"""Talking to the NVIDIA Management Library: opening, closing, and its errors in words.

NVML counts its users: the first `nvmlInit` opens the driver (tens of milliseconds with several
cards), the last `nvmlShutdown` closes it. Each question of `nvml.py` opens a session for itself;
``with session():`` around many questions makes them share one, with the cards' handles. An open
session keeps the kernel module in use, so a loop that runs for days opens one for each round.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

# Codes of nvmlReturn_t, from nvml.h; written out so that this file needs no pynvml at import.
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

# Answers that mean "this card does not tell", not "this card is broken".
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
    _NO_PERMISSION: "the driver refuses access; check the permissions of /dev/nvidia*, and in a "
    "container or a batch job that this device was given to it",
    _DRIVER_NOT_LOADED: "the NVIDIA driver is installed but its kernel module is not loaded; "
    "try `sudo modprobe nvidia`, then `nvidia-smi`",
    _LIBRARY_NOT_FOUND: "there is no NVIDIA driver here (libnvidia-ml.so.1 cannot be loaded); "
    "install the driver, or start the container with GPUs (`docker run --gpus all`)",
    _FUNCTION_NOT_FOUND: "the NVIDIA driver is too old to be asked; update it",
    _GPU_IS_LOST: "the GPU is lost: it has fallen off the bus or stopped answering; see `dmesg` "
    "for an Xid message, then reset it (`sudo nvidia-smi --gpu-reset`) or restart the machine",
    _RESET_REQUIRED: "the GPU needs a reset before it can be used: `sudo nvidia-smi --gpu-reset`",
    _LIBRARY_MISMATCH: "the NVIDIA driver was updated while the old kernel module stayed loaded; "
    "restart the machine, or unload and load the module",
}


class NvmlUnavailableError(Exception):
    """NVML cannot be used here. Caught inside this room: having no driver is not a failure.

    Attributes:
        driver_present: whether there is a driver, which then does not answer.
    """

    def __init__(self, reason: str, *, driver_present: bool) -> None:
        super().__init__(reason)
        self.driver_present = driver_present


@dataclass
class Session:
    """An open NVML.

    Attributes:
        nvml: the module pynvml, initialised.
        handles: of the cards by bare UUID, filled by `nvml.py`; None until then.
        silent: what the cards said that would not even tell their UUID.
    """

    nvml: Any
    handles: dict[str, Any] | None = None
    silent: list[str] = field(default_factory=list)

    def call(self, function: str, *arguments: object) -> Any:
        """Call a function of pynvml by name, so that one an older pynvml lacks is an NVML error."""
        found = getattr(self.nvml, function, None)
        if found is None:
            raise self.nvml.NVMLError(_FUNCTION_NOT_FOUND)
        try:
            return found(*arguments)
        except self.nvml.NVMLLibraryMismatchError:  # pynvml's dress for a function not found
            raise self.nvml.NVMLError(_FUNCTION_NOT_FOUND) from None


class Questions:
    """Questions to one card.

    An answer the card does not have is None; the first that speaks of a broken card is kept.

    Attributes:
        error: that first answer in words, or None.
    """

    def __init__(self, opened: Session) -> None:
        self._session = opened
        self.error: str | None = None

    def ask(self, function: str, *arguments: object, ignore: frozenset[int] = frozenset()) -> Any:
        """Return what pynvml's `function` answers, or None.

        Args:
            function: a name in pynvml.
            arguments: for it.
            ignore: further error codes that only mean "no answer".
        """
        try:
            return self._session.call(function, *arguments)
        except self._session.nvml.NVMLError as error:
            if error.value not in _NO_ANSWER | ignore:
                self.error = self.error or words_for(error)
            return None


def words_for(error: Any) -> str:
    """Return what an NVMLError says, and for the common ones what to do about it."""
    code = int(error.value)
    return f"{_WORDS[code]} (NVML: {error})" if code in _WORDS else f"NVML: {error} (code {code})"


@contextmanager
def session() -> Iterator[Session]:
    """Open NVML, or share it with the session around this one, in any thread.

    Raises:
        NvmlUnavailableError: there is no driver, or it does not answer; the text says why.
    """
    opened = _sessions.enter()
    try:
        yield opened
    finally:
        _sessions.leave()


@contextmanager
def shared_session() -> Iterator[None]:
    """Let all questions within the block share one opening of NVML; without a driver, do nothing.

    Opening takes the driver many times longer than an answer, so a table of many cards, or one
    that is drawn every second, asks within one.
    """
    with ExitStack() as stack:
        with suppress(NvmlUnavailableError):
            stack.enter_context(session())
        yield


class _Sessions:
    """The open session and how many share it."""

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
                # An error means that the driver went away meanwhile: there is nothing to close.
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
    """Start anew in a forked child: another thread of the parent may have held the lock."""
    global _sessions
    _sessions = _Sessions()


_register_at_fork: Callable[..., None] | None = getattr(os, "register_at_fork", None)
if _register_at_fork is not None:  # not on Windows
    _register_at_fork(after_in_child=_forget_sessions)
