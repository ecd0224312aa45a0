"""One file for each kind of device, with a `Probe` that finds and reads it."""

from .cpu import CpuProbe
from .cuda import CudaProbe
from .mps import MpsProbe
from .probe import Probe
from .xpu import XpuProbe

# In order of preference: the first kind with a working device is the accelerator.
PROBES: dict[str, Probe] = {
    probe.kind: probe for probe in (CudaProbe(), XpuProbe(), MpsProbe(), CpuProbe())
}

__all__ = ["PROBES", "Probe"]
