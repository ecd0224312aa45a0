"""A process that holds memory on the GPUs of a rig, driven from Python through the C shim.

The program ``ledger_process.py LIBRARY FOLDER`` answers each line of its input, such as
``reserve 0 600`` (GPU, bytes), with one line.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

GPUS = 100
GPU_BYTES = 1000


class Ledger:
    def __init__(self, library: ctypes.CDLL, folder: Path) -> None:
        library.ledger_new.restype = ctypes.c_void_p
        library.join.restype = library.reserve.restype = ctypes.c_bool
        for name in ("used_bytes", "used_bytes_upper_bound", "processes"):
            getattr(library, name).restype = ctypes.c_size_t
        self._library = library
        self._ledger = ctypes.c_void_p(library.ledger_new())
        error = ctypes.create_string_buffer(500)
        if not library.join(self._ledger, bytes(folder), GPUS, error, ctypes.c_size_t(500)):
            raise RuntimeError(error.value.decode())

    def reserve(self, gpu: int, size: int) -> bool:
        sizes = ctypes.c_size_t(size), ctypes.c_size_t(GPU_BYTES)
        return bool(self._library.reserve(self._ledger, gpu, *sizes))

    def release(self, gpu: int, size: int) -> None:
        self._library.release(self._ledger, gpu, ctypes.c_size_t(size))

    def used(self, gpu: int) -> int:
        return int(self._library.used_bytes(self._ledger, gpu))

    def used_upper_bound(self, gpu: int) -> int:
        return int(self._library.used_bytes_upper_bound(self._ledger, gpu))

    def processes(self, gpu: int) -> dict[int, int]:
        """Return the bytes of each process; process 0 is this one."""
        out = (ctypes.c_size_t * 64)()
        count = self._library.processes(self._ledger, gpu, out, ctypes.c_size_t(32))
        return {out[2 * i]: out[2 * i + 1] for i in range(count)}

    def leave(self) -> None:
        self._library.leave(self._ledger)

    def before_fork(self) -> None:
        self._library.before_fork(self._ledger)

    def after_fork(self, *, in_child: bool) -> None:
        name = "after_fork_in_child" if in_child else "after_fork_in_parent"
        getattr(self._library, name)(self._ledger)


if __name__ == "__main__":
    ledger = Ledger(ctypes.CDLL(sys.argv[1]), Path(sys.argv[2]))
    print("joined", flush=True)
    for line in sys.stdin:
        name, *numbers = line.split()
        print(getattr(ledger, name)(*map(int, numbers)), flush=True)
