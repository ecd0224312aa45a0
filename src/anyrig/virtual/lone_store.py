"""`LoneStore`, the key-value store of a group in which only rank 0 runs."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from datetime import timedelta

import torch.distributed as dist

_REMEDY = (
    "rehearse fewer ranks, each in a process of its own: without --ranks, and with --device all "
    "--shape-only"
)

# The keys of `anyrig.processes.group`: those of a board, and the identities of devices.
_OF_ANYRIG, _DEVICE_OF_RANK_0 = "anyrig/", "anyrig/devices/0"


class LoneStore(dist.Store):  # type: ignore[name-defined,misc]
    """The values that rank 0 has set.

    A store waits for a key until some rank sets it. Here no other rank does, so a call that would
    wait raises an error at once. The names of the methods are those that PyTorch's stores call.

    Where the ranks of `anyrig.spread` meet, each writes its value under its own number and counts
    itself. There, the other ranks are taken to do as rank 0 does, each with a GPU of its own.
    """

    def __init__(self, ranks: int) -> None:
        super().__init__()
        self._others = range(1, ranks)
        self._values: dict[str, bytes] = {}
        self._lock = threading.RLock()

    def clone(self) -> LoneStore:
        """Return this store itself, which several threads can use."""
        return self

    def set(self, key: str, value: str | bytes) -> None:
        """Set a key."""
        with self._lock:
            self._values[key] = _bytes_of(value)
            if _OF_ANYRIG in key and key.endswith("/0"):
                for rank in self._others:
                    own = f" of rank {rank}".encode() if key.endswith(_DEVICE_OF_RANK_0) else b""
                    self._values[f"{key[:-1]}{rank}"] = self._values[key] + own

    def get(self, key: str) -> bytes:
        """Return the value of a key.

        Raises:
            DistStoreError: rank 0 has not set it.
        """
        self.wait([key])
        return self._values[key]

    def add(self, key: str, value: int) -> int:
        """Add to the number under a key, which is 0 at first, and return the sum."""
        with self._lock:
            if _OF_ANYRIG in key and key.endswith("/arrived"):
                value += len(self._others)
            total = int(self._values.get(key, b"0")) + value
            self._values[key] = str(total).encode()
            return total

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Set a key if its value is the expected one, or if it has none and ``""`` is expected."""
        with self._lock:
            expected = _bytes_of(expected)
            if self._values.get(key, b"") == expected:
                self._values[key] = _bytes_of(desired)
            return self._values.get(key, expected)

    def wait(self, keys: Iterable[str], timeout: timedelta | None = None) -> None:
        """Check that rank 0 has set the keys.

        Raises:
            DistStoreError: rank 0 has not set one of the keys.
        """
        missing = next((key for key in keys if key not in self._values), None)
        if missing is not None:
            raise dist.DistStoreError(
                f"rank 0 waits for the key {missing!r} of the store, which another rank would set, "
                f"and this rehearsal runs rank 0 alone (--ranks). Let rank 0 set it, or {_REMEDY}"
            )

    def check(self, keys: Iterable[str]) -> bool:
        """Return whether rank 0 has set all keys."""
        return all(key in self._values for key in keys)

    def delete_key(self, key: str) -> bool:
        """Remove a key; return whether it was there."""
        with self._lock:
            return self._values.pop(key, None) is not None

    deleteKey = delete_key  # noqa: N815 - the name by which PrefixStore calls it

    def num_keys(self) -> int:
        """Return the number of keys."""
        return len(self._values)

    getNumKeys = num_keys  # noqa: N815

    def append(self, key: str, value: str | bytes) -> None:
        """Append to the value of a key."""
        with self._lock:
            self._values[key] = self._values.get(key, b"") + _bytes_of(value)

    def multi_get(self, keys: Iterable[str]) -> list[bytes]:
        """Return the values of several keys, as `get` returns one."""
        return [self.get(key) for key in keys]

    def multi_set(self, keys: Iterable[str], values: Iterable[str | bytes]) -> None:
        """Set keys to values."""
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def has_extended_api(self) -> bool:
        """Return that `append`, `multi_get` and `multi_set` exist."""
        return True


def _bytes_of(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
