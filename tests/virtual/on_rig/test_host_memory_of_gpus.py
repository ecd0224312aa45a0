"""The host memory in which virtual GPUs keep tensors is reused, aligned and released."""

from __future__ import annotations

import ctypes
import platform
from pathlib import Path

import pytest
import torch
from device_memory import take

DEVICE = 3  # used only by the tests of memory
MIB = 2**20

pytestmark = pytest.mark.usefixtures("own_device")
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage")


@pytest.mark.virtual_only("its memory is the host's")
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs the sizes that glibc reports")
def test_freed_host_memory_is_reused_for_the_same_size() -> None:
    wide, narrow = torch.ones(2**16, device="cuda"), torch.ones(2**15, device="cuda")
    result = wide + 1
    address = result.data_ptr()
    del result
    other = narrow + 1  # the C library would cut it from the freed memory
    assert (wide + 1).data_ptr() == address != other.data_ptr()


@pytest.mark.virtual_only("its memory is the host's")
def test_a_larger_request_for_a_block_gets_other_host_memory() -> None:
    small = take(1)
    address = small.data_ptr()
    del small
    assert take(1).data_ptr() == address
    larger = take(500)  # the same block of 512 bytes
    assert larger.data_ptr() != address


class HostHeap(ctypes.Structure):
    """`struct mallinfo2` of the C library."""

    _fields_ = [(name, ctypes.c_size_t) for name in "abcdefghij"]


def host_bytes_in_use() -> int:
    """Return the bytes that the C library has allocated, from its heap and by mapping."""
    count = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if count is None:
        pytest.skip("the C library does not tell what it has handed out")
    count.restype = HostHeap
    heap = count()
    return int(heap.e) + int(heap.h)  # hblkhd, uordblks


@pytest.mark.virtual_only("its memory is the host's")
def test_emptying_the_cache_releases_kept_host_memory() -> None:
    torch.cuda.empty_cache()
    before = host_bytes_in_use()
    result = take(16 * MIB)
    assert host_bytes_in_use() > before + 15 * MIB  # other objects may be freed meanwhile
    del result
    assert host_bytes_in_use() > before + 15 * MIB  # kept for the next request
    torch.cuda.empty_cache()
    assert host_bytes_in_use() < before + 4 * MIB


@pytest.mark.virtual_only("its memory is the host's")
def test_at_most_a_gib_of_freed_host_memory_is_kept() -> None:
    torch.cuda.empty_cache()
    before = host_bytes_in_use()
    tensors = [take(20 * MIB) for _ in range(60)]
    assert host_bytes_in_use() - before > 1199 * MIB
    del tensors
    # Each piece may have two MiB of unused addresses, which align it.
    assert 0 < host_bytes_in_use() - before < 1130 * MIB


def mapping_flags(address: int) -> list[str]:
    """Return the flags of this process's mapping that contains `address`, from /proc/self/smaps."""
    is_inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *words = line.split()
        if "-" in name:
            start, end = (int(bound, 16) for bound in name.split("-"))
            is_inside = start <= address < end
        elif is_inside and name == "VmFlags:":
            return words
    raise LookupError(f"no mapping of this process holds {address:#x}")


@pytest.mark.virtual_only("its memory is the host's")
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs the sizes that glibc reports")
@pytest.mark.skipif(not HUGE_PAGES.exists(), reason="this system has no huge pages")
@pytest.mark.parametrize("size", [4 * MIB, 4 * MIB - 99])
def test_host_memory_that_fills_huge_pages_uses_them(size: int) -> None:
    address = (torch.ones(size, dtype=torch.uint8, device="cuda") + 1).data_ptr()
    assert address % (2 * MIB) == 0
    assert "hg" in mapping_flags(address)


def test_a_convolution_may_use_much_temporary_host_memory() -> None:
    # oneDNN reorders the channels, which takes 2^28 bytes here.
    x = torch.ones(4, 16, 1024, 1024, device="cuda")
    with torch.no_grad():
        result = torch.nn.functional.conv2d(x, torch.ones(16, 16, 3, 3, device="cuda"))
    assert result[-1, -1, -1, -1] == 16 * 3 * 3
