"""Which of a machine's devices work, and which PyTorch numbers."""

import pytest

from anyrig.devices.device import Device
from anyrig.devices.inventory import usable, visible

CPU = Device("cpu", None, "CPU")
A, B = (Device("cuda", index, "A100") for index in (0, 1))
LOST = Device("cuda", 2, "A100", error="lost")
HIDDEN = Device("cuda", None, "A100", error="hidden")
XPU = Device("xpu", 0, "Arc")
MPS = Device("mps", 0, "M3")


@pytest.mark.parametrize(
    ("present", "working", "numbered"),
    [
        ((A, B, CPU), (A, B), (A, B)),
        ((A, LOST, B, HIDDEN, CPU), (A, B), (A, LOST, B)),
        ((LOST, CPU), (CPU,), (LOST,)),
        ((HIDDEN, CPU), (CPU,), (CPU,)),
        ((LOST, XPU, CPU), (XPU,), (LOST,)),
        ((HIDDEN, XPU, CPU), (XPU,), (XPU,)),
        ((CPU, MPS, XPU, A), (A,), (A,)),
        ((CPU, MPS, XPU), (XPU,), (XPU,)),
        ((CPU, MPS), (MPS,), (MPS,)),
        ((), (), ()),
    ],
)
def test_devices_of_the_first_kind_that_has_any(
    present: tuple[Device, ...], working: tuple[Device, ...], numbered: tuple[Device, ...]
) -> None:
    assert (usable(present), visible(present)) == (working, numbered)
