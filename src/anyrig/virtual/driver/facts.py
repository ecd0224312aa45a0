"""The rig as NVML's library reads it from the environment: lines of values, with tabs between.

::

    ledger  /tmp/anyrig-rehearsal-1000-5f0c…/cards
    driver  580.95.05  13000
    idle    0  30  50000  1410
    uuids   0fa9…                        the space of names that UUIDs are made in
    nodes   2                            two nodes in a row that have the following cards
    cards   8  NVIDIA H100 80GB HBM3  …  eight cards in a row; the order is that of `_card`

A rig of thousands of cards takes a few lines: Linux limits a variable to 128 KiB.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from .. import idle
from ..rig import UUID_NAMESPACE, VirtualDevice, VirtualRig

# The last driver that still drives Volta: recent enough for every PyTorch that anyrig runs with.
_DRIVER = "580.95.05"
_CUDA = 13000

# nvmlDeviceArchitecture_t of nvml.h.
_ARCHITECTURES = {"volta": 5, "turing": 6, "ampere": 7, "ada": 8, "hopper": 9, "blackwell": 10}

# nvmlNvlinkVersion_t, and what one link carries in one direction (NVIDIA: 300 GB/s over 6 links in
# V100, 600 over 12 in A100, 900 over 18 in H100, 1800 over 18 in B200, both directions together).
_NVLINKS = {"volta": (2, 25e9), "ampere": (4, 25e9), "hopper": (6, 25e9), "blackwell": (7, 50e9)}

_PCIE_GENERATIONS = {16e9: 3, 32e9: 4, 64e9: 5}


def facts_of(rig: VirtualRig, ledger: str) -> str:
    """Return what the library is to know of `rig`, whose cards are shared through `ledger`."""
    lines: list[tuple[object, ...]] = [
        ("ledger", ledger),
        ("driver", _DRIVER, _CUDA),
        ("idle", idle.PERCENT, idle.CELSIUS, idle.MILLIWATTS, idle.CLOCK_MHZ),
        ("uuids", UUID_NAMESPACE.hex),
    ]
    nodes = itertools.groupby(rig.devices, key=lambda device: device.node)
    for cards, alike in itertools.groupby(_cards(devices) for _, devices in nodes):
        lines += [("nodes", len(list(alike))), *cards]
    return "".join("\t".join(map(str, line)) + "\n" for line in lines)


def _cards(devices: Iterable[VirtualDevice]) -> list[tuple[object, ...]]:
    runs = itertools.groupby(map(_card, devices))
    return [("cards", len(list(alike)), *card) for card, alike in runs]


def _card(device: VirtualDevice) -> tuple[object, ...]:
    spec = device.rates
    version, bytes_a_link = _NVLINKS.get(spec.architecture, (0, 0.0))
    links = round((spec.link_bytes_per_second or 0) / bytes_a_link) if version else 0
    has_nvlink = spec.link == "nvlink" and links > 0
    return (
        device.name,
        device.memory_bytes,
        *device.capability,
        device.multiprocessors,
        _ARCHITECTURES[spec.architecture],
        round((spec.watts or 0) * 1000),
        *((links, version, round(bytes_a_link / 1e6)) if has_nvlink else (0, 0, 0)),
        _PCIE_GENERATIONS[spec.pcie_bytes_per_second],
    )
