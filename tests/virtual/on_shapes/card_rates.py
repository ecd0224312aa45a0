"""The rates of the rig's GPUs and the launch time, for the formulas of these tests."""

from __future__ import annotations

from collections.abc import Callable

import torch

from anyrig.hardware import fraction_of, spec_of_key
from anyrig.virtual import clock
from anyrig.virtual.rig import NETWORK_BYTES_PER_SECOND

CARD = spec_of_key("A100-80GB")
LAUNCH_SECONDS = 5e-6  # csrc/time/clock.cpp


def _reached(kind: str, rate: float | None) -> float:
    assert rate is not None
    return fraction_of(kind, CARD.architecture).fraction * rate


MEMORY = _reached("memory", CARD.memory_bytes_per_second)
PCIE = _reached("pcie", CARD.pcie_bytes_per_second)
NVLINK = _reached("link", CARD.link_bytes_per_second)
T4_PCIE = fraction_of("pcie", "turing").fraction * spec_of_key("T4").pcie_bytes_per_second
NETWORK = _reached("network", NETWORK_BYTES_PER_SECOND)


def flops_per_second(kind: str, dtype: str) -> float:
    return _reached(kind, CARD.flops_per_second[dtype])


def product_seconds(size: int, dtype: str = "bfloat16") -> float:
    """Return the seconds of a square matrix product, including the launch."""
    return LAUNCH_SECONDS + 2 * size**3 / flops_per_second("product", dtype)


def seconds(work: Callable[[], object]) -> float:
    """Return the virtual seconds of `work` on an idle rig, until the rig is idle again."""
    for device in range(torch.cuda.device_count()):
        torch.cuda.synchronize(device)
    before = clock().done_seconds
    work()
    return clock().done_seconds - before
