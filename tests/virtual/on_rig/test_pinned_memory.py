"""Pinned memory is rounded up, kept and reused as by CUDA's host allocator."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from anyrig.virtual import installation, load_extension

MIB = 2**20


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.cuda.synchronize()
    torch._C._host_emptyCache()
    return


def current(name: str) -> int:
    return int(torch.cuda.host_memory_stats()[f"{name}.current"])


def test_pinned_memory_is_rounded_up_to_a_power_of_two_and_reused() -> None:
    before = current("allocated_bytes")
    tensor = torch.empty(5 * MIB, dtype=torch.uint8, pin_memory=True)
    address = tensor.data_ptr()
    assert current("allocated_bytes") == before + 8 * MIB
    del tensor
    assert current("allocated_bytes") == before + 8 * MIB
    again = torch.empty(6 * MIB, dtype=torch.uint8, pin_memory=True)
    assert again.data_ptr() == address
    assert again.is_pinned()
    del again
    torch._C._host_emptyCache()
    assert current("allocated_bytes") == before


def test_memory_of_an_unfinished_copy_is_not_reused() -> None:
    source = torch.empty(64 * MIB, dtype=torch.uint8, pin_memory=True)
    address = source.data_ptr()
    target = torch.empty_like(source, device="cuda")
    torch.cuda.synchronize()
    target.copy_(source, non_blocking=True)
    del source
    assert torch.empty(64 * MIB, dtype=torch.uint8, pin_memory=True).data_ptr() != address
    torch.cuda.synchronize()
    addresses = [torch.empty(64 * MIB, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
    assert address in [tensor.data_ptr() for tensor in addresses]


def at(address: int) -> torch.Tensor:
    """Return a tensor over one host byte, which must not be read."""
    return torch.frombuffer((ctypes.c_byte * 1).from_address(address), dtype=torch.uint8)


@pytest.mark.virtual_only("it asks the library of virtual GPUs")
def test_memory_is_pinned_from_its_first_byte_to_its_last() -> None:
    memory = torch.zeros(256, dtype=torch.uint8)
    first = memory.data_ptr() + 64
    core = load_extension()
    core.pin(first, 64)
    places = (first - 1, first, first + 63, first + 64)
    assert [at(place).is_pinned() for place in places] == [False, True, True, False]
    core.unpin(first)
    assert not any(at(place).is_pinned() for place in places)


def test_memory_returned_to_the_host_is_not_pinned() -> None:
    memory = torch.zeros(MIB, dtype=torch.uint8, pin_memory=True)
    address = memory.data_ptr()
    del memory
    assert at(address).is_pinned()  # cached for the next tensor
    torch._C._host_emptyCache()
    assert not at(address).is_pinned()


def stats() -> dict[str, Any]:
    found: dict[str, Any] = torch.cuda.host_memory_stats_as_nested_dict()
    return found


# PyTorch up to 2.12 counts freed memory as active for ever if no stream has used it.
FREED, FREED_BYTES = (0, 0) if torch.__version__ < (2, 13) else (1, 8 * MIB)
COUNTERS = ("allocations", "allocated_bytes", "active_requests", "active_bytes")


def growth(before: dict[str, Any], key: str) -> list[int]:
    """Return by how much each of `COUNTERS` is higher now."""
    now = stats()
    return [now[counter][key] - before[counter]["current"] for counter in COUNTERS]


def test_the_statistics_of_pinned_memory() -> None:
    torch.cuda.reset_accumulated_host_memory_stats()
    torch.cuda.reset_peak_host_memory_stats()
    before = stats()
    assert {before[counter][key] for counter in COUNTERS for key in ("allocated", "freed")} == {0}
    large, small = (torch.empty(n * MIB, dtype=torch.uint8, pin_memory=True) for n in (5, 1))
    del large  # kept for the next tensor
    assert growth(before, "current") == [2, 9 * MIB, 2 - FREED, 9 * MIB - FREED_BYTES]
    assert growth(before, "peak") == [2, 9 * MIB, 2, 9 * MIB]
    torch._C._host_emptyCache()
    now = stats()
    assert [now[counter]["allocated"] for counter in COUNTERS] == [2, 9 * MIB, 2, 9 * MIB]
    assert [now[counter]["freed"] for counter in COUNTERS] == [1, 8 * MIB, FREED, FREED_BYTES]
    assert (now["num_host_alloc"], now["num_host_free"]) == (2, 1)
    if installation() is not None:  # a driver takes time
        untimed = dict.fromkeys(("total", "max", "min", "count", "avg"), 0)
        assert (now["host_alloc_time"], now["host_free_time"]) == (untimed, untimed)
    torch.cuda.reset_accumulated_host_memory_stats()
    assert {stats()[counter][key] for counter in COUNTERS for key in ("allocated", "freed")} == {0}
    assert growth(before, "peak") == [2, 9 * MIB, 2, 9 * MIB]
    again = torch.empty(MIB, dtype=torch.uint8, pin_memory=True)
    torch.cuda.reset_peak_host_memory_stats()
    active = [3 - FREED, 10 * MIB - FREED_BYTES]
    assert growth(before, "peak") == growth(before, "current") == [2, 2 * MIB, *active]
    assert stats()["allocations"]["allocated"] == 1
    del small, again
