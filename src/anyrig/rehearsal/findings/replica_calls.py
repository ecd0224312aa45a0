"""The calls that all devices of a process make, which are those of replicas."""

from __future__ import annotations

from collections import defaultdict

from .analysis import Analysis


def flops_by_device(analysis: Analysis) -> tuple[dict[tuple[int, int], float], list[int]]:
    """Return the FLOPs of the calls that all devices make, and these calls."""
    by_call: dict[object, dict[tuple[int, int], list[int]]] = defaultdict(lambda: defaultdict(list))
    for place, kernel in analysis.kernels.items():
        device = analysis.device(place)
        if device is not None and any(work["flops"] > 0 for work in kernel.works):
            call = (analysis.name(place), analysis.line(place), analysis.module(place))
            by_call[call][device].append(place)
    flops: dict[tuple[int, int], float] = defaultdict(float)
    shared = []
    for by_device in by_call.values():
        if len(by_device) < len(analysis.gpus):
            continue
        for device, places in by_device.items():
            shared += places
            flops[device] += sum(
                work["flops"] for place in places for work in analysis.kernels[place].works
            )
    return dict(flops), shared
