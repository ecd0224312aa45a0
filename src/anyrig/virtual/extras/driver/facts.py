"""The text by which NVML's library reads the rig from the environment: tab-separated lines.

::

    ledger  /tmp/anyrig-rehearsal-1000-5f0c…/gpus
    driver  580.95.05  13000
    idle    0  30  50000  1410
    uuids   0fa9…                        the UUID namespace of the GPUs
    nodes   2                            two consecutive nodes with the following GPUs
    GPUs   8  NVIDIA H100 80GB HBM3  …  eight consecutive GPUs; the fields are those of `_fields`

Runs of equal GPUs and nodes share a line, so thousands of GPUs fit into the 128 KiB that Linux
allows for a variable.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from ... import idle
from ...rig import UUID_NAMESPACE, VirtualDevice, VirtualRig

# The last driver branch that supports Volta. It supports every PyTorch that anyrig runs with.
_DRIVER = "580.95.05"
_CUDA = 13000

# nvmlDeviceArchitecture_t of nvml.h.
_ARCHITECTURES = {
    "pascal": 4,
    "volta": 5,
    "turing": 6,
    "ampere": 7,
    "ada": 8,
    "hopper": 9,
    "blackwell": 10,
}

# nvmlNvlinkVersion_t, and the bytes per second of one link in one direction. NVIDIA publishes both
# directions together: V100 300 GB/s over 6 links, A100 600 over 12, H100 900 over 18, B200 1800
# over 18.
_NVLINKS = {"volta": (2, 25e9), "ampere": (4, 25e9), "hopper": (6, 25e9), "blackwell": (7, 50e9)}

# NVLink-C2C to Grace counts as PCIe 5, which the GPU has in addition.
_PCIE_GENERATIONS = {16e9: 3, 32e9: 4, 64e9: 5, 450e9: 5}


def facts_of(rig: VirtualRig, ledger: str) -> str:
    """Return the text for `rig`, whose processes share GPU memory through the file `ledger`."""
    lines: list[tuple[object, ...]] = [
        ("ledger", ledger),
        ("driver", _DRIVER, _CUDA),
        ("idle", idle.PERCENT, idle.CELSIUS, idle.MILLIWATTS, idle.CLOCK_MHZ),
        ("uuids", UUID_NAMESPACE.hex),
    ]
    nodes = itertools.groupby(rig.devices, key=lambda device: device.node)
    for node_lines, equal_nodes in itertools.groupby(_node_lines(devices) for _, devices in nodes):
        lines += [("nodes", len(list(equal_nodes))), *node_lines]
    return "".join("\t".join(map(str, line)) + "\n" for line in lines)


def _node_lines(devices: Iterable[VirtualDevice]) -> list[tuple[object, ...]]:
    """Return the ``GPUs`` lines of one node: one for each run of equal GPUs."""
    runs = itertools.groupby(map(_fields, devices))
    return [("gpus", len(list(run)), *fields) for fields, run in runs]


def _fields(device: VirtualDevice) -> tuple[object, ...]:
    spec = device.rates
    version, bytes_per_link = _NVLINKS.get(spec.architecture, (0, 0.0))
    links = round((spec.link_bytes_per_second or 0) / bytes_per_link) if version else 0
    has_nvlink = spec.link == "nvlink" and links > 0
    return (
        device.name,
        device.memory_bytes,
        *device.capability,
        device.multiprocessors,
        _ARCHITECTURES[spec.architecture],
        round((spec.watts or 0) * 1000),
        *((links, version, round(bytes_per_link / 1e6)) if has_nvlink else (0, 0, 0)),
        _PCIE_GENERATIONS[spec.pcie_bytes_per_second],
    )
