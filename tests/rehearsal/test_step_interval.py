"""The kind of a step, and its interval."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from anyrig.hardware import Known, spec_of_key
from anyrig.rehearsal.facts import DeviceFacts, PeakMemory, TypicalStep
from anyrig.rehearsal.step_interval import interval_of_step
from anyrig.rehearsal.step_kind import kind_of_step
from anyrig.rehearsal.work_log import StepWorks

MEMORY, PRODUCT, CONVOLUTION, ATTENTION = range(4)
FLOAT32, TFLOAT32, BFLOAT16 = 1, 2, 3
PEAK = PeakMemory(1, 1, 0, 0, 0, 0, 1)
TYPICAL = TypicalStep(2.0, None, (2,))


def works(*kernels: tuple[int, int, float], backward: bool = False) -> dict[str, list[float]]:
    """The works of kernels that are given as (family, precision, seconds)."""
    given = map(list, zip(*kernels, strict=True))
    columns = dict(zip(("family", "precision", "seconds"), given, strict=True))
    others = {name: [0.0] * len(kernels) for name in ("pass", "backward", "access")}
    others["backward"][0] = float(backward)
    return {**columns, **others}


def kind(gpu: str, *kernels: tuple[int, int, float], **more: Any) -> tuple[Any, ...]:
    found = kind_of_step(works(*kernels, **more), spec_of_key(gpu))
    assert found is not None
    assert found.gpu == gpu
    return found.known, found.on_matrix_units, found.convolves, found.trains


def test_the_kind_is_that_of_most_of_the_time() -> None:
    mostly = [(CONVOLUTION, BFLOAT16, 2.0), (PRODUCT, FLOAT32, 1.0), (MEMORY, FLOAT32, 4.0)]
    assert kind("RTX-3090", *mostly) == (Known.STEPS, True, True, False)
    assert kind("RTX-3090", *mostly, backward=True) == (Known.STEPS, True, True, True)
    swapped = [(PRODUCT, FLOAT32, 2.0), (CONVOLUTION, BFLOAT16, 1.0), (MEMORY, FLOAT32, 4.0)]
    assert kind("RTX-3090", *swapped)[1:] == (False, False, False)


def test_a_gpu_without_matrix_units_for_a_dtype_computes_without_them() -> None:
    assert kind("T4", (CONVOLUTION, TFLOAT32, 1.0))[1] is False
    assert kind("P100-PCIe-16GB", (PRODUCT, 4, 1.0))[1] is False


def test_what_is_known_is_the_least_that_is_known_of_what_matters() -> None:
    assert kind("T4", (PRODUCT, FLOAT32, 1.0))[0] is Known.KERNELS
    assert kind("T4", (PRODUCT, 4, 1.0))[0] is Known.RELATIVES
    assert kind("T4", (PRODUCT, FLOAT32, 9.0), (PRODUCT, 4, 1.0))[0] is Known.KERNELS
    assert kind("T4", (PRODUCT, FLOAT32, 3.0), (PRODUCT, 4, 1.0))[0] is Known.RELATIVES
    assert kind("RTX-3090", (PRODUCT, FLOAT32, 1.0))[0] is Known.RELATIVES  # steps were in float16
    assert kind("RTX-4070", (ATTENTION, BFLOAT16, 1.0))[0] is Known.RELATIVES
    assert kind("A30", (PRODUCT, BFLOAT16, 1.0))[0] is Known.RELATIVES
    assert kind("B200", (PRODUCT, BFLOAT16, 1.0))[0] is Known.NOTHING


def test_works_that_take_no_time_have_no_kind() -> None:
    assert kind_of_step(works((MEMORY, FLOAT32, 0.0)), spec_of_key("T4")) is None


def device(gpu: str, busy: float = 0.9) -> DeviceFacts:
    return DeviceFacts(0, 0, gpu, 2, PEAK, busy, 0.0, 1 - busy)


IMAGES = StepWorks(2, works((CONVOLUTION, BFLOAT16, 1.0)))


def test_an_interval_holds_the_step() -> None:
    found = interval_of_step(TYPICAL, [device("RTX-4090")], [IMAGES])
    assert found is not None
    assert found.low_seconds is not None
    assert found.high_seconds is not None
    assert found.low_seconds < 2.0 < found.high_seconds < 2 * found.low_seconds
    assert "inference steps of convolutions on matrix units, on this GPU, RTX-4090" in found.reason
    twice = replace(TYPICAL, seconds=4.0)
    assert interval_of_step(twice, [device("RTX-4090")], [IMAGES]) == replace(
        found, low_seconds=2 * found.low_seconds, high_seconds=2 * found.high_seconds
    )


def test_the_interval_of_several_gpus_holds_those_of_all() -> None:
    alone = [interval_of_step(TYPICAL, [device(gpu)], [IMAGES]) for gpu in ("RTX-4090", "A30")]
    both = interval_of_step(TYPICAL, [device("RTX-4090"), device("A30")], [IMAGES])
    assert both is not None
    assert both.low_seconds == min(one.low_seconds for one in alone if one and one.low_seconds)
    assert both.high_seconds == max(one.high_seconds for one in alone if one and one.high_seconds)


@pytest.mark.parametrize(
    ("devices", "read", "reason"),
    [
        ([device("1GiB")], [IMAGES], "given by its memory size alone"),
        ([device("L4")], [], "recorded from the second step on"),
        ([device("L4", 0.74)], [IMAGES], "kernels run in 74 % of it"),
        ([device("L4", 0.74)], [IMAGES], "5 us for a launch and 5 us more for an operator"),
        ([device("B200")], [IMAGES], "neither this GPU nor a similar one was measured"),
        ([device("L4"), device("B200")], [IMAGES], "neither this GPU nor a similar one"),
    ],
)
def test_where_nothing_is_known_the_interval_says_why(
    devices: list[DeviceFacts], read: list[StepWorks], reason: str
) -> None:
    found = interval_of_step(TYPICAL, devices, read)
    assert found is not None
    assert (found.low_seconds, found.high_seconds, found.programs) == (None, None, 0)
    assert reason in found.reason


def test_without_a_step_there_is_no_interval() -> None:
    assert interval_of_step(None, [device("L4")], [IMAGES]) is None
    assert interval_of_step(TYPICAL, [], [IMAGES]) is None
