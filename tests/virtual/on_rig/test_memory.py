"""The memory statistics of torch.cuda follow the rules of CUDA's caching allocator."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator

import pytest
import torch
from device_memory import take

MIB = 2**20
GIB = 2**30
CONTEXT = 400 * MIB  # hardware/driver_memory.toml

DEVICE = 3  # used only by the tests of memory
OTHER = 2


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    gc.collect()
    with torch.cuda.device(DEVICE):
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        assert torch.cuda.memory_allocated() == torch.cuda.memory_reserved() == 0
        yield
        torch._C._cuda_clearCublasWorkspaces()


def cublas_workspace() -> int:
    """Return the bytes of cuBLAS's workspace, which PyTorch chooses by compute capability."""
    return 32 * MIB if torch.cuda.get_device_capability() >= (9, 0) else 8_519_680


def test_blocks_and_segments() -> None:
    one = take(1)
    assert torch.cuda.memory_allocated() == 512
    assert torch.cuda.memory_reserved() == 2 * MIB
    large = take(MIB + 1)
    assert torch.cuda.memory_allocated() == 512 + MIB + 512
    assert torch.cuda.memory_reserved() == 22 * MIB
    del one, large
    assert torch.cuda.memory_allocated() == 0
    assert torch.cuda.memory_reserved() == 22 * MIB
    assert torch.cuda.max_memory_allocated() == MIB + 1024
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0


@pytest.mark.virtual_only("a real driver keeps as much as its version needs")
def test_the_driver_keeps_memory_for_the_context() -> None:
    assert torch.cuda.mem_get_info()[0] == torch.cuda.mem_get_info()[1] - CONTEXT


def test_statistics_by_pool() -> None:
    kept = take(600), take(3 * MIB)
    stats = torch.cuda.memory_stats()
    assert stats["allocated_bytes.small_pool.current"] == 1024
    assert stats["allocated_bytes.large_pool.current"] == 3 * MIB
    assert stats["requested_bytes.all.current"] == 600 + 3 * MIB
    assert stats["segment.all.current"] == 2
    assert "Allocated memory" in torch.cuda.memory_summary()
    segments = [s for s in torch.cuda.memory_snapshot() if s["device"] == DEVICE]
    assert sum(s["total_size"] for s in segments) == torch.cuda.memory_reserved()
    del kept


def test_every_statistic_has_its_value() -> None:
    torch.cuda.reset_accumulated_memory_stats()
    side = torch.cuda.Stream()
    kept, freed, used_there = take(600), take(12 * MIB), take(4 * MIB)
    used_there.record_stream(side)
    with torch.cuda.stream(side):
        torch.cuda._sleep(10**8)
    del used_there, freed
    stats = torch.cuda.memory_stats()
    large = 20 * MIB
    expected = {
        "allocation": (1, 3),
        "allocated_bytes": (1024, 1024 + 16 * MIB),
        "requested_bytes": (600 + 4 * MIB, 600 + 16 * MIB),
        "active": (2, 3),  # the block in use on the other stream
        "active_bytes": (1024 + 4 * MIB, 1024 + 16 * MIB),
        "segment": (3, 3),
        "reserved_bytes": (2 * MIB + large + 12 * MIB, 2 * MIB + large + 12 * MIB),
        "inactive_split": (2, 2),  # the rests of two segments
        "inactive_split_bytes": (2 * MIB - 1024 + 16 * MIB, 2 * MIB - 1024 + 16 * MIB),
    }
    found = {name: (stats[f"{name}.all.current"], stats[f"{name}.all.peak"]) for name in expected}
    assert found == expected
    for name in expected:
        pools = [stats[f"{name}.{pool}.current"] for pool in ("small_pool", "large_pool")]
        assert sum(pools) == expected[name][0]
    assert (stats["num_device_alloc"], stats["num_device_free"]) == (3, 0)
    assert (stats["num_sync_all_streams"], stats["num_alloc_retries"], stats["num_ooms"]) == (
        0,
    ) * 3
    generic = torch.accelerator.memory_stats()
    both = stats.keys() & generic.keys() - {"max_split_size"}
    assert len(both) > 100
    assert {name: stats[name] for name in both} == {name: generic[name] for name in both}
    assert generic["active_bytes.all.current"] == 1024 + 4 * MIB
    torch.cuda.empty_cache()
    stats = torch.cuda.memory_stats()
    assert (stats["num_device_alloc"], stats["num_device_free"]) == (3, 2)
    assert stats["num_sync_all_streams"] == 1
    assert stats["allocation.all.allocated"] == 3
    assert stats["allocation.all.freed"] == 2
    peak = stats["reserved_bytes.all.peak"]
    torch.accelerator.reset_accumulated_memory_stats()
    stats = torch.cuda.memory_stats()
    numbers = ("num_device_alloc", "num_device_free", "num_sync_all_streams")
    assert [stats[name] for name in numbers] == [0, 0, 0]
    assert stats["allocation.all.allocated"] == stats["allocation.all.freed"] == 0
    assert stats["reserved_bytes.all.peak"] == peak == 34 * MIB
    torch.accelerator.reset_peak_memory_stats()
    assert torch.cuda.memory_stats()["reserved_bytes.all.peak"] == 2 * MIB
    del kept


def test_results_of_operators_are_counted() -> None:
    a = torch.ones(1024, device="cuda")
    b = a + a
    assert torch.cuda.memory_allocated() == 2 * 4096
    view = b.view(32, 32).t()[1:]
    assert torch.cuda.memory_allocated() == 2 * 4096
    a.add_(1)
    assert torch.cuda.memory_allocated() == 2 * 4096
    del b
    assert torch.cuda.memory_allocated() == 2 * 4096
    del view
    assert torch.cuda.memory_allocated() == 4096
    a.resize_(2048)
    assert torch.cuda.memory_allocated() == 8192


def test_a_strided_copy_allocates_a_temporary() -> None:
    source = torch.ones(64, 128).t()
    target = torch.empty(128, 64, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    target.copy_(source)
    assert torch.cuda.max_memory_allocated() == 32768  # gathered on the host
    torch.empty(64, 128, device="cuda").t().copy_(source.contiguous())
    assert torch.cuda.max_memory_allocated() == 3 * 32768


@pytest.mark.skipif(torch.__version__ >= (2, 15), reason="from 2.15 on a call frees its workspace")
def test_a_product_allocates_one_workspace_per_stream() -> None:
    a = torch.ones(16, 16, device="cuda")
    a @ a
    assert torch.cuda.memory_allocated() == 1024 + cublas_workspace()
    a @ a
    assert torch.cuda.memory_allocated() == 1024 + cublas_workspace()
    with torch.cuda.stream(torch.cuda.Stream()):
        a @ a
    assert torch.cuda.memory_allocated() == 1024 + 2 * cublas_workspace()


@pytest.mark.skipif(torch.__version__ < (2, 15), reason="before 2.15 a workspace is kept")
def test_a_product_uses_a_workspace_while_it_runs() -> None:
    a = torch.ones(16, 16, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    b = a @ a
    assert torch.cuda.memory_allocated() == 2048
    assert torch.cuda.max_memory_allocated() == 2048 + cublas_workspace()
    del b
    torch.cuda.reset_peak_memory_stats()
    c = torch.addmm(a[0], a, a)  # computed by cuBLASLt, with a workspace of its own
    assert torch.cuda.memory_allocated() == 2048
    assert torch.cuda.max_memory_allocated() == 2048 + MIB
    del c


@pytest.mark.virtual_only("the numbers are those of an A100")
def test_out_of_memory_has_cudas_message_and_leaves_a_usable_device() -> None:
    first = take(70 * GIB)
    words = (
        r"CUDA out of memory\. Tried to allocate 20\.00 GiB\. GPU 3 has a total capacity of "
        r"79\.15 GiB of which 8\.76 GiB is free\. Including non-PyTorch memory, this process has "
        r"70\.39 GiB memory in use\. Of the allocated memory 70\.00 GiB is allocated by PyTorch"
    )
    with pytest.raises(torch.OutOfMemoryError, match=words):
        take(20 * GIB)
    assert torch.cuda.memory_stats()["num_ooms"] >= 1
    del first
    assert take(20 * GIB).numel() == 20 * GIB


@pytest.mark.whole_gpu
def test_out_of_memory_states_what_the_driver_reports() -> None:
    first = take(8 * GIB)
    free, total = (
        f"{size / GIB:.2f} GiB".replace(".", r"\.") for size in torch.cuda.mem_get_info()
    )
    words = (
        rf"CUDA out of memory\. Tried to allocate 1024\.00 GiB\. GPU {DEVICE} has a total capacity "
        rf"of {total} of which {free} is free\. .*this process has .* memory in use\. Of the "
        r"allocated memory 8\.00 GiB is allocated by PyTorch, and 0 bytes is reserved by PyTorch"
    )
    with pytest.raises(torch.OutOfMemoryError, match=words):
        take(1024 * GIB)
    del first


@pytest.mark.whole_gpu
def test_out_of_memory_comes_before_the_operator_computes() -> None:
    kept = take(78 * GIB)
    small = torch.ones(1, 1, device="cuda")
    # The result has 4 TiB, which does not fit on the host either.
    with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 4096\.00 GiB"):
        small.expand(2**20, 2**20).neg()
    del kept


def test_an_exhausted_fraction_stops_an_operator_before_it_computes() -> None:
    mean, variance = torch.zeros(4, device="cuda"), torch.ones(4, device="cuda")
    values = torch.ones(1, 4, 1, 1, device="cuda").expand(64, 4, 64, 64)  # a result of 4 MiB
    torch.cuda.set_per_process_memory_fraction(4 * MIB / torch.cuda.mem_get_info()[1])
    try:
        with pytest.raises(torch.OutOfMemoryError, match=r"4\.00 MiB allowed"):
            torch.nn.functional.batch_norm(values, mean, variance, training=True)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert mean.tolist() == [0.0] * 4
    torch.nn.functional.batch_norm(values, mean, variance, training=True)
    assert mean.tolist() == pytest.approx([0.1] * 4)


def count_allocations() -> dict[str, int]:
    """Return the allocations of a few operators, some of which need host memory."""
    images, kernel = torch.ones(2, 3, 16, 16, device="cuda"), torch.ones(4, 3, 3, 3, device="cuda")
    torch.cuda.synchronize()
    torch.cuda.reset_accumulated_memory_stats()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    images + 1
    images.sort(stable=True)
    images.cumsum(2)
    with torch.no_grad():
        torch.nn.functional.conv2d(images, kernel)
    stats = torch.cuda.memory_stats()
    counts = {name: stats[name] for name in stats if name.endswith((".allocated", ".freed"))}
    counts |= {name: stats[name] for name in stats if name.startswith("num_")}
    return counts | {"peak": torch.cuda.max_memory_allocated() - before}


@pytest.mark.whole_gpu
def test_a_nearly_full_gpu_counts_the_same_allocations() -> None:
    with torch.no_grad():
        expected = count_allocations()
        # Less than rounding may add to a request, so that each result is checked in advance.
        kept = take(torch.cuda.mem_get_info()[0] - 4 * MIB)
        assert count_allocations() == expected
    del kept


@pytest.mark.whole_gpu
def test_checking_for_room_does_not_empty_the_cache() -> None:
    free = torch.cuda.mem_get_info()[0]
    kept, cached = take(free - 80 * MIB), take(50 * MIB)  # a real driver keeps some of the rest
    del cached
    small = torch.ones(1, device="cuda")
    torch.cuda.reset_accumulated_memory_stats()
    large = small.expand(5 * MIB).neg()  # 20 MiB, cut from the 50
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == 1
    assert torch.cuda.memory_stats()["num_alloc_retries"] == 0
    del large
    # For 56 MiB the cached 50 are released once, when the result is allocated.
    small.expand(14 * MIB).neg()
    stats = torch.cuda.memory_stats()
    assert stats["num_alloc_retries"] == 1
    assert stats["allocation.all.allocated"] == 2
    del kept


@pytest.mark.whole_gpu
def test_a_fraction_of_the_gpu() -> None:
    size = torch.cuda.mem_get_info()[1] // 2
    allowed = re.escape(f"{size / GIB:.2f} GiB allowed")
    torch.cuda.set_per_process_memory_fraction(0.5)
    try:
        with pytest.raises(torch.OutOfMemoryError, match=allowed):
            take(size + MIB)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    take(size + MIB)


def test_a_block_in_use_on_another_stream_waits() -> None:
    side = torch.cuda.Stream()
    tensor = take(MIB)
    address = tensor.data_ptr()
    blocks = torch.cuda.memory_stats()["active.all.current"]
    with torch.cuda.stream(side):
        torch.cuda._sleep(10**9)
    tensor.record_stream(side)
    del tensor
    assert address
    assert torch.cuda.memory_allocated() == 0
    assert torch.cuda.memory_stats()["active.all.current"] == blocks
    torch.cuda.synchronize()
    take(MIB)
    assert torch.cuda.memory_stats()["active.all.current"] == blocks - 1


def test_streams_do_not_share_free_blocks() -> None:
    tensor = take(MIB)
    del tensor
    with torch.cuda.stream(torch.cuda.Stream()):
        other = take(MIB)
    assert torch.cuda.memory_reserved() == 4 * MIB
    del other


def test_storages_shrink_and_grow() -> None:
    tensor = torch.arange(1024.0, device="cuda")
    storage = tensor.untyped_storage()
    storage.resize_(0)
    assert torch.cuda.memory_allocated() == 0
    storage.resize_(4096)
    assert torch.cuda.memory_allocated() == 4096
    assert torch.UntypedStorage(600, device="cuda").device.type == "cuda"
    assert torch.UntypedStorage(device=f"cuda:{OTHER}").nbytes() == 0
    assert torch.UntypedStorage(5, device="cpu").device.type == "cpu"
    assert torch.UntypedStorage(5).resize_(9).nbytes() == 9
    of_bytes = torch.UntypedStorage([1, 2], device=f"cuda:{OTHER}")
    assert (of_bytes.device, of_bytes.tolist()) == (torch.device("cuda", OTHER), [1, 2])


@pytest.mark.whole_gpu
def test_an_observer_is_called_when_memory_runs_out() -> None:
    reported: list[tuple[int, ...]] = []
    torch._C._cuda_attach_out_of_memory_observer(lambda *sizes: reported.append(sizes))
    kept = torch.empty(30 * MIB, dtype=torch.uint8, device=f"cuda:{OTHER}")
    free, total = torch.cuda.mem_get_info(OTHER)
    for fraction in (1.0, 0.5):
        torch.cuda.set_per_process_memory_fraction(fraction, OTHER)
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(2**40, dtype=torch.uint8, device=f"cuda:{OTHER}")
    torch.cuda.set_per_process_memory_fraction(1.0, OTHER)
    # (device, bytes requested, bytes allowed, bytes free)
    assert reported == [(OTHER, 2**40, total, free), (OTHER, 2**40, total // 2, free)]
    del kept


def test_fresh_memory_is_zero() -> None:
    # As from a GPU's driver. Programs that forget to initialize memory rely on it.
    dirty = torch.full((64, 2**18), 7.0, device=f"cuda:{OTHER}")
    del dirty
    torch.cuda.empty_cache()
    sizes = (100, 2**18, 3 * 2**20, 2**24)
    fresh = [torch.empty(size, device=f"cuda:{OTHER}") for size in sizes]
    assert [tensor.count_nonzero().item() for tensor in fresh] == [0, 0, 0, 0]


def test_memory_without_a_tensor_belongs_to_its_stream() -> None:
    side = torch.cuda.Stream()
    for stream, handle in ((None, 0), (side, side.cuda_stream), (side.cuda_stream,) * 2):
        address = torch.cuda.caching_allocator_alloc(1000, stream=stream)
        segments = torch.cuda.memory_snapshot()
        (segment,) = (segment for segment in segments if segment["device"] == DEVICE)
        assert (segment["stream"], segment["allocated_size"]) == (handle, 1024)
        torch.cuda.caching_allocator_delete(address)
        torch.cuda.empty_cache()
