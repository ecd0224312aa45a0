"""The C++ allocator model of one GPU, driven from Python through its C shim."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
NO_LIMIT = (1 << 64) - 1
STATS = (
    "allocation",
    "segment",
    "active",
    "inactive_split",
    "allocated_bytes",
    "reserved_bytes",
    "active_bytes",
    "inactive_split_bytes",
    "requested_bytes",
)
COUNTERS = (
    "num_alloc_retries",
    "num_ooms",
    "num_sync_all_streams",
    "num_device_alloc",
    "num_device_free",
)
# In the order of TraceAction.
ACTIONS = (
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "snapshot",
    "oom",
)
FIELDS = ("current", "peak", "allocated", "freed")


class OutOfMemoryError(RuntimeError):
    """The message is the one for device 3."""


@dataclass(frozen=True)
class Block:
    handle: int
    address: int
    size: int


@dataclass(frozen=True)
class Part:
    """One block of a snapshot."""

    segment: int
    segment_size: int
    stream: int
    small: bool
    pool: int
    address: int
    size: int
    requested: int
    allocated: bool
    active: bool


class AllocatorModel:
    def __init__(self, library: ctypes.CDLL, size: int) -> None:
        for name in ("device_new", "allocate"):
            getattr(library, name).restype = ctypes.c_void_p
        library.memory_fraction.restype = ctypes.c_double
        library.free_bytes.restype = library.read_snapshot.restype = ctypes.c_size_t
        library.read_history.restype = ctypes.c_size_t
        library.has_pool.restype = library.has_room.restype = ctypes.c_bool
        library.reserve_externally.restype = library.work_is_finished.restype = ctypes.c_bool
        self._library = library
        self._device = ctypes.c_void_p(library.device_new(ctypes.c_size_t(size)))

    def close(self) -> None:
        self._library.device_delete(self._device)

    def configure(
        self,
        *,
        expandable_segments: bool = False,
        large_segment: int = 20 * MIB,
        max_split: int = NO_LIMIT,
        max_non_split_rounding: int = 20 * MIB,
        garbage_collection_threshold: float = 0.0,
        roundup_power2_divisions: tuple[int, ...] = (0,) * 16,
    ) -> None:
        self._library.set_options(
            self._device,
            ctypes.c_bool(expandable_segments),
            ctypes.c_size_t(large_segment),
            ctypes.c_size_t(max_split),
            ctypes.c_size_t(max_non_split_rounding),
            ctypes.c_double(garbage_collection_threshold),
            (ctypes.c_size_t * 16)(*roundup_power2_divisions),
        )

    def allocate(self, size: int, stream: int = 0) -> Block:
        shape = (ctypes.c_uint64 * 2)()
        handle = self._library.allocate(
            self._device, ctypes.c_size_t(size), ctypes.c_int64(stream), shape
        )
        if shape[1] == NO_LIMIT:
            raise OutOfMemoryError(self.error(3))
        return Block(handle or 0, shape[0], shape[1])

    def has_room(self, size: int, stream: int = 0) -> bool:
        return bool(
            self._library.has_room(self._device, ctypes.c_size_t(size), ctypes.c_int64(stream))
        )

    def free(self, block: Block) -> None:
        self._library.free_block(self._device, ctypes.c_void_p(block.handle))

    def record_stream(self, block: Block, stream: int) -> None:
        handle = ctypes.c_void_p(block.handle)
        self._library.record_stream(self._device, handle, ctypes.c_int64(stream))

    def queue(self, stream: int) -> None:
        self._library.queue_work(self._device, ctypes.c_int64(stream))

    def finish(self, stream: int) -> None:
        self._library.finish_work(self._device, ctypes.c_int64(stream))

    def is_finished(self, stream: int) -> bool:
        return bool(self._library.work_is_finished(self._device, ctypes.c_int64(stream)))

    def empty_cache(self) -> None:
        self._library.empty_cache(self._device)

    def empty_pool(self, pool: int) -> None:
        self._library.empty_pool(self._device, ctypes.c_uint64(pool))

    def begin_pool(self, pool: int, stream: int) -> None:
        """Route later allocations of `stream` to `pool`."""
        self._library.begin_pool(self._device, ctypes.c_uint64(pool), ctypes.c_int64(stream))

    def end_pool(self, pool: int) -> None:
        self._library.end_pool(self._device, ctypes.c_uint64(pool))

    def release_pool(self, pool: int) -> None:
        self._library.release_pool(self._device, ctypes.c_uint64(pool))

    def make_pool(
        self, pool: int, *, serves_when_full: bool = False, never_splits: bool = False
    ) -> None:
        self._library.make_pool(
            self._device,
            ctypes.c_uint64(pool),
            ctypes.c_bool(serves_when_full),
            ctypes.c_bool(never_splits),
        )

    def has_pool(self, pool: int) -> bool:
        return bool(self._library.has_pool(self._device, ctypes.c_uint64(pool)))

    def record_history(self, *, enabled: bool = True, max_entries: int = 1000) -> None:
        self._library.record_history(
            self._device, ctypes.c_bool(enabled), ctypes.c_size_t(max_entries)
        )

    def history(self) -> list[tuple[str, int, int, int]]:
        """Return (action, size, stream, pool) of each recorded action."""
        limit = 1000
        numbers = (ctypes.c_uint64 * (4 * limit))()
        count = self._library.read_history(self._device, numbers, ctypes.c_size_t(limit))
        rows = [numbers[4 * i : 4 * i + 4] for i in range(count)]
        return [(ACTIONS[action], size, stream, pool) for action, size, stream, pool in rows]

    def set_memory_fraction(self, fraction: float) -> None:
        self._library.set_memory_fraction(self._device, ctypes.c_double(fraction))

    def memory_fraction(self) -> float:
        return float(self._library.memory_fraction(self._device))

    def reset_peaks(self) -> None:
        self._library.reset_peaks(self._device)

    def reset_accumulated(self) -> None:
        self._library.reset_accumulated(self._device)

    def reserve_externally(self, size: int) -> bool:
        """Reserve memory of the GPU, as another program would."""
        return bool(self._library.reserve_externally(self._device, ctypes.c_size_t(size)))

    def free_bytes(self) -> int:
        return int(self._library.free_bytes(self._device))

    def error(self, index: int) -> str:
        text = ctypes.create_string_buffer(2000)
        self._library.read_error(self._device, index, text, ctypes.c_size_t(2000))
        return text.value.decode()

    def stats(self) -> dict[str, int]:
        """Return the statistics with the keys of torch.cuda.memory_stats."""
        out = (ctypes.c_int64 * ((3 * len(STATS) + 2) * 4 + len(COUNTERS)))()
        self._library.read_stats(self._device, out)
        names = [
            f"{stat}.{pool}" for stat in STATS for pool in ("all", "small_pool", "large_pool")
        ] + ["oversize_allocations", "oversize_segments"]
        keys = [f"{name}.{field}" for name in names for field in FIELDS] + list(COUNTERS)
        return dict(zip(keys, out, strict=True))

    def now(self, name: str, pool: str = "all") -> int:
        return self.stats()[f"{name}.{pool}.current"]

    def peak(self, name: str, pool: str = "all") -> int:
        return self.stats()[f"{name}.{pool}.peak"]

    def parts(self) -> list[Part]:
        limit = 4096
        out = (ctypes.c_uint64 * (10 * limit))()
        count = self._library.read_snapshot(self._device, out, ctypes.c_size_t(limit))
        assert count <= limit
        rows = [out[10 * i : 10 * i + 10] for i in range(count)]
        return [
            Part(a, b, c, bool(d), e, f, g, h, bool(i), bool(j))
            for a, b, c, d, e, f, g, h, i, j in rows
        ]
