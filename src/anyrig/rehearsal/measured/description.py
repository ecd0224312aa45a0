"""The summary of a measured program that the terminal shows."""

from __future__ import annotations

from ...units import format_bytes, format_count, format_seconds
from ..facts import DeviceFacts, Facts
from ..measurement import Measurement
from ..summary import (
    describe_activity,
    describe_error,
    describe_rate,
    describe_shares,
    has_ranks,
    loader_seconds,
    row,
)


def describe_measured(facts: Facts) -> str:
    """Return the summary of a measured program, as lines for a terminal."""
    measurement = facts.measurement
    assert measurement is not None
    lines = [f"anyrig: {facts.program} on {facts.rig}, measured"]
    if facts.error is not None:
        lines += row("ended by", [describe_error(facts.error)])
    lines += row("step", _describe_steps(facts, measurement))
    for device in facts.devices:
        rank = f"rank {device.rank}, " if has_ranks(facts) else ""
        texts = [rank + text for text in _describe_device(device)]
        lines += row(f"cuda:{device.index}", texts)
    lines += row("note", measurement.notes)
    return "\n".join(lines)


def _describe_steps(facts: Facts, measurement: Measurement) -> list[str]:
    typical = facts.typical_step
    if typical is None:
        taken = measurement.steps_taken
        if taken > 1:
            return [f"none profiled of {taken}"]
        if taken == 1:
            return ["none profiled: the profile begins after the first step, and no other followed"]
        if facts.error is not None:
            return ["none found: no step ended before the error, so nothing was profiled"]
        return ["none found: no torch.optim.Optimizer took a step, so nothing was profiled"]
    numbers = typical.of_steps
    which = f"step {numbers[0]}"
    if len(numbers) > 1:
        which = f"median of steps {numbers[0]} to {numbers[-1]}"
    taken_text = format_count(measurement.steps_taken, "step")
    texts = [
        f"{format_seconds(typical.seconds)}, {which} of {taken_text}{describe_rate(typical)}",
        *describe_activity(facts, typical),
    ]
    loader = loader_seconds(facts, typical)
    if loader > 0:
        texts.append(f"{format_seconds(loader)} of a step in the data loader")
    return texts


def _describe_device(device: DeviceFacts) -> list[str]:
    peak = device.peak
    shares = describe_shares(device) or "how busy it was is not measured"
    return [
        shares,
        f"PyTorch took at most {format_bytes(peak.total_bytes)} of "
        f"{format_bytes(device.capacity_bytes)}; tensors took at most "
        f"{format_bytes(peak.tensor_bytes)}",
    ]
