"""Let groups of ranks fail in every way, repeatedly.

By hand:

    python tests/processes/repeat_failures.py [NAME ...] [--runs 20] [--within 5] [--json FILE]

A run is good if the message of every node begins as expected, the group ended in time, and no
process and no unnamed file is left; other runs are reported. --json adds the figures to FILE.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path

from failing_group import FailingGroup, failing_group
from two_machines import Machine, lack, two_machines

LIMIT_SECONDS = 3.0
SILENCE_SECONDS = 10.0
PORT = 29741
RANKS = 3

# The command for ranks of one node on virtual GPUs.
ON_VIRTUAL_GPUS = [
    *(sys.executable, "-m", "anyrig", "rehearse", "--quiet", "--rig", f"{RANKS}x256MiB"),
    *("-m", "anyrig", "run", "--device", "all"),
]
Event = Callable[[FailingGroup], object]


@dataclass(frozen=True)
class Failure:
    """A way in which a group fails.

    Attributes:
        way: what rank 1 does.
        first: the beginning of the message.
        also: further parts of the message.
        event: called once the ranks have met.
        code: the launcher's exit code.
        limit: how long the group may take to notice the failure.
        flags: of `anyrig run`.
        backends: on which to run it.
        collective: in which the other ranks wait.
    """

    way: str
    first: str
    also: Sequence[str] = ()
    event: Event | None = None
    code: int = 1
    limit: float = 0.0
    flags: Sequence[str] = ()
    backends: Sequence[str] = ("gloo",)
    collective: str = "all_reduce"


def send(signum: signal.Signals, *, everyone: bool = False, again: float = 0) -> Event:
    def event(group: FailingGroup) -> None:
        pid = group.launchers[0].pid
        (os.killpg if everyone else os.kill)(pid, signum)
        if again:
            time.sleep(again)
            os.kill(pid, signum)

    return event


@dataclass(frozen=True)
class Outcome:
    """The result of one run.

    Attributes:
        fault: what was wrong; empty if nothing.
        seconds: from the event until no process was left, less the time that the group may wait;
            None if processes were left, or were to stay.
    """

    fault: str
    seconds: float | None = None


BOTH = ("gloo", "nccl")
RANK = "error: rank 1"
STOPPED = "the launcher was stopped"
LATE = f"{RANK} did not reach a collective in time"
SEEN = "last output: total 6.0"
AT = "it was at"


def late(way: str, *also: str, **options: object) -> Failure:
    flags = ("--timeout", str(LIMIT_SECONDS))
    return Failure(way, LATE, (SEEN, *also), limit=LIMIT_SECONDS, flags=flags, **options)


FAILURES = {
    "ctrl-c": Failure("wait", f"{STOPPED} (SIGINT)", (AT,), send(signal.SIGINT), 130),
    "ctrl-c to all": Failure(
        "wait", f"{STOPPED} (SIGINT)", (AT,), send(signal.SIGINT, everyone=True), 130
    ),
    "ctrl-c twice": Failure(
        "stubborn", f"{STOPPED} (SIGINT)", (AT,), send(signal.SIGINT, again=0.5), 130
    ),
    "sigterm": Failure("wait", f"{STOPPED} (SIGTERM)", (AT,), send(signal.SIGTERM), 143),
    "sighup": Failure("wait", f"{STOPPED} (SIGHUP)", (AT,), send(signal.SIGHUP), 129),
    "sigterm, stubborn": Failure(
        "stubborn", f"{STOPPED} (SIGTERM)", (AT,), send(signal.SIGTERM), 143
    ),
    "launcher killed": Failure("wait", "", (), send(signal.SIGKILL), -9, backends=BOTH),
    "kill": Failure("kill", f"{RANK} was killed (SIGKILL)", (SEEN,), backends=BOTH),
    "kill with children": Failure("children", f"{RANK} was killed (SIGKILL)", (SEEN,)),
    "kill with workers": Failure("workers", f"{RANK} was killed (SIGKILL)", (SEEN,)),
    "raise": Failure("raise", f"{RANK} failed (exit code 1)", ("on fire",), backends=BOTH),
    "raise after leaving": Failure(
        "raise-after-leaving", f"{RANK} failed (exit code 1)", ("on fire",), backends=BOTH
    ),
    "leave": Failure("leave", f"{RANK} ended early", (SEEN,), backends=BOTH),
    "exit": Failure("exit", f"{RANK} failed (exit code 3)", (SEEN,), backends=BOTH),
    "suspend": late("suspend", "it had been suspended", backends=BOTH),
    "late": late("late", "in sleep", backends=BOTH),
    "late, broadcast": late("late", "in sleep", collective="broadcast", backends=BOTH),
    "late, barrier": late("late", "in sleep", collective="barrier", backends=BOTH),
    "late, gather": late("late", "in sleep", collective="gather", backends=BOTH),
    "late, backward": late("late", "in sleep", collective="backward", backends=BOTH),
    "late, shard": late("late", "in sleep", collective="shard", backends=BOTH),
    "spin": late("spin", "in spin", backends=BOTH),
    "elsewhere": late("elsewhere", "in wait_elsewhere"),
    "stubborn": late("stubborn", "in heed_nothing"),
    "again": Failure("again", "", ("loaded epoch 7",), code=0, flags=("--max-restarts", "1")),
}


def fail_once(failure: Failure, backend: str, folder: Path, within: float) -> Outcome:
    with failing_group(folder) as group:
        command = ON_VIRTUAL_GPUS if backend == "nccl" else None
        flags = [*failure.flags]
        group.start(
            failure.way,
            backend,
            command=command,
            flags=flags,
            environment={"TEST_COLLECTIVE": failure.collective},
        )
        group.wait_ready(RANKS)
        if failure.event is not None:
            failure.event(group)
        return _faults(group, failure, within)


def _faults(group: FailingGroup, failure: Failure, within: float) -> Outcome:
    seconds = group.wait()
    most = 60 if failure.code == 0 else within + failure.limit
    (code,) = [launcher.returncode for launcher in group.launchers]
    text = "\n".join(group.message())
    said = group.errors() + group.output()
    faults = [
        f"took {seconds:.1f} s" if seconds > most else "",
        f"exit code {code}" if code != failure.code else "",
        "" if text.startswith(failure.first) else f"message begins {text[:100]!r}",
        *(f"no {words!r}" for words in failure.also if words not in said),
        f"left {group.litter()}" if group.litter() else "",
    ]
    found = "; ".join(filter(None, faults))
    took = None if failure.code == 0 else seconds - failure.limit
    return Outcome(found and f"{found}\n{group.errors()}", took)


# On two nodes: rank 0 on the first, which hosts the rendezvous; ranks 1 and 2 on the second.


@dataclass(frozen=True)
class Disaster:
    """A failure of two nodes; `first` and `also` have the message of each node."""

    way: str
    event: Callable[[FailingGroup, Sequence[Machine]], object] | None
    first: tuple[str | None, str | None]
    limit: float = 0.0
    ends_well: bool = False
    nodes: str = "2"
    restarts: int = 0


def kill_launcher(number: int) -> Callable[[FailingGroup, Sequence[Machine]], object]:
    def event(group: FailingGroup, _: Sequence[Machine]) -> None:
        # `ip` and `unshare` have become the launcher.
        group.launchers[number].kill()

    return event


def stop_launcher(number: int) -> Callable[[FailingGroup, Sequence[Machine]], object]:
    return lambda group, _: group.launchers[number].send_signal(signal.SIGINT)


def unplug(number: int) -> Callable[[FailingGroup, Sequence[Machine]], object]:
    return lambda _, machines: machines[number].unplug()


def unplug_shortly(_: FailingGroup, machines: Sequence[Machine]) -> None:
    machines[0].unplug()
    time.sleep(4)
    machines[0].plug()


DISASTERS = {
    "far kill": Disaster("kill", None, ("error: rank 1 on {1} was killed (SIGKILL)",) * 2),
    "far raise": Disaster("raise", None, ("error: rank 1 on {1} failed (exit code 1)",) * 2),
    "far leave": Disaster("leave", None, ("error: rank 1 on {1} ended early",) * 2),
    "far late": Disaster(
        "late", None, ("error: rank 1 on {1} did not reach a collective",) * 2, LIMIT_SECONDS
    ),
    "far launcher killed": Disaster(
        "wait", kill_launcher(1), ("error: the launcher on {1} ({3}) was killed", None)
    ),
    "near launcher killed": Disaster(
        "wait", kill_launcher(0), (None, "error: the launcher on {0} ({2}) was killed")
    ),
    "far ctrl-c": Disaster(
        "wait",
        stop_launcher(1),
        ("error: the launcher on {1} was stopped", "the launcher on {1} was stopped (SIGINT)"),
    ),
    "cut": Disaster(
        "wait",
        unplug(0),
        ("error: {1} ({3}) no longer answers", "error: {0} ({2}) no longer answers"),
        SILENCE_SECONDS + 1,
    ),
    "far cut": Disaster(
        "late",
        unplug(1),
        ("error: {1} ({3}) no longer answers", "error: {0} ({2}) no longer answers"),
        SILENCE_SECONDS + 1,
    ),
    "short cut": Disaster("pause", unplug_shortly, ("", ""), 60, ends_well=True),
    "far again": Disaster("again", None, ("attempt 1 of 2",) * 2, 90, ends_well=True, restarts=1),
    "going on alone": Disaster(
        "pause-when-two",
        kill_launcher(1),
        ("attempt 1 of 2 failed, restarting: the launcher on {1}", None),
        120,
        ends_well=True,
        nodes="1:2",
        restarts=1,
    ),
}


def suffer_once(disaster: Disaster, folder: Path, within: float) -> Outcome:
    with two_machines() as machines, failing_group(folder) as group:
        flags = (
            {"TEST_LIMIT": str(LIMIT_SECONDS)}
            if disaster.way == "late" and disaster.event is None
            else {}
        )
        for machine, ranks in zip(machines, (1, 2), strict=True):
            group.start(
                disaster.way,
                ranks=ranks,
                before=machine.before(),
                flags=[
                    *("--nnodes", disaster.nodes, "--max-restarts", str(disaster.restarts)),
                    *("--rdzv-endpoint", f"{machines[0].address}:{PORT}"),
                ],
                environment=flags,
            )
        group.wait_ready(RANKS)
        if disaster.event is not None:
            disaster.event(group, machines)
        seconds = group.wait()
        names = [*(machine.host for machine in machines), *(m.address for m in machines)]
        faults = []
        if seconds > within + disaster.limit:
            faults.append(f"took {seconds:.1f} s")
        for number, first in enumerate(disaster.first):
            if first is None:
                continue
            text = "\n".join(group.message(number))
            if not text.startswith(first.format(*names)):
                faults.append(f"machine {number}: message begins {text[:120]!r}")
            if (group.launchers[number].returncode == 0) != disaster.ends_well:
                faults.append(f"machine {number}: exit code {group.launchers[number].returncode}")
        if group.litter():
            faults.append(f"left {group.litter()}")
        if faults:
            faults.append("\n" + "\n----\n".join(group.errors(number) for number in range(2)))
        took = None if disaster.ends_well else seconds - disaster.limit
        return Outcome("; ".join(faults), took)


@dataclass(frozen=True)
class Row:
    """A line of the table: a failure, and how many of its runs were good."""

    failure: str
    runs: int
    good: int
    slowest_seconds: float | None

    def __str__(self) -> str:
        slowest = "" if self.slowest_seconds is None else f"{self.slowest_seconds:.1f} s"
        return f"{self.failure:<36}{self.good:>4} of {self.runs:<4}{slowest:>8}"


def repeat(name: str, once: Callable[[Path], Outcome], runs: int) -> Row:
    good, seconds = 0, []
    for run in range(runs):
        folder = Path(tempfile.mkdtemp(prefix="failures-"))
        try:
            outcome = once(folder)
        except AssertionError as error:
            outcome = Outcome(str(error))
        finally:
            shutil.rmtree(folder)
        good += not outcome.fault
        if outcome.fault:
            print(f"{name}, run {run + 1}: {outcome.fault}", flush=True)
        if outcome.seconds is not None:
            seconds.append(outcome.seconds)
    return Row(name, runs, good, round(max(seconds), 2) if seconds else None)


def write(row: Row, file: Path) -> None:
    rows = json.loads(file.read_text())["rows"] if file.exists() else []
    rows = [*(other for other in rows if other["failure"] != row.failure), asdict(row)]
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    figures = {"benchmark": "rank_failures", "date": now, "ranks": RANKS, "rows": rows}
    file.write_text(json.dumps(figures, indent=2) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--within", type=float, default=5.0, metavar="SECONDS")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    # Background processes of a shell ignore Ctrl-C, and their child processes inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it
    cases: dict[str, Callable[[Path], Outcome]] = {}
    for name, failure in FAILURES.items():
        for backend in failure.backends:
            cases[f"{name}, {backend}"] = lambda folder, f=failure, b=backend: fail_once(
                f, b, folder, given.within
            )
    for name, disaster in DISASTERS.items():
        cases[f"{name}, two machines"] = lambda folder, d=disaster: suffer_once(
            d, folder, given.within
        )
    chosen = [case for case in cases if not given.names or any(n in case for n in given.names)]
    if any("machines" in case for case in chosen) and (reason := lack()):
        print(f"no two machines: {reason}")
        chosen = [case for case in chosen if "machines" not in case]
    bad = 0
    for name in chosen:
        row = repeat(name, cases[name], given.runs)
        print(row, flush=True)
        if given.json is not None:
            write(row, given.json)
        bad += row.runs - row.good
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
