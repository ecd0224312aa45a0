"""`ComparedRig`: what one rehearsal says about its rig."""

from __future__ import annotations

import signal
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from ...virtual.rig import VirtualRig
from ..facts import KILLED_RANK, StepInterval
from .prices import Prices

_SECONDS_OF_HOUR = 3600
_MILLION = 10**6
_NOT_JUDGED = "the system killed its process, as it does when this machine's memory is exhausted"


class Outcome(Enum):
    """How a rehearsal ended."""

    FITS = "fits"
    OUT_OF_MEMORY = "out of memory"
    KILLED = "killed"  # by the system, for this machine's memory: nothing is known of the rig
    FAILED = "failed"


@dataclass(frozen=True)
class ComparedRig:
    """One row of a comparison. None means unknown.

    Attributes:
        rig: the rig.
        outcome: how the rehearsal ended.
        status: its exit status.
        error: the error that ended the script, in one line.
        headroom_bytes: what the fullest GPU had left.
        missing_bytes: about how much memory a GPU is short of, for a script that ran out of memory.
        step_seconds: the time of a typical step.
        samples_per_second: the samples per second of all ranks together.
        price_per_hour: what the rig costs.
        cost_per_million_samples: what a million samples cost.
        cost_per_million_steps: what a million steps cost.
        step_interval: the interval of the step's time on real GPUs.
        facts: the facts of the rehearsal, without its timelines; None if it ended without any.
        ranks: the ranks for which rank 0 ran alone, on as many nodes like the rig as they take;
            None if every rank ran.
    """

    rig: str
    outcome: Outcome
    status: int
    error: str | None
    headroom_bytes: int | None
    missing_bytes: int | None
    step_seconds: float | None
    samples_per_second: float | None
    price_per_hour: float | None
    cost_per_million_samples: float | None
    cost_per_million_steps: float | None
    step_interval: StepInterval | None
    facts: dict[str, Any] | None = field(repr=False)
    ranks: int | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the row as a JSON object."""
        return {**asdict(self), "outcome": self.outcome.value}


def compare_rig(
    rig: VirtualRig,
    status: int,
    facts: dict[str, Any] | None,
    last_line: str | None,
    prices: Prices | None,
    missing_bytes: int | None = None,
) -> ComparedRig:
    """Return the row of a rig.

    Args:
        rig: the rig.
        status: the exit status of the rehearsal.
        facts: what it wrote with ``--json``; None if it wrote nothing.
        last_line: the last line of its output, which explains a failure without an error.
        prices: the prices of GPUs; None for none.
        missing_bytes: how much memory a GPU is short of.
    """
    about = facts or {}
    error = about.get("error")
    outcome = Outcome.FITS
    if was_killed(status, facts):
        outcome = Outcome.KILLED
    elif status != 0:
        outcome = Outcome.OUT_OF_MEMORY if is_out_of_memory(facts) else Outcome.FAILED
    typical = about.get("typical_step") if outcome is Outcome.FITS else None
    seconds = typical["seconds"] if typical else None
    rate = typical["samples_per_second"] if typical else None
    price = None if prices is None else prices.of_rig(rig)
    assumed = about.get("assumed_ranks")
    if price is not None and assumed:
        price *= assumed["nodes"]  # the rig is one of them
    return ComparedRig(
        rig=str(rig),
        outcome=outcome,
        status=status,
        error=_describe_error(outcome, status, error, last_line),
        headroom_bytes=_headroom_bytes(about) if outcome is Outcome.FITS else None,
        missing_bytes=missing_bytes,
        step_seconds=seconds,
        samples_per_second=rate,
        price_per_hour=price,
        cost_per_million_samples=_cost(price, 1 / rate if rate else None),
        cost_per_million_steps=_cost(price, seconds),
        step_interval=_interval_of(about) if typical else None,
        facts=None if facts is None else _without_timelines(facts),
        ranks=assumed["ranks"] if assumed else None,
    )


def is_out_of_memory(facts: dict[str, Any] | None) -> bool:
    """Return whether the script ended with `torch.OutOfMemoryError`."""
    error = (facts or {}).get("error")
    return error is not None and error["kind"] == "OutOfMemoryError"


def was_killed(status: int, facts: dict[str, Any] | None) -> bool:
    """Return whether SIGKILL ended the script's process, or one of its ranks.

    The system sends it when this machine's memory is exhausted, which says nothing of the GPUs.

    Args:
        status: the exit status of the rehearsal; negative for a signal.
        facts: what it wrote.
    """
    error = (facts or {}).get("error")
    return status == -signal.SIGKILL or (error is not None and error["kind"] == KILLED_RANK)


def _describe_error(
    outcome: Outcome, status: int, error: dict[str, Any] | None, last_line: str | None
) -> str | None:
    if outcome is Outcome.KILLED:
        return _NOT_JUDGED
    if not status:
        return None
    if error is None:
        return last_line or f"exit status {status}"
    first = error["text"].partition("\n")[0]
    where = "" if error["line"] is None else f" at {error['line']}"
    if error["kind"] == SystemExit.__name__:
        said = "" if last_line is None else f"; its last line: {last_line}"
        return f"{first}{where}{said}"
    return f"{error['kind']}{where}: {first}"


def _headroom_bytes(facts: dict[str, Any]) -> int | None:
    return min((one["peak"]["headroom_bytes"] for one in facts.get("devices", ())), default=None)


def _interval_of(facts: dict[str, Any]) -> StepInterval | None:
    interval = facts.get("step_interval")
    return None if interval is None else StepInterval(**interval)


def _cost(price_per_hour: float | None, seconds: float | None) -> float | None:
    """Return what the rig costs for a million times `seconds`."""
    if price_per_hour is None or seconds is None:
        return None
    return price_per_hour * seconds * _MILLION / _SECONDS_OF_HOUR


def _without_timelines(facts: dict[str, Any]) -> dict[str, Any]:
    kept = {
        key: value
        for key, value in facts.items()
        if key not in ("tracks", "texts", "intervals", "memory")
    }
    steps = [{k: v for k, v in step.items() if k != "path"} for step in facts.get("steps", ())]
    return {**kept, "steps": steps}
