"""The path between two GPUs and its rate, from NVML's queries on NVLink and PCIe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .nvml_session import Questions, Session

# Bytes per second that one NVLink carries in one direction, by nvmlNvlinkVersion_t, as NVIDIA
# publishes them: 160 GB/s over 4 links in P100, 300 over 6 in V100, 900 over 18 in H100, 1800 over
# 18 in B200, each for both directions together. NVLink 3.0 and 3.1 are absent: they carry 25 GB/s
# in A100, 14.06 in GA102 (RTX 3090), so only the driver's own figure is used.
_BYTES_PER_SECOND_OF_NVLINK = {
    1: 20e9,  # 1.0
    2: 25e9,  # 2.0
    3: 25e9,  # 2.2
    6: 25e9,  # 4.0
    7: 50e9,  # 5.0
}
_LINKS = 36  # NVML_NVLINK_MAX_LINKS of the newest header; GPUs report missing links
_TO_SWITCH = 2  # NVML_NVLINK_DEVICE_TYPE_SWITCH
_SPEED_IN_MBPS = 90  # NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON: megabytes a second, of active links

# Bytes per second of one PCIe lane in one direction, by generation: transfers per second, divided
# by 8, times the efficiency of the line code (8b/10b, then 128b/130b, then flits of 256 bytes that
# carry 242).
_BYTES_PER_SECOND_OF_LANE = {
    1: 2.5e9 / 8 * 8 / 10,
    2: 5e9 / 8 * 8 / 10,
    3: 8e9 / 8 * 128 / 130,
    4: 16e9 / 8 * 128 / 130,
    5: 32e9 / 8 * 128 / 130,
    6: 64e9 / 8 * 242 / 256,
}


@dataclass(frozen=True)
class NvmlLink:
    """The fastest path between two GPUs.

    Attributes:
        kind: ``"nvlink"``, direct or through a switch, or ``"pcie"``.
        bytes_per_second: the peak in one direction; None if the driver does not report enough.
    """

    kind: str
    bytes_per_second: float | None


def link_between(opened: Session, a: Any, b: Any, *, allow_nvlink: bool) -> NvmlLink:
    """Return the path between the whole GPUs of two NVML handles."""
    links = _nvlinks_between(opened, a, b) if allow_nvlink else []
    if links:
        speed = _bytes_per_second_of_nvlink(opened, a, links[0])
        return NvmlLink("nvlink", None if speed is None else len(links) * speed)
    rates = [_pcie_bytes_per_second(opened, handle) for handle in (a, b)]
    known = [rate for rate in rates if rate is not None]
    return NvmlLink("pcie", min(known) if len(known) == len(rates) else None)


def _nvlinks_between(opened: Session, a: Any, b: Any) -> list[int]:
    """Return the numbers of the links of `a` that lead to `b`.

    These are the direct links, or else as many links to switches as both have: the switches connect
    all GPUs.
    """
    questions = Questions(opened)
    pci_of_b = questions.ask("nvmlDeviceGetPciInfo", b)
    of_a = _active_nvlinks(questions, a)
    direct = [n for n, (_, end) in of_a.items() if pci_of_b is not None and end == pci_of_b.busId]
    if direct:
        return direct
    switched_a = [number for number, (to_switch, _) in of_a.items() if to_switch]
    switched_b = [to_switch for to_switch, _ in _active_nvlinks(questions, b).values() if to_switch]
    return switched_a[: len(switched_b)]


def _active_nvlinks(questions: Questions, handle: Any) -> dict[int, tuple[bool, str | None]]:
    """Return, by link number, whether each active link leads to a switch, and its remote bus ID."""
    found: dict[int, tuple[bool, str | None]] = {}
    for number in range(_LINKS):
        if questions.ask("nvmlDeviceGetNvLinkState", handle, number) != 1:
            continue
        end = questions.ask("nvmlDeviceGetNvLinkRemoteDeviceType", handle, number)
        remote = questions.ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, number)
        found[number] = (end == _TO_SWITCH, getattr(remote, "busId", None))
    return found


def _bytes_per_second_of_nvlink(opened: Session, handle: Any, number: int) -> float | None:
    """Return the smaller of the published rate and the driver's.

    The driver reports the line rate: 26.56 GB/s on H100, which carries 25 GB/s of data.
    """
    questions = Questions(opened)
    version = questions.ask("nvmlDeviceGetNvLinkVersion", handle, number)
    published = _BYTES_PER_SECOND_OF_NVLINK.get(version)
    fields = questions.ask("nvmlDeviceGetFieldValues", handle, [_SPEED_IN_MBPS])
    told = [
        field.value.uiVal * 1e6
        for field in fields or ()
        if field.nvmlReturn == 0 and field.value.uiVal > 0
    ]
    rates = [rate for rate in (*told, published) if rate is not None]
    return min(rates, default=None)


def _pcie_bytes_per_second(opened: Session, handle: Any) -> float | None:
    """Return the rate of a GPU's own PCIe link.

    Uses the highest generation that the GPU and the slot share, since an idle GPU lowers the
    current one to save power, and the current width, which is the slot's wiring.
    """
    questions = Questions(opened)
    generation = questions.ask("nvmlDeviceGetMaxPcieLinkGeneration", handle)
    width = questions.ask("nvmlDeviceGetCurrPcieLinkWidth", handle)
    lane = _BYTES_PER_SECOND_OF_LANE.get(generation)
    return None if lane is None or not width else lane * width
