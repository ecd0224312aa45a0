"""torch.cuda.memory._record_memory_history: traces, stacks, and PyTorch's viewer."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import device_memory
import pytest
import torch
from device_memory import own_segments, take
from torch.cuda import _memory_viz

from anyrig.virtual import load_extension

DEVICE = 7  # used only by the tests of pools, history and temporaries
MIB = 2**20
MAPPINGS = Path("/proc/self/maps")
TRACES_POOLS = torch.__version__ >= (2, 12)


@pytest.fixture(autouse=True)
def unrecorded_afterwards(own_device: None) -> Iterator[None]:
    yield
    torch.cuda.memory._record_memory_history(None)


def trace() -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = torch.cuda.memory._snapshot()["device_traces"][DEVICE]
    return entries


def names(frames: list[dict[str, Any]]) -> list[str]:
    return [frame["name"] for frame in frames]


def test_every_action_is_traced() -> None:
    torch.cuda.memory._record_memory_history(stacks="python")
    tensor = take(3 * MIB)
    del tensor
    torch.cuda.empty_cache()
    entries = trace()
    assert [entry["action"] for entry in entries] == [
        "segment_alloc",
        "alloc",
        "free_requested",
        "free_completed",
        "segment_free",
    ]
    assert [entry["size"] for entry in entries] == [
        20 * MIB,
        3 * MIB,
        3 * MIB,
        3 * MIB,
        20 * MIB,
    ]
    assert len({entry["addr"] for entry in entries}) == 1
    for entry in entries[:4]:
        assert names(entry["frames"])[0] in ("take", "test_every_action_is_traced")
        assert entry["frames"][0]["filename"] in (__file__, device_memory.__file__)
        assert entry.get("pool_id") == ((0, 0) if TRACES_POOLS else None)
    assert entries[0]["time_us"] <= entries[-1]["time_us"]
    assert trace()[5]["action"] == "snapshot"  # the first look, which its own trace does not show


def test_live_blocks_and_segments_have_stacks() -> None:
    torch.cuda.memory._record_memory_history("state", stacks="python")
    whole = take(20 * MIB)
    (segment,) = own_segments()
    assert names(segment["frames"])[0] == "take"
    del whole
    torch.cuda.empty_cache()
    tensor = take(5000)
    (segment,) = own_segments()
    assert segment["frames"] == []  # PyTorch leaves the segment's stack with the split's rest
    used, free = segment["blocks"]
    assert (used["state"], free["state"]) == ("active_allocated", "inactive")
    assert names(used["frames"])[0] == "take"
    assert free["frames"] == []
    address = tensor.untyped_storage().data_ptr()
    traceback = getattr(torch.cuda.memory, "_allocation_traceback", None)
    if traceback is not None:  # from PyTorch 2.12 on
        assert names(traceback(address))[0] == "take"
        del tensor
        assert traceback(address) is None


def test_actions_have_stacks_if_requested() -> None:
    found = []
    for context in ("state", "alloc", "all"):
        torch.cuda.memory._record_memory_history("all", context=context, stacks="python")
        tensor = take(5000)
        snapshot = torch.cuda.memory._snapshot()
        (segment,) = (part for part in snapshot["segments"] if part["device"] == DEVICE)
        used = segment["blocks"][0]
        del tensor
        entries = {entry["action"]: "frames" in entry for entry in trace()}
        found.append((bool(used["frames"]), entries["alloc"], entries["free_requested"]))
        torch.cuda.memory._record_memory_history(None)
        torch.cuda.empty_cache()
    assert found == [(True, False, False), (True, True, True), (True, True, True)]


@pytest.mark.virtual_only("its memory is the host's")
@pytest.mark.skipif(not MAPPINGS.exists(), reason="this system does not list its mappings")
def test_recorded_memory_is_returned_to_the_host() -> None:
    torch.cuda.memory._record_memory_history("all", stacks="python")
    tensor, other = take(3 * MIB), take(2 * MIB)
    address = f"{tensor.data_ptr():x}-"
    assert address in MAPPINGS.read_text()
    del tensor
    assert address in MAPPINGS.read_text()  # the other tensor is there too
    del other
    assert address not in MAPPINGS.read_text()


@pytest.mark.skipif(not TRACES_POOLS, reason="before 2.12 a trace does not name pools")
def test_the_trace_of_one_pool() -> None:
    torch.cuda.memory._record_memory_history(stacks="python")
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        inside = take(1)
    outside = take(MIB)
    (segment,) = pool.snapshot()
    assert segment["allocated_size"] == 512
    sizes = [entry["size"] for entry in trace() if entry["pool_id"] == pool.id]
    assert sizes[:2] == [2 * MIB, 1]
    del inside, outside, pool


@pytest.mark.whole_gpu
def test_out_of_memory_is_traced() -> None:
    torch.cuda.memory._record_memory_history(stacks="python")
    with pytest.raises(torch.OutOfMemoryError):
        take(2**40)
    entry = trace()[-1]
    assert entry["action"] == "oom"
    assert entry["size"] == 2**40
    assert entry["device_free"] == torch.cuda.mem_get_info()[0]
    assert "take" in names(entry["frames"])


def test_the_newest_entries_are_kept() -> None:
    torch.cuda.memory._record_memory_history(max_entries=3, stacks="python")
    sizes = [512 * number for number in range(1, 6)]
    tensors = [take(size) for size in sizes]
    assert [entry["size"] for entry in trace()] == sizes[-3:]
    assert [entry["action"] for entry in trace()] == ["alloc", "alloc", "snapshot"]
    del tensors


def test_recording_only_the_state_keeps_one_entry() -> None:
    torch.cuda.memory._record_memory_history("state", max_entries=10, stacks="python")
    tensors = [take(512) for _ in range(3)]
    assert [entry["action"] for entry in trace()] == ["alloc"]
    assert [entry["action"] for entry in trace()] == ["snapshot"]
    del tensors


def test_options() -> None:
    torch.cuda.memory._record_memory_history(
        context=None, skip_actions=["segment_alloc", "snapshot"]
    )
    tensor = take(1)
    (entry,) = trace()
    assert entry["action"] == "alloc"
    assert "frames" not in entry
    torch.cuda.memory._record_memory_history(None)
    assert trace() == []
    del tensor
    with pytest.raises(RuntimeError, match="expected state to be 'state', 'all', or None"):
        torch.cuda.memory._record_memory_history("everything")  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="Unknown TraceEntry action: leak"):
        torch.cuda.memory._record_memory_history(skip_actions=["leak"])


def test_pytorch_draws_the_snapshot(tmp_path: Path) -> None:
    torch.cuda.memory._record_memory_history(stacks="python")
    tensor = take(3 * MIB)
    file = tmp_path / "snapshot.pickle"
    torch.cuda.memory._dump_snapshot(str(file))
    snapshot = pickle.loads(file.read_bytes())
    assert "<script" in _memory_viz.trace_plot(snapshot)
    assert "<script" in _memory_viz.segment_plot(snapshot)
    assert "20.0MiB" in _memory_viz.segsum(snapshot)
    assert "cudaMalloc" in _memory_viz.trace(snapshot)
    del tensor


def stacks_by_address() -> dict[int, list[str]]:
    """Return the function names in each block's stack, by the block's address."""
    found = {}
    for segment in torch.cuda.memory._snapshot()["segments"]:
        address = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == address
            if block["state"] == "active_allocated":
                found[address] = names(block["frames"])
            address += block["size"]
    return found


def test_a_snapshot_has_the_data_pointers_of_tensors() -> None:
    torch.cuda.memory._record_memory_history("all", stacks="python")

    def made_here() -> list[torch.Tensor]:
        small = [take(100), take(700), take(1)]
        del small[1]
        large = torch.rand(1500, 1000, device="cuda")
        grown = torch.empty(0, device="cuda").resize_(5000)
        return [large, large + large, small[0].clone(), large[:5].contiguous(), grown, *small]

    large, double, *rest = made_here()
    stacks = stacks_by_address()
    for tensor in (large, double, *rest):
        assert "made_here" in stacks[tensor.untyped_storage().data_ptr()]
    assert torch.equal(double.cpu(), 2 * large.cpu())
    torch.cuda.memory._record_memory_history(None)
    large.fill_(2)  # recorded memory remains usable
    assert (large + 1).sum().item() == 3 * 1500 * 1000
    del tensor, large, double, rest
    torch.cuda.empty_cache()
    torch.cuda.memory._record_memory_history("all", stacks="python")
    again = take(100).fill_(7)
    assert again.untyped_storage().data_ptr() in stacks_by_address()
    assert again.sum().item() == 700
    del again
    torch.cuda.empty_cache()


def test_invalid_arguments_raise() -> None:
    record = torch.cuda.memory._record_memory_history
    wrong: tuple[tuple[tuple[Any, ...], str], ...] = (
        (("some",), "expected state to be 'state', 'all', or None"),
        (("all", "free"), "expected context to be 'state', 'alloc', 'all', or None"),
        (("all", "all", "C++"), "expected stacks to be 'python', or 'all'"),
    )
    for arguments, words in wrong:
        with pytest.raises(RuntimeError, match=words):
            record(*arguments)


@pytest.mark.virtual_only("it calls the function of virtual GPUs, which has defaults")
def test_a_history_of_pinned_memory_alone_records_nothing() -> None:
    torch._C._cuda_record_memory_history("all", record_cuda=False)
    assert not torch._C._cuda_isHistoryEnabled()


@pytest.mark.parametrize(
    ("context", "made", "freed"),
    [
        (None, None, None),
        ("state", None, None),
        ("alloc", "take", "take"),  # PyTorch records the allocation's stack for a free
        ("all", "take", "test_which_actions_have_stacks"),
    ],
)
def test_which_actions_have_stacks(
    context: str | None, made: str | None, freed: str | None
) -> None:
    torch.cuda.memory._record_memory_history("all", context, stacks="python")
    tensor = take(3 * MIB)
    segments = torch.cuda.memory._snapshot()["segments"]
    (segment,) = (segment for segment in segments if segment["device"] == DEVICE)
    assert bool(segment["blocks"][0]["frames"]) == (context is not None)
    del tensor
    stacks = {entry["action"]: names(entry.get("frames", [])) for entry in trace()}
    innermost = {action: (stack or [None])[0] for action, stack in stacks.items()}
    assert (innermost["alloc"], innermost["segment_alloc"]) == (made, made)
    assert (innermost["free_requested"], innermost["free_completed"]) == (freed, freed)


def test_history_is_cleared_on_request() -> None:
    def sizes() -> list[int]:
        return [entry["size"] for entry in trace() if entry["action"] == "alloc"]

    torch.cuda.memory._record_memory_history(stacks="python")
    first = take(512)
    torch.cuda.memory._record_memory_history(stacks="python")
    second = take(1024)
    assert sizes() == [512, 1024]
    torch.cuda.memory._record_memory_history(stacks="python", clear_history=True)
    third = take(2048)
    assert sizes() == [2048]
    del first, second, third


def test_the_old_signature() -> None:
    record = torch.cuda.memory._record_memory_history
    for words, frames_of_alloc in (
        ({"trace_alloc_record_context": True}, True),
        ({"trace_alloc_record_context": False}, False),
    ):
        record(True, trace_alloc_max_entries=5, clear_history=True, **words)  # type: ignore[arg-type]
        tensor = take(3 * MIB)
        (entry,) = (entry for entry in trace() if entry["action"] == "alloc")
        assert ("frames" in entry) == frames_of_alloc
        segments = torch.cuda.memory._snapshot()["segments"]
        (segment,) = (segment for segment in segments if segment["device"] == DEVICE)
        assert segment["blocks"][0]["frames"]
        del tensor
        torch.cuda.empty_cache()
    record(True, record_context=False, clear_history=True)  # type: ignore[call-arg]
    tensor = take(3 * MIB)
    segments = torch.cuda.memory._snapshot()["segments"]
    (segment,) = (segment for segment in segments if segment["device"] == DEVICE)
    assert not segment["blocks"][0]["frames"]
    record(False)
    assert not torch._C._cuda_isHistoryEnabled()
    del tensor


def test_blocks_are_found_by_data_pointers() -> None:
    before = take(3 * MIB)
    torch.cuda.memory._record_memory_history(context=None)
    after = take(3 * MIB)
    found = {
        block.get("data_ptr", block["address"])
        for segment in torch.cuda.memory_snapshot()
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    }
    assert {before.data_ptr(), after.data_ptr()} <= found
    recorded = [entry["addr"] for entry in trace() if entry["action"] == "alloc"]
    assert recorded == [after.data_ptr()]


def test_actions_have_their_stream_and_the_programs_words() -> None:
    torch.cuda.memory._record_memory_history(context=None)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch._C._cuda_setMemoryMetadata("of the first epoch")
        assert torch._C._cuda_getMemoryMetadata() == "of the first epoch"
        inside = take(512)
        torch._C._cuda_setMemoryMetadata("")
    outside = take(512)
    made = [entry for entry in trace() if entry["action"] == "alloc"]
    assert [entry["user_metadata"] for entry in made] == ["of the first epoch", ""]
    assert [entry["stream"] for entry in made] == [side.cuda_stream, 0]
    assert {entry["compile_context"] for entry in made} == {"N/A"}
    assert "device_free" not in made[0]
    del inside, outside


@pytest.mark.virtual_only("it asks the library of virtual GPUs")
def test_a_snapshot_of_one_pool_has_the_trace_of_that_pool() -> None:
    torch.cuda.memory._record_memory_history(context=None)
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        inside = take(1)
    outside = take(MIB)
    found = load_extension().memory_snapshot(pool.id, True)
    if TRACES_POOLS:
        assert {entry["pool_id"] for entry in found["device_traces"][DEVICE]} == {pool.id}
    assert [segment["segment_pool_id"] for segment in found["segments"]] == [pool.id]
    del inside, outside, pool
