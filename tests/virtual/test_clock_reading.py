"""The text and the totals of a reading of the virtual clock."""

from __future__ import annotations

from anyrig.virtual.clock_reading import (
    ClockReading,
    DeviceReading,
    KernelSeconds,
    StreamReading,
)


def device(index: int, *done_seconds: float) -> DeviceReading:
    streams = tuple(StreamReading(i, done, 0.5) for i, done in enumerate(done_seconds))
    kernels = KernelSeconds(0.0001, 0.0004, 0.0003, 0.0002)
    return DeviceReading(index, 0.001, kernels, 0.002, 0.003, 4.5e12, 6.7e9, streams)


def test_a_device_is_done_with_its_last_stream() -> None:
    assert device(0, 2.0, 3.0, 1.0).done_seconds == 3.0
    assert device(0).done_seconds == 0.0


def test_everything_is_done_with_the_last_device_or_the_host() -> None:
    assert ClockReading(5.0, (device(0, 2.0), device(1, 3.0))).done_seconds == 5.0
    assert ClockReading(1.0, (device(0, 2.0), device(1, 3.0))).done_seconds == 3.0
    assert ClockReading(1.0, ()).done_seconds == 1.0


def test_the_text_has_one_line_per_device() -> None:
    assert str(ClockReading(0.25, (device(0, 2.0), device(3)))) == (
        "host at 250.000 ms\n"
        "cuda:0 done at 2000.000 ms: computed 1.000 ms, copied 2.000 ms, collectives 3.000 ms, "
        "4.500 TFLOP, 6.700 GB\n"
        "cuda:3 done at 0.000 ms: computed 1.000 ms, copied 2.000 ms, collectives 3.000 ms, "
        "4.500 TFLOP, 6.700 GB"
    )
