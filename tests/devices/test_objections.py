"""Why `choose` rejects a device, for every threshold and every value that may be unknown."""

import os

import pytest

from anyrig.devices.choice import _describe, _objection, _preference
from anyrig.devices.device import Device
from anyrig.devices.process import DeviceProcess
from anyrig.devices.reading import Reading

GIB = 2**30
GPU = Device("cuda", 0, "A100", total_bytes=80 * GIB)
BROKEN = Device("cuda", 0, "A100", error="it fell off the bus")
OURS = DeviceProcess(os.getpid(), "python", GIB)
THEIRS = DeviceProcess(7, "train", GIB)
NAMELESS = DeviceProcess(8, None, None)


@pytest.mark.parametrize(
    ("reading", "thresholds", "reason"),
    [
        (Reading(GPU), (None, None, False), None),
        (Reading(BROKEN), (None, None, False), "it fell off the bus"),
        (Reading(GPU, error="it is lost"), (None, None, False), "it is lost"),
        (Reading(BROKEN, error="it is lost"), (None, None, False), "it fell off the bus"),
        (Reading(GPU, free_bytes=GIB), (GIB, None, False), None),
        (
            Reading(GPU, free_bytes=GIB - 1),
            (GIB, None, False),
            "1024.00 MiB free, 1.00 GiB wanted",
        ),
        (Reading(GPU), (GIB, None, False), "? free, 1.00 GiB wanted"),
        (Reading(GPU), (0, None, False), None),
        (Reading(GPU, utilization=0.5), (None, 0.5, False), None),
        (Reading(GPU, utilization=0.51), (None, 0.5, False), "51% busy, at most 50% wanted"),
        (Reading(GPU, utilization=0.0), (None, 0, False), None),
        (Reading(GPU), (None, 1, False), "it does not report its utilization"),
        (Reading(GPU, processes=()), (None, None, True), None),
        (Reading(GPU, processes=(OURS,)), (None, None, True), None),
        (Reading(GPU, processes=(THEIRS,)), (None, None, False), None),
        (
            Reading(GPU, processes=(THEIRS, OURS, NAMELESS)),
            (None, None, True),
            "in use by train 7, process 8",
        ),
        # Where processes are not listed, the memory that others hold shows that they are there.
        (Reading(GPU), (None, None, True), "it does not report who uses it"),
        (Reading(GPU, others_bytes=0), (None, None, True), None),
        (
            Reading(GPU, others_bytes=GIB),
            (None, None, True),
            "1.00 GiB held by other processes",
        ),
        (Reading(GPU, others_bytes=GIB), (None, None, False), None),
        # Every threshold counts, not only the first.
        (
            Reading(GPU, free_bytes=GIB, utilization=0.9),
            (GIB, 0.5, True),
            "90% busy, at most 50% wanted",
        ),
        (
            Reading(GPU, free_bytes=GIB, utilization=0.1, processes=(THEIRS,)),
            (GIB, 0.5, True),
            "in use by train 7",
        ),
    ],
)
def test_objections(
    reading: Reading, thresholds: tuple[float | None, float | None, bool], reason: str | None
) -> None:
    assert _objection(reading, *thresholds) == reason


def test_the_most_free_memory_comes_first_and_the_unknown_last() -> None:
    readings = [
        Reading(GPU),
        Reading(GPU, free_bytes=GIB, utilization=0.5),
        Reading(GPU, free_bytes=GIB),  # what does not tell its work has none
        Reading(GPU, free_bytes=2 * GIB, utilization=0.9),
    ]
    assert sorted(readings, key=_preference) == [readings[place] for place in (3, 2, 1, 0)]


def test_a_device_that_is_taken_is_described_by_what_it_tells() -> None:
    assert _describe(Reading(GPU, free_bytes=GIB, utilization=0.0)) == "1.00 GiB free, 0% busy"
    assert _describe(Reading(GPU)) == "? free"
