"""Checks of all of PyTorch's operator database on a virtual GPU against the CPU.

    python tests/operators/sweep.py                     float32, forward and backward
    python tests/operators/sweep.py --all               every variant
    python tests/operators/sweep.py bfloat16 float32-out --only 'linalg.*'
    python tests/operators/sweep.py --resume            resume the last run

Entries run in worker processes, so a crash or a hang fails only its entry.
Exits with 1 if an entry fails that exceptions.toml does not list, or if a listed entry passes.
"""

import argparse
import json
import os
import queue
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from exceptions import Verdict, judge, read_exceptions

HERE = Path(__file__).parent
RESULTS = HERE.parents[1] / "build" / "operators"

Outcome = dict[str, Any]


class Worker:
    """A process that checks one entry at a time; restarted after a crash or a hang."""

    def __init__(
        self, variant: str, most_samples: int | None, limit_seconds: float, results: Path
    ) -> None:
        self.variant = variant
        self.limit_seconds = limit_seconds
        self.command = [sys.executable, str(HERE / "worker.py"), "--variant", variant]
        if most_samples is not None:
            self.command += ["--most-samples", str(most_samples)]
        self.process: subprocess.Popen[str] | None = None
        self.log = (results / f"worker-{variant}-{os.getpid()}-{id(self)}.log").open("w+")

    def check(self, number: int, name: str) -> Outcome:
        """Return the outcome of the entry with database index `number`."""
        if self.process is None:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.log,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        process = self.process
        hung = threading.Event()
        timer = threading.Timer(self.limit_seconds, lambda: (hung.set(), process.kill()))
        timer.start()
        try:
            process.stdin.write(f"{number}\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
        if line:
            return json.loads(line)
        self.process = None
        status = process.wait()
        message = (
            f"no answer within {self.limit_seconds:.0f} s"
            if hung.is_set()
            else f"the process ended with {status}: {self.last_words()}"
        )
        return {
            "entry": name,
            "variant": self.variant,
            "status": "failed",
            "samples": 0,
            "message": message,
        }

    def last_words(self) -> str:
        """Return the end of the process's standard error."""
        self.log.flush()
        return " ".join(Path(self.log.name).read_text()[-300:].split())

    def close(self) -> None:
        """Terminate the process and delete its log."""
        if self.process is not None:
            self.process.stdin.close()
            self.process.stdout.close()
            self.process.wait()
        self.log.close()
        Path(self.log.name).unlink()


def sweep(
    variant: str,
    entries: list[tuple[int, str]],
    *,
    workers: int,
    most_samples: int | None,
    limit_seconds: float,
    resume: bool = False,
    folder: str = "whole",
) -> list[Outcome]:
    """Check `entries`, pairs of database index and name; write each outcome when it is known.

    Outcomes go to the variant's file in `folder`, below `RESULTS`.
    """
    results = RESULTS / folder
    results.mkdir(parents=True, exist_ok=True)
    path = results / f"{variant}.jsonl"
    done = read_outcomes(path) if resume else {}
    waiting: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
    for number, name in entries:
        if name not in done:
            waiting.put((number, name))
    lock = threading.Lock()

    def work() -> None:
        worker = Worker(variant, most_samples, limit_seconds, results)
        try:
            while True:
                number, name = waiting.get_nowait()
                outcome = worker.check(number, name)
                with lock, path.open("a") as file:
                    file.write(json.dumps(outcome) + "\n")
                    done[name] = outcome
        except queue.Empty:
            return
        finally:
            worker.close()

    if not resume:
        path.unlink(missing_ok=True)
    threads = [threading.Thread(target=work) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [done[name] for _, name in entries if name in done]


def read_outcomes(path: Path) -> dict[str, Outcome]:
    """Read the outcomes of an earlier run, except for a truncated last line."""
    if not path.exists():
        return {}
    outcomes = {}
    for line in path.read_text().splitlines():
        try:
            outcome = json.loads(line)
        except json.JSONDecodeError:
            continue
        outcomes[outcome["entry"]] = outcome
    return outcomes


def list_entries() -> list[str]:
    """Return the names of the database's entries, which depend on the virtual GPU's features."""
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import worker; worker.install(worker.RIG)\n"
        "from torch.testing._internal.common_methods_invocations import op_db\n"
        "from entry import name_of\n"
        "print('\\n'.join(map(name_of, op_db)))"
    )
    command = [sys.executable, "-c", script, str(HERE)]
    return subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True
    ).stdout.splitlines()


def print_table(verdicts: Iterable[Verdict]) -> None:
    """Print a Markdown table with one row for each variant."""
    print(
        "| variant | entries | pass | of them | calls | same bits | gradients | refused by both "
        "| wider reference |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for verdict in verdicts:
        present = [outcome for outcome in verdict.outcomes if outcome["status"] != "absent"]
        sums: Counter[str] = Counter()
        for outcome in present:
            for key in ("samples", "identical", "backward", "refused", "widened"):
                sums[key] += outcome.get(key, 0)
        passed = sum(outcome["status"] == "passed" for outcome in present)
        share = f"{passed / len(present):.2%}" if present else ""
        print(
            f"| {verdict.variant} | {len(present)} | {passed} | {share} | {sums['samples']} "
            f"| {sums['identical']} | {sums['backward']} | {sums['refused']} | {sums['widened']} |"
        )


def main() -> int:
    """Run the sweep, print its table and compare it with the exemptions."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("variants", nargs="*", default=["float32"])
    parser.add_argument("--all", action="store_true", help="every variant")
    parser.add_argument("--only", default=".*", help="entries whose name matches this pattern")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--most-samples", type=int, help="calls of one entry; all if not given")
    parser.add_argument("--limit-seconds", type=float, default=300, help="for one entry")
    parser.add_argument("--resume", action="store_true", help="keep what the last run found out")
    parser.add_argument("--json", type=Path, help="write all outcomes there")
    arguments = parser.parse_args()

    exceptions = read_exceptions()
    names = list_entries()
    chosen = [(i, name) for i, name in enumerate(names) if re.fullmatch(arguments.only, name)]
    verdicts = []
    for variant in list_variants() if arguments.all else arguments.variants:
        started = time.monotonic()
        outcomes = sweep(
            variant,
            chosen,
            workers=arguments.workers,
            most_samples=arguments.most_samples,
            limit_seconds=arguments.limit_seconds,
            resume=arguments.resume,
        )
        verdict = judge(variant, outcomes, exceptions)
        verdicts.append(verdict)
        print(f"{variant}: {time.monotonic() - started:.0f} s", flush=True)
        for line in verdict.lines():
            print(f"  {line}", flush=True)
    print_table(verdicts)
    if arguments.json:
        arguments.json.write_text(json.dumps([v.outcomes for v in verdicts], indent=1))
    return 0 if all(verdict.fine for verdict in verdicts) else 1


def list_variants() -> list[str]:
    """Return the variants' names. Imports torch here, since only this function needs it."""
    from variants import VARIANTS

    return list(VARIANTS)


if __name__ == "__main__":
    sys.exit(main())
