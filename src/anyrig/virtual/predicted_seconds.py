"""What the cost model of the virtual clock says about work that no program has run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..hardware import coefficients_of, values_of
from .build import load_extension
from .clock_settings import ClockSettings
from .gpu_facts import gpu_facts_of
from .rig import VirtualDevice

# One record of work: the fields of `Work` in csrc/time/work.h.
WorkFields = Mapping[str, float]


def predict_works(
    device: VirtualDevice, works: Sequence[WorkFields], settings: ClockSettings
) -> list[float]:
    """Return the seconds that a device takes for each of the works, which have the same fields."""
    if not works:
        return []
    core = load_extension()
    columns = {name: [work[name] for work in works] for name in works[0]}
    facts = gpu_facts_of(core, device.rates, settings=settings)
    return list(core.predict_seconds(facts, core.Works(columns)))


def predict_pinned_copy(device: VirtualDevice, bytes_: float) -> float:
    """Return the seconds of a copy from pinned memory to a device: ``cost/copy_cost.cpp``."""
    fraction = _coefficient(device, "copy.pcie_fraction")
    rate = fraction * device.rates.pcie_bytes_per_second
    return copy_start_seconds(device) + bytes_ / rate


def copy_start_seconds(device: VirtualDevice) -> float:
    """Return the fixed part of a copy's time, which does not depend on its bytes."""
    return _coefficient(device, "copy.start_seconds")


def launch_seconds(device: VirtualDevice, settings: ClockSettings) -> float:
    """Return how long the host takes to launch one more kernel of a call."""
    return settings.coefficients(device.rates)["host.launch_seconds"][0]


def graph_node_seconds(device: VirtualDevice) -> float:
    """Return how long a kernel of a CUDA graph waits after the kernel before it."""
    return _coefficient(device, "host.graph_node_seconds")


def multiprocessor_share(device: VirtualDevice) -> float:
    """Return the share of a GPU's multiprocessors that a collective takes from kernels."""
    return _coefficient(device, "collective.multiprocessor_share")


def _coefficient(device: VirtualDevice, name: str) -> float:
    return float(values_of(coefficients_of(device.rates))[name][0])
