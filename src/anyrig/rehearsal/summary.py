"""The summary that the terminal shows at the end of a rehearsal."""

from __future__ import annotations

from collections.abc import Sequence

from ..units import format_bytes, format_count, format_rate, format_seconds, format_span
from ..virtual.clock_settings import ClockSettings
from .assumed_ranks import AssumedRanks
from .facts import (
    CollectiveTimes,
    DeviceFacts,
    Facts,
    Finding,
    PeakMemory,
    ProgramError,
    StepFacts,
    StepInterval,
    TypicalStep,
)
from .failing.description import describe_fault
from .refused_moment import describe_refused_moment
from .unused_gpus import describe_unused, name_unused

_WIDTH = 11  # of the first column
_MOST_FINDINGS = 3
_MOST_WORDS = 100  # of `sys.exit`


def describe(facts: Facts) -> str:
    """Return the summary of a rehearsal, as lines for a terminal."""
    mode = ", without data" if facts.shape_only else ""
    lines = [f"anyrig: {facts.program} on virtual GPUs {facts.rig}{mode}"]
    if facts.error is not None:
        lines += row("ended by", [describe_error(facts.error)])
    if facts.fault is not None:
        lines += row("failure", describe_fault(facts.fault))
        if not facts.devices:  # the ranks were ended before they could leave their records
            return "\n".join(lines)
    if facts.assumed_ranks is not None:
        lines += row("ranks", _describe_ranks(facts.assumed_ranks))
    lines += row("step", _describe_steps(facts))
    for device in facts.devices:
        rank = f"rank {device.rank}, " if has_ranks(facts) else ""
        texts = [
            *_describe_device(device),
            *describe_refused_moment(facts, device),
            *_describe_tensors(facts, device),
        ]
        lines += row(f"cuda:{device.index}", [rank + text for text in texts])
    if facts.unused_devices:
        lines += row(name_unused(facts), describe_unused(facts))
    lines += _describe_findings(facts)
    return "\n".join(lines)


def describe_error(error: ProgramError) -> str:
    """Return what ended the program, and where."""
    what = error.kind
    if what == SystemExit.__name__:
        what = error.text if len(error.text) <= _MOST_WORDS else f"{error.text[:_MOST_WORDS]} …"
    return what if error.line is None else f"{what} at {error.line}"


def _describe_findings(facts: Facts) -> list[str]:
    """Return the findings that save the most, and how many there are besides."""
    ordered = sorted(facts.findings, key=lambda finding: -(finding.saved_seconds or 0.0))
    lines = []
    for finding in ordered[:_MOST_FINDINGS]:
        where = "" if finding.line is None else f" at {finding.line}"
        title = f"{finding.title}{where}{_describe_saving(finding, facts)}"
        lines += row(finding.code, [title, finding.remedy])
    more = len(ordered) - _MOST_FINDINGS
    if more > 0:
        count = "1 more finding is" if more == 1 else f"{more} more findings are"
        lines += row("", [f"{count} in the files of --report and --json"])
    return lines


def _describe_saving(finding: Finding, facts: Facts) -> str:
    if not finding.saved_seconds or facts.typical_step is None:
        return ""
    share = _percent(finding.saved_seconds / facts.typical_step.seconds)
    about = "about " if finding.is_estimate else ""
    return f": {about}{format_seconds(finding.saved_seconds)} of a step ({share})"


def row(title: str, texts: Sequence[str]) -> list[str]:
    """Return lines of the summary, the first of which has the title."""
    titles = [title, *[""] * (len(texts) - 1)][: len(texts)]
    return [f"  {one:{_WIDTH}}{text}" for one, text in zip(titles, texts, strict=True)]


def has_ranks(facts: Facts) -> bool:
    """Return whether several ranks used devices."""
    return len({device.rank for device in facts.devices}) > 1


def _describe_steps(facts: Facts) -> list[str]:
    typical = facts.typical_step
    if typical is None and facts.error is not None:
        return ["none: the script ended before the end of its first one"]
    if typical is None:
        return [
            "none found: no torch.optim.Optimizer took a step; name the function of a step with "
            "--step-marker"
        ]
    between = describe_interval(facts.step_interval)
    texts = [
        f"{format_seconds(typical.seconds)}{between}, {_describe_choice(facts.steps, typical)}"
        f"{describe_rate(typical)}",
        *_describe_kind(facts.step_interval),
        *describe_activity(facts, typical),
    ]
    texts += _describe_clock(facts.clock)
    loader = loader_seconds(facts, typical)
    if loader > 0:
        texts.append(
            f"not counted: {format_seconds(loader)} in the data loader, by the clock of this "
            "machine"
        )
    return texts


def _describe_clock(given: ClockSettings) -> list[str]:
    texts = []
    if given.host_launch_seconds is not None:
        seconds = format_seconds(given.host_launch_seconds)
        texts.append(f"the host takes {seconds} for an operator with its launch, by --host-launch")
    if given.libraries is not None:
        texts.append(f"kernels are timed as those of {given.libraries}, by --libraries")
    return texts


def describe_interval(interval: StepInterval | None) -> str:
    """Return the interval of a step, if it is known, to append."""
    if interval is None or interval.low_seconds is None or interval.high_seconds is None:
        return ""
    span = format_span(interval.low_seconds, interval.high_seconds)
    return f", between {span} (9 of 10 programs of this kind were)"


def _describe_kind(interval: StepInterval | None) -> list[str]:
    if interval is None:
        return []
    if interval.low_seconds is None:
        return [f"how far that is off is not known: {interval.reason}"]
    return [f"of this kind: {interval.programs} measured {interval.reason}"]


def describe_rate(typical: TypicalStep) -> str:
    """Return the samples per second, if they are known, to append."""
    rate = typical.samples_per_second
    if rate is None:
        return ""
    return f"; {format_rate(rate)} samples/s"


def describe_activity(facts: Facts, typical: TypicalStep) -> list[str]:
    """Return how often the host waits in a typical step, and how long collectives take."""
    waits = sorted({step.waits for step in _chosen(facts, typical)})
    texts = []
    if waits[-1] > 0:
        count = f"{waits[0]} to {waits[-1]} times" if len(waits) > 1 else _times(waits[0])
        texts.append(f"the host waits for a GPU {count} in a step")
    if facts.collectives is not None:
        texts.append(_describe_collectives(facts.collectives))
    return texts


def loader_seconds(facts: Facts, typical: TypicalStep) -> float:
    """Return how long a typical step waits for its data loader."""
    chosen = _chosen(facts, typical)
    return sum(step.loader_wall_seconds for step in chosen) / len(chosen)


def _chosen(facts: Facts, typical: TypicalStep) -> list[StepFacts]:
    return [step for step in facts.steps if step.number in set(typical.of_steps)]


def _describe_collectives(times: CollectiveTimes) -> str:
    places = {"in a node": times.in_node_seconds, "across nodes": times.across_nodes_seconds}
    parts = [f"{format_seconds(seconds)} {place}" for place, seconds in places.items() if seconds]
    return (
        f"collectives take {' and '.join(parts)}; for {format_seconds(times.exposed_seconds)} no "
        "kernel runs at the same time"
    )


def _describe_ranks(assumed: AssumedRanks) -> list[str]:
    nodes = format_count(assumed.nodes, "node")
    gpus = assumed.ranks // assumed.nodes
    texts = [
        f"rank 0 of {assumed.ranks:,} ran, on {nodes} of {gpus} GPUs. The others are assumed to be "
        "like it",
        "and to reach each collective at the same time, so no wait for a slower rank is seen",
        f"{assumed.link} of {_rate(assumed.link_bytes_per_second)} joins the GPUs of a node, by "
        "their data sheet",
    ]
    if assumed.nodes > 1:
        source = "assumed, as --rig names no @rate" if assumed.network_is_assumed else "by --rig"
        texts += [
            f"a network of {_rate(assumed.network_bytes_per_second)} for each GPU joins the nodes: "
            f"{source}",
            "the latencies between nodes are NCCL's own estimates",
        ]
    return texts


def _rate(bytes_per_second: float) -> str:
    return f"{bytes_per_second / 1e9:g} GB/s"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _describe_choice(steps: Sequence[StepFacts], typical: TypicalStep) -> str:
    first = [step for step in steps if step.is_first]
    others = len(steps) - len(first)
    took = f"the first took {format_seconds(steps[0].seconds)}"
    if others == 0:
        return "the only one, which includes all that came before it"
    if len(first) > 1:
        took = f"the first {len(first)} differ; {took}"
    if others == 1:
        return f"the second of two; {took}"
    similar = len(typical.of_steps)
    # The rest took much longer or shorter, or does not follow on from the similar ones.
    count = str(others)
    if similar < others:
        count = f"{format_count(similar, 'similar step')} of {others}"
    return f"median of {count}; {took}"


def describe_shares(device: DeviceFacts) -> str:
    """Return how busy a device was."""
    shares = (device.busy_share, device.waiting_share, device.idle_share)
    parts = zip(("busy", "waiting", "idle"), shares, strict=True)
    return ", ".join(f"{name} {_percent(share)}" for name, share in parts if share is not None)


def _describe_device(device: DeviceFacts) -> list[str]:
    peak = device.peak
    return [
        describe_shares(device),
        f"peak {format_bytes(peak.total_bytes)} of {format_bytes(device.capacity_bytes)}, "
        f"{format_bytes(peak.headroom_bytes)} left: {_describe_parts(peak)}",
        *_describe_most(device),
    ]


def _describe_most(device: DeviceFacts) -> list[str]:
    most = device.peak.most_bytes
    if most is None:
        return []
    fits = "" if most <= device.capacity_bytes else ", which is more than the GPU has"
    return [
        f"at most {format_bytes(most)}, with what other fragmentation, optional workspaces and the "
        f"driver may add{fits}"
    ]


def _describe_tensors(facts: Facts, device: DeviceFacts) -> list[str]:
    """Return what the tensors are at the peak, if that is known."""
    for memory in facts.memory:
        if (memory.device, memory.rank) == (device.index, device.rank) and memory.kinds_at_peak:
            kinds = memory.kinds_at_peak.items()
            texts = [f"{name} {format_bytes(count)}" for name, count in kinds if count]
            return [f"tensors at the peak: {', '.join(texts)}"] if texts else []
    return []


def _describe_parts(peak: PeakMemory) -> str:
    parts = {
        "tensors": peak.tensor_bytes,
        "workspaces": peak.workspace_bytes,
        "cached": peak.cached_bytes,
        "context": peak.context_bytes,
        "collectives": peak.collective_bytes,
    }
    return ", ".join(f"{name} {format_bytes(count)}" for name, count in parts.items() if count)


def _percent(share: float) -> str:
    return f"{100 * max(share, 0.0):.0f} %"  # sums of floats may be just below zero
