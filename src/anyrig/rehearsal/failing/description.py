"""What happened after an injected failure, in words."""

from __future__ import annotations

from ...units import format_seconds
from ..fault_facts import FaultFacts
from .fault import SLOW


def describe_fault(fault: FaultFacts) -> list[str]:
    """Return what happened, as lines."""
    how = {"kill": "was killed", "link": "lost its connections"}.get(
        fault.kind, f"computed {fault.factor:g} times as long"
    )
    if not fault.happened:
        return [f"did not happen: rank {fault.rank} never took step {fault.step}"]
    if fault.kind == SLOW:
        return [f"rank {fault.rank} {how} from step {fault.step} on", _describe_slowness(fault)]
    lines = [f"rank {fault.rank} {how} in step {fault.step}"]
    if fault.detected_seconds is None:
        return [*lines, "the program ran to its end all the same"]
    if fault.hung:
        lines.append(
            f"the other ranks hung for {fault.detected_seconds:.1f} s, until the limit of "
            f"collectives, {fault.limit_seconds:g} s (--timeout), ended them"
        )
    else:
        lines.append(f"detected after {fault.detected_seconds:.1f} s")
    if fault.cause is not None:
        lines.append(f"cause, by the launcher: {fault.cause.partition(chr(10))[0]}")
    if fault.restarted_seconds is None:
        ended = fault.ended_seconds
        if ended is not None:
            lines.append(
                f"all ranks had ended after {ended:.1f} s; nothing restarted them: add "
                "--max-restarts 1"
            )
        return lines
    lines.append(f"restarted after {fault.restarted_seconds:.1f} s")
    if fault.first_step_seconds is None:
        lines.append("no step on all ranks after that")
    else:
        lines.append(f"first step after {fault.first_step_seconds:.1f} s")
    return lines


def _describe_slowness(fault: FaultFacts) -> str:
    before, after = fault.step_seconds_before, fault.step_seconds_after
    if before is None or after is None:
        return "there are too few steps before or after to compare: let it fail in another step"
    return (
        f"a step of the group took {format_seconds(before)} before and {format_seconds(after)} "
        f"after: {after / before:.2f} times as long"
    )
