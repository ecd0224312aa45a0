from __future__ import annotations

import ctypes

import pytest
import torch

from anyrig.virtual import clock, installation

DEVICE, OTHER = "cuda:1", 2
SIZE = 2048


def elapsed(work: object, device: int = 0) -> float:
    assert callable(work)
    start = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end)


@pytest.fixture(scope="module")
def square() -> torch.Tensor:
    return torch.ones(SIZE, SIZE, device="cuda")


@pytest.mark.virtual_only("the times are those of a virtual A100")
def test_a_product_takes_its_flops_over_the_rate(square: torch.Tensor) -> None:
    # At most an A100's published rate, and most of it.
    milliseconds = elapsed(lambda: square @ square)
    at_least = 2 * SIZE**3 / 19.5e12 * 1e3
    assert at_least < milliseconds < 2 * at_least


@pytest.mark.virtual_only("the times are those of a virtual A100")
def test_a_copy_on_another_stream_overlaps(square: torch.Tensor) -> None:
    pinned = torch.empty(32 * 2**20, dtype=torch.uint8).pin_memory()
    side = torch.cuda.Stream()

    def copy() -> None:
        pinned.to("cuda", non_blocking=True)

    def multiply() -> None:
        square @ square

    def one_after_the_other() -> None:
        copy()
        multiply()

    def together() -> None:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            copy()
        multiply()
        torch.cuda.current_stream().wait_stream(side)

    alone = elapsed(copy), elapsed(multiply)
    assert elapsed(one_after_the_other) == pytest.approx(sum(alone), rel=0.1)
    assert elapsed(together) == pytest.approx(max(alone), rel=0.1)


@pytest.mark.virtual_only("the times are those of a virtual A100")
def test_the_host_waits_for_a_value() -> None:
    x = torch.ones(1, device="cuda")
    torch.cuda.synchronize()
    before = clock().host_seconds
    torch.cuda._sleep(14_100_000)  # 10 ms
    assert clock().host_seconds - before < 1e-4
    x.item()
    assert clock().host_seconds - before == pytest.approx(0.01, rel=0.01)


def test_the_current_stream() -> None:
    stream = torch.cuda.Stream()
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    with torch.cuda.stream(stream):
        assert torch.cuda.current_stream() == stream
        assert torch.cuda.current_stream().cuda_stream != 0
    assert torch.cuda.current_stream().cuda_stream == 0
    assert torch.cuda.Stream(device=DEVICE).device == torch.device(DEVICE)
    assert isinstance(stream, torch.Stream)


def test_an_event_is_done_when_its_stream_is() -> None:
    event = torch.cuda.Event()
    assert event.query()
    torch.cuda._sleep(10**8)
    event.record()
    assert not event.query()
    event.synchronize()
    assert event.query()
    assert isinstance(event, torch.Event)
    assert torch.cuda.current_stream().query()


def test_elapsed_time_needs_recorded_events_with_timing() -> None:
    timed = torch.cuda.Event(enable_timing=True)
    with pytest.raises(ValueError, match="created with argument 'enable_timing=True'"):
        timed.elapsed_time(torch.cuda.Event())
    with pytest.raises(ValueError, match="must be recorded"):
        timed.elapsed_time(torch.cuda.Event(enable_timing=True))


def test_elapsed_time_needs_the_end_of_both_events() -> None:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    torch.cuda._sleep(14_100_000)  # 10 ms
    end.record()
    start.synchronize()
    for events in ((start, end), (end, start)):
        with pytest.raises(RuntimeError, match="Both events must be completed before"):
            events[0].elapsed_time(events[1])
    end.synchronize()
    if installation() is not None:  # a real GPU sleeps in its own clock
        assert start.elapsed_time(end) == pytest.approx(10, rel=0.01)


def test_two_devices_work_at_the_same_time(square: torch.Tensor) -> None:
    other = square.to("cuda:1")

    def both() -> None:
        square @ square
        other @ other
        torch.cuda.synchronize(1)

    def one() -> None:
        square @ square

    assert elapsed(both) < 1.5 * elapsed(one)


def test_priorities() -> None:
    lowest, highest = torch.cuda.Stream.priority_range()
    for priority in range(highest, lowest + 1):
        assert torch.cuda.Stream(priority=priority).priority == priority
    assert torch.cuda.Stream(priority=highest - 1).priority == highest
    assert torch.cuda.Stream(priority=lowest + 1).priority == lowest


def test_an_event_belongs_to_the_device_where_it_is_recorded() -> None:
    event = torch.cuda.Event(enable_timing=True)
    assert event.device is None
    with torch.cuda.device(1):
        other = torch.cuda.current_stream().record_event(torch.cuda.Event(enable_timing=True))
    event.record()
    torch.cuda.synchronize()
    assert (event.device, other.device) == (torch.device("cuda:0"), torch.device("cuda:1"))
    with pytest.raises(torch.AcceleratorError, match="invalid resource handle"):
        event.elapsed_time(other)


@pytest.mark.virtual_only("the times are those of a virtual A100")
@pytest.mark.parametrize("what", ["event", "stream"])
def test_a_polling_loop_ends(what: str) -> None:
    torch.cuda._sleep(10**9)
    event = torch.cuda.current_stream().record_event()
    waited_for = event if what == "event" else torch.cuda.current_stream()
    rounds = 0
    while not waited_for.query():
        rounds += 1
    assert 1 < rounds < 50


@pytest.mark.virtual_only("the times are those of a virtual A100")
def test_occasional_queries_hardly_advance_the_clock() -> None:
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(10**9)

    def query_after_each() -> None:
        for _ in range(100):
            torch.ones(1, device="cuda")
            side.query()

    def never_query() -> None:
        for _ in range(100):
            torch.ones(1, device="cuda")

    assert elapsed(query_after_each) < 1.5 * elapsed(never_query)


def test_a_stream_of_another_library() -> None:
    runtime = torch.cuda.cudart()
    address = ctypes.c_ulonglong(0)
    assert runtime.cudaStreamCreate(ctypes.addressof(address)) == 0
    assert address.value != 0
    stream = torch.cuda.ExternalStream(address.value, device=DEVICE)
    assert (stream.cuda_stream, stream.device) == (address.value, torch.device(DEVICE))
    assert runtime.cudaStreamDestroy(address.value) == 0


def test_a_stream_handle_is_unique_in_the_process() -> None:
    devices = range(min(2, torch.cuda.device_count()))
    streams = [torch.cuda.Stream(device) for device in devices for _ in range(32)]
    numbers = [stream.cuda_stream for stream in streams]
    assert len(set(numbers)) == len(streams)
    assert 0 not in numbers
    assert [torch.cuda.default_stream(device).cuda_stream for device in devices] == [0] * len(
        devices
    )
    for stream, number in ((streams[place], numbers[place]) for place in (0, len(streams) - 24)):
        external = torch.cuda.ExternalStream(number, device=stream.device)
        got = torch.cuda.get_stream_from_external(number, stream.device)
        assert external.cuda_stream == got.cuda_stream == number
        with torch.cuda.stream(external):
            torch.cuda._sleep(10**8)  # 50 ms
            assert torch._C._cuda_getCurrentRawStream(stream.device.index) == number
            x = torch.empty(8, device=stream.device)
        assert not stream.query()  # the same stream
        segments = torch.cuda.memory_snapshot()
        assert number in [segment["stream"] for segment in segments]
        stream.synchronize()
        del x


@pytest.mark.parametrize("priority", [0, -1])
def test_the_streams_of_a_priority_are_handed_out_in_turn(priority: int) -> None:
    streams = [torch.cuda.Stream(OTHER, priority=priority) for _ in range(65)]
    numbers = [stream.stream_id for stream in streams]
    assert len(set(numbers)) == 32
    assert numbers[:33] == numbers[32:]
    assert {stream.priority for stream in streams} == {priority}
    others = {torch.cuda.Stream(OTHER, priority=-1 - priority).stream_id for _ in range(32)}
    assert others.isdisjoint(numbers)


def test_memory_used_on_another_stream_is_reused_when_its_work_is_done() -> None:
    mine, other = torch.cuda.Stream(), torch.cuda.Stream()

    def allocate() -> torch.Tensor:
        with torch.cuda.stream(mine):
            return torch.rand(1, device="cuda")

    x = allocate()
    address = x.data_ptr()
    x.record_stream(other)
    with torch.cuda.stream(other):
        torch.cuda._sleep(10**8)
    del x
    y = allocate()
    assert y.data_ptr() != address
    other.synchronize()
    assert allocate().data_ptr() == address
