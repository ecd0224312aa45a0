"""The lines of a rehearsal's summary, from facts that are written by hand."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest

from anyrig.rehearsal.assumed_ranks import AssumedRanks
from anyrig.rehearsal.facts import (
    CollectiveTimes,
    DeviceFacts,
    Facts,
    Finding,
    MemoryFacts,
    PeakMemory,
    ProgramError,
    StepFacts,
    StepInterval,
    TypicalStep,
)
from anyrig.rehearsal.fault_facts import FaultFacts
from anyrig.rehearsal.summary import describe, describe_rate
from anyrig.rehearsal.watching import program_error_of
from anyrig.virtual.clock_settings import ClockSettings
from anyrig.virtual.rig import VirtualRig

GIB = 2**30
ABOUT = Facts("train.py", (), "T4", False, "2.13.0", "0.1.0")


def rows(facts: Facts) -> dict[str, list[str]]:
    """Return the lines of a summary by their titles."""
    found: dict[str, list[str]] = {}
    title = ""
    for line in describe(facts).splitlines()[1:]:
        title = line[2:13].strip() or title
        found.setdefault(title, []).append(line[13:])
    return found


def trained(*seconds: float, waits: tuple[int, ...] = (), first: int = 1, **of: Any) -> Facts:
    """Return facts of steps with these times."""
    steps, begin = [], 0.0
    for index, each in enumerate(seconds):
        counted = waits[index] if waits else 0
        step = StepFacts(index + 1, index < first, begin, begin + each, None, counted, 0.0, ())
        steps.append(replace(step, **of))
        begin += each
    numbers = tuple(range(first + 1, len(seconds) + 1)) or (1,)
    typical = TypicalStep(seconds[-1], None, numbers)
    return replace(ABOUT, steps=tuple(steps), typical_step=typical)


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        (trained(9.0), "9.00 s, the only one, which includes all that came before it"),
        (trained(9.0, 2.0), "2.00 s, the second of two; the first took 9.00 s"),
        (trained(9.0, 2.0, 2.0), "2.00 s, median of 2; the first took 9.00 s"),
        (
            trained(9.0, 4.0, 2.0, 2.0, first=2),
            "2.00 s, median of 2; the first 2 differ; the first took 9.00 s",
        ),
    ],
)
def test_which_steps_the_time_is_of(facts: Facts, text: str) -> None:
    assert rows(facts)["step"] == [text]


@pytest.mark.parametrize(
    ("of_steps", "text"), [((2, 3), "2 similar steps of 4"), ((5,), "1 similar step of 4")]
)
def test_typical_steps_that_are_not_all_later_ones_are_counted(
    of_steps: tuple[int, ...], text: str
) -> None:
    facts = trained(9.0, 2.0, 2.0, 5.0, 2.0)
    assert facts.typical_step is not None
    facts = replace(facts, typical_step=replace(facts.typical_step, of_steps=of_steps))
    assert rows(facts)["step"][0] == f"2.00 s, median of {text}; the first took 9.00 s"


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (12345.6, "12,346"),
        (999.7, "1,000"),
        (100.4, "100"),
        (99.96, "100"),
        (33.72, "33.7"),
        (1.492, "1.49"),
    ],
)
def test_a_rate_has_three_digits_or_all(rate: float, text: str) -> None:
    assert describe_rate(TypicalStep(1.0, rate, (2,))) == f"; {text} samples/s"


def test_the_rate_and_the_data_loader() -> None:
    facts = trained(9.0, 2.0, 2.0, loader_wall_seconds=0.5)
    typical = TypicalStep(2.0, 12_345.6, (2, 3))
    assert rows(replace(facts, typical_step=typical))["step"] == [
        "2.00 s, median of 2; the first took 9.00 s; 12,346 samples/s",
        "not counted: 500.00 ms in the data loader, by the clock of this machine",
    ]


@pytest.mark.parametrize(
    ("waits", "text"),
    [
        ((9, 1, 1), "the host waits for a GPU once in a step"),
        ((0, 3, 3), "the host waits for a GPU 3 times in a step"),
        ((9, 3, 1), "the host waits for a GPU 1 to 3 times in a step"),
        ((9, 0, 2), "the host waits for a GPU 0 to 2 times in a step"),
        ((9, 0, 0), None),
    ],
)
def test_waits_are_those_of_the_typical_steps(waits: tuple[int, ...], text: str | None) -> None:
    assert rows(trained(9.0, 2.0, 2.0, waits=waits))["step"][1:] == ([] if text is None else [text])


def test_a_given_time_of_the_host_is_named_with_its_flag() -> None:
    text = "the host takes 8.0 us for an operator with its launch, by --host-launch"
    assert text in rows(replace(trained(9.0, 2.0), clock=ClockSettings(8e-6)))["step"]
    assert "--host-launch" not in describe(trained(9.0, 2.0))


def test_older_libraries_are_named_with_their_flag() -> None:
    facts = replace(trained(9.0, 2.0), clock=ClockSettings(libraries="torch=1.7"))
    assert "kernels are timed as those of torch=1.7, by --libraries" in rows(facts)["step"]
    assert "--libraries" not in describe(trained(9.0, 2.0))


def test_collectives_are_named_where_they_took_time() -> None:
    facts = trained(9.0, 2.0)
    across = replace(facts, collectives=CollectiveTimes(0.0, 0.5, 0.25))
    assert rows(across)["step"][1] == (
        "collectives take 500.00 ms across nodes; for 250.00 ms no kernel runs at the same time"
    )


def test_a_step_has_the_interval_of_its_kind() -> None:
    interval = StepInterval(1.8, 2.4, 22, "training steps, on GPUs (L4)", 1.1)
    known = rows(replace(trained(9.0, 2.0), step_interval=interval))["step"]
    assert known[0].startswith(
        "2.00 s, between 1.8 and 2.4 s (9 of 10 programs of this kind were), the second of two"
    )
    assert known[1] == "of this kind: 22 measured training steps, on GPUs (L4)"


def test_a_step_of_which_nothing_is_known_says_why() -> None:
    interval = StepInterval(None, None, 0, "nobody measured it", None)
    unknown = rows(replace(trained(9.0, 2.0), step_interval=interval))["step"]
    assert "between" not in unknown[0]
    assert unknown[1] == "how far that is off is not known: nobody measured it"


def device(rank: int = 0, index: int = 0) -> DeviceFacts:
    peak = PeakMemory(5 * GIB, 3 * GIB, GIB, GIB // 2, 0, GIB // 2, 11 * GIB)
    return DeviceFacts(index, rank, "T4", 16 * GIB, peak, 0.374, 0.006, 0.62)


KINDS = {"parameters": GIB, "gradients": 0, "optimizer": 2 * GIB, "activations": 0, "other": 0}


def memory(rank: int = 0, index: int = 0) -> MemoryFacts:
    return MemoryFacts(index, rank, (), (), (), (), (), KINDS)


def test_a_device_has_its_shares_its_peak_and_its_tensors() -> None:
    facts = replace(ABOUT, devices=(device(index=1),), memory=(memory(), memory(index=1)))
    assert rows(facts)["cuda:1"] == [
        "busy 37 %, waiting 1 %, idle 62 %",
        "peak 5.00 GiB of 16.00 GiB, 11.00 GiB left: tensors 3.00 GiB, workspaces 1.00 GiB, "
        "cached 512.00 MiB, context 512.00 MiB",
        "tensors at the peak: parameters 1.00 GiB, optimizer 2.00 GiB",
    ]
    unknown = replace(memory(index=1), kinds_at_peak=None)
    assert len(rows(replace(facts, memory=(memory(), unknown)))["cuda:1"]) == 2


def test_the_most_memory_is_stated_where_it_is_known() -> None:
    known = replace(device(), peak=replace(device().peak, most_bytes=6 * GIB))
    text = rows(replace(ABOUT, devices=(known,)))["cuda:0"][2]
    assert text.startswith("at most 6.00 GiB, with what other fragmentation, ")
    assert text.endswith("the driver may add")
    full = replace(known, peak=replace(known.peak, most_bytes=17 * GIB))
    text = rows(replace(ABOUT, devices=(full,)))["cuda:0"][2]
    assert text.endswith("may add, which is more than the GPU has")


@pytest.mark.parametrize(
    ("unused", "name"), [((1,), "cuda:1"), ((1, 2, 3), "cuda:1-3"), ((1, 3), "cuda:1,3")]
)
def test_gpus_that_were_not_used_are_named(unused: tuple[int, ...], name: str) -> None:
    lines = rows(replace(ABOUT, devices=(device(),), unused_devices=unused))[name]
    assert lines[0].startswith("not used: the script computes on cuda:0 only. Rehearse it with --r")
    assert "--rig T4, or spread" in lines[0]
    assert "anyrig.spread(model)" in lines[1]
    assert "not used" not in describe(replace(ABOUT, devices=(device(),)))


def refused(index: int, allocated: str, cached: str) -> ProgramError:
    text = (
        f"CUDA out of memory. Tried to allocate 20.00 MiB. GPU {index} has a total capacity of "
        "16.00 GiB of which 9.00 MiB is free. Including non-PyTorch memory, this process has 5 GiB "
        f"memory in use. Of the allocated memory {allocated} is allocated by PyTorch, and {cached} "
        "is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try"
    )
    return ProgramError("OutOfMemoryError", text, "train.py:9")


def test_the_moment_of_an_error_of_memory_is_told_apart_from_the_peak() -> None:
    later = replace(ABOUT, devices=(device(), device(0, 1)), error=refused(1, "4.90 GiB", "3 MiB"))
    assert rows(later)["cuda:1"][2:] == [
        "when it ran out of memory, after the peak: 4.90 GiB allocated, cached 3.00 MiB, 9.00 MiB "
        "left"
    ]
    assert len(rows(later)["cuda:0"]) == 2
    same = replace(later, error=refused(0, "4.00 GiB", "512.00 MiB"))
    assert rows(same)["cuda:0"][2:] == ["the peak is when it ran out of memory"]
    ranks = replace(later, devices=(device(0, 1), device(1, 1)))  # which one is not known
    assert "when it ran out" not in describe(ranks)
    other = replace(later, error=replace(refused(1, "4.90 GiB", "3 MiB"), kind="ValueError"))
    assert "when it ran out" not in describe(other)


def test_ranks_are_named_where_there_are_several() -> None:
    two = replace(ABOUT, devices=(device(), device(1)), memory=(memory(), memory(1)))
    assert [text[:8] for text in rows(two)["cuda:0"]] == ["rank 0, "] * 3 + ["rank 1, "] * 3
    one = replace(ABOUT, devices=(device(), device(0, 1)))
    assert "rank" not in describe(one)


def test_an_error_without_a_line_and_a_rehearsal_without_data() -> None:
    failed = replace(ABOUT, shape_only=True, error=ProgramError("KeyError", "'lr'", None))
    assert describe(failed).splitlines()[:2] == [
        "anyrig: train.py on virtual GPUs T4, without data",
        "  ended by   KeyError",
    ]


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (1, "sys.exit(1) at test_summary.py:"),
        ("no data", "sys.exit('no data') at test_summary.py:"),
        ("no data " * 99, f"sys.exit('{'no data ' * 11}no … at test_summary.py:"),
        (0, None),
        (None, None),
    ],
)
def test_a_program_that_ends_itself_with_an_error_says_so(code: Any, text: str | None) -> None:
    with pytest.raises(SystemExit) as raised:
        sys.exit(code)
    error = program_error_of(raised.value)
    if text is None:
        assert error is None
    else:
        assert rows(replace(ABOUT, error=error))["ended by"][0].startswith(text)


def finding(code: str, saved: float | None, line: str | None = "train.py:3") -> Finding:
    return Finding(code, "It waits", line, saved, None, "", "Do not wait.")


def test_a_finding_has_its_saving_as_a_part_of_the_typical_step() -> None:
    facts = trained(9.0, 2.0, 2.0)
    largest = [finding(f"R0{n}", 0.5 - n / 100) for n in range(3)]
    found = (*largest, finding("R09", None, None))
    lines = rows(replace(facts, findings=found))
    assert lines["R00"] == ["It waits at train.py:3: 500.00 ms of a step (25 %)", "Do not wait."]
    assert lines["R02"][2:] == ["1 more finding is in the files of --report and --json"]
    about = (replace(largest[0], is_estimate=True),)
    (title, _) = rows(replace(facts, findings=about))["R00"]
    assert title == "It waits at train.py:3: about 500.00 ms of a step (25 %)"
    assert rows(replace(facts, findings=found[3:]))["R09"] == ["It waits", "Do not wait."]
    assert len(rows(replace(facts, findings=found[:3]))["R02"]) == 2


def test_ranks_that_were_ended_leave_only_the_failure() -> None:
    fault = FaultFacts(1, 3, "kill", 1.0, happened=False)
    lines = describe(replace(ABOUT, fault=fault)).splitlines()
    assert lines[1:] == ["  failure    did not happen: rank 1 never took step 3"]
    assert "step" in rows(replace(ABOUT, fault=fault, devices=(device(),)))


@pytest.mark.parametrize(
    ("rig", "expected"),
    [
        (
            "8xH100-SXM",
            AssumedRanks(8, 1, "NVLink", 450e9, 50e9, network_is_assumed=True),
        ),
        (
            "2x(2xT4)@25GB/s",
            AssumedRanks(4, 2, "PCIe", 16e9, 25e9, network_is_assumed=False),
        ),
    ],
)
def test_the_assumed_ranks_of_a_rig(rig: str, expected: AssumedRanks) -> None:
    found = AssumedRanks.on(VirtualRig.parse(rig))
    assert replace(found, link_bytes_per_second=0.0) == replace(expected, link_bytes_per_second=0.0)
    assert found.link_bytes_per_second == pytest.approx(expected.link_bytes_per_second, rel=0.1)


def test_ranks_on_several_nodes_have_a_network() -> None:
    one = AssumedRanks(8, 1, "NVLink", 450e9, 50e9, network_is_assumed=True)
    assert rows(replace(ABOUT, assumed_ranks=one))["ranks"] == [
        "rank 0 of 8 ran, on 1 node of 8 GPUs. The others are assumed to be like it",
        "and to reach each collective at the same time, so no wait for a slower rank is seen",
        "NVLink of 450 GB/s joins the GPUs of a node, by their data sheet",
    ]
    many = AssumedRanks(1024, 128, "NVLink", 450e9, 12.5e9, network_is_assumed=True)
    lines = rows(replace(ABOUT, assumed_ranks=many))["ranks"]
    assert lines[0].startswith("rank 0 of 1,024 ran, on 128 nodes of 8 GPUs.")
    assert lines[3:] == [
        "a network of 12.5 GB/s for each GPU joins the nodes: assumed, as --rig names no @rate",
        "the latencies between nodes are NCCL's own estimates",
    ]
    named = replace(many, network_is_assumed=False)
    assert rows(replace(ABOUT, assumed_ranks=named))["ranks"][3].endswith("the nodes: by --rig")
