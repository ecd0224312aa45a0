"""The two runs of an unchanged script, and the verdict on them."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import VerificationError
from .channel import Channel
from .diagnosis import judge
from .records import RankRecord
from .replay import Replay
from .verdict import Verdict

_MOST_LINES = 25
# What a script that needs several ranks, such as one per stage of a pipeline, has to change.
_ALONE = (
    "there it runs as one rank, so take the number of ranks or of pipeline stages from WORLD_SIZE, "
    "or give the script other arguments there: --single-arguments"
)
# What the errors of PyTorch about types have in common, as in "expected scalar type Double".
_OF_TYPES = re.compile(r"dtype|scalar type|Double|Float|float64|float32")


class _TypesError(VerificationError):
    """A run failed with an error about types."""


@dataclass(frozen=True)
class Ended:
    """How a run of the script ended.

    Attributes:
        status: its exit status.
        output: what it printed, or why it failed.
    """

    status: int
    output: str = ""


Start = Callable[[], Ended]


@dataclass(frozen=True)
class ScriptRuns:
    """The two runs of a script.

    Attributes:
        on_rig: runs the script on the rig.
        on_one: runs it on one device.
        steps: how many steps to compare.
        expected_ranks: the number of ranks that the rig's run starts; None if the script decides.
    """

    on_rig: Start
    on_one: Start
    steps: int
    expected_ranks: int | None = None

    def verify(self) -> Verdict:
        """Run the script on the rig and on one device, in float64 if it can, and compare."""
        try:
            try:
                return self._attempt(widens=True)
            except _TypesError:
                verdict = self._attempt(widens=False)
        except VerificationError as error:
            return Verdict(2, reason=str(error))
        note = "the script does not run in float64, so it ran in its own types"
        return replace(verdict, notes=(note, *verdict.notes))

    def _attempt(self, *, widens: bool) -> Verdict:
        """Return the verdict on two runs.

        Raises:
            VerificationError: one of them fails.
        """
        with tempfile.TemporaryDirectory(prefix="anyrig-verification-") as folder:
            for name in ("rig", "one"):
                Path(folder, name).mkdir(mode=0o700)
            channel = Channel(str(Path(folder, "rig")), self.steps, widens)
            ranks = self._run(self.on_rig, channel, "on the rig", self.expected_ranks)
            one = Channel(str(Path(folder, "one")), self.steps, widens, replays=True)
            try:
                replay = Replay.of(ranks)
            except VerificationError as error:
                return Verdict(2, reason=str(error), world_size=len(ranks))
            one.write_replay(replay)
            (alone,) = self._run(self.on_one, one, "on one device", 1)
        return judge(ranks, alone)

    def _run(
        self, start: Start, channel: Channel, where: str, expected: int | None
    ) -> list[RankRecord]:
        with channel.open():
            ended = start()
        records = channel.read_records()
        for record in records:
            if record.failure is not None:
                raise VerificationError(record.failure)
        is_complete = bool(records) and all(len(one.steps) == self.steps for one in records)
        if ended.status != 0 and not is_complete:
            tail = "\n".join(ended.output.strip().splitlines()[-_MOST_LINES:])
            kind = _TypesError if _OF_TYPES.search(tail) else VerificationError
            remedy = _ALONE if channel.replays else "run it with anyrig rehearse first"
            raise kind(f"the script fails {where}, with status {ended.status}; {remedy}\n{tail}")
        if not records:
            raise VerificationError(
                f"no optimizer's step was seen {where}; the script must call step() of a "
                "torch.optim.Optimizer"
            )
        count = len(records)
        if expected is not None and count != expected:
            raise VerificationError(
                f"{count} ranks made steps {where}, and {expected} were expected; let anyrig "
                "verify start the ranks: anyrig verify --nproc-per-node gpu, then the script"
            )
        return records
