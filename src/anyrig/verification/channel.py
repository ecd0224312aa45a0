"""The environment variable by which the processes of a script leave their records.

::

    anyrig verify ── makes a folder, describes it in ANYRIG_VERIFICATION
       ├─ rank 0 ──── records from its import of torch on, writes 0-4711.rank when it ends
       ├─ rank 1 ──── 1-4712.rank
       └─ reads the files of all

The folder is the user's alone; each run has its own.
"""

from __future__ import annotations

import atexit
import json
import os
import pickle
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..memory.atomic_file import write_atomically

if TYPE_CHECKING:
    from .records import RankRecord
    from .replay import Replay

VARIABLE = "ANYRIG_VERIFICATION"
_SUFFIX = ".rank"
_REPLAY = "replay.pickle"


@dataclass(frozen=True)
class Channel:
    """How the processes of a run record, and where.

    Attributes:
        folder: where they leave their records.
        steps: after how many steps they end.
        widens: whether they compute in float64.
        replays: whether the folder has a `Replay` for them.
    """

    folder: str
    steps: int
    widens: bool
    replays: bool = False

    @contextmanager
    def open(self) -> Iterator[None]:
        """Make the processes that the block starts record their steps."""
        before = os.environ.get(VARIABLE)
        os.environ[VARIABLE] = json.dumps(asdict(self))
        try:
            yield
        finally:
            if before is None:
                del os.environ[VARIABLE]
            else:
                os.environ[VARIABLE] = before

    def write_replay(self, replay: Replay) -> None:
        """Leave what the processes of a run replay."""
        Path(self.folder, _REPLAY).write_bytes(pickle.dumps(replay))

    def read_replay(self) -> Replay | None:
        """Return what this process replays; None if the run has its own batches and values."""
        if not self.replays:
            return None
        # Safe to unpickle: the command that started this process wrote the file.
        replay: Replay = pickle.loads(Path(self.folder, _REPLAY).read_bytes())  # noqa: S301
        return replay

    def write_record(self, record: RankRecord) -> None:
        """Leave the record of this process."""
        file = Path(self.folder, f"{record.rank}-{os.getpid()}{_SUFFIX}")
        write_atomically(file, pickle.dumps(record))

    def read_records(self) -> list[RankRecord]:
        """Return the records of the run, one for each rank; of a restarted rank, the last one."""
        files = sorted(
            Path(self.folder).glob(f"*{_SUFFIX}"), key=lambda file: file.stat().st_mtime_ns
        )
        # Safe to unpickle: processes of this command wrote them to a folder of this user alone.
        records = [pickle.loads(file.read_bytes()) for file in files]  # noqa: S301
        return [*{record.rank: record for record in records}.values()]


def record_this_process() -> None:
    """Record this process from now on, and leave the record when the process ends.

    Does nothing without ``ANYRIG_VERIFICATION``. Call this when torch has been imported.
    """
    text = os.environ.get(VARIABLE)
    if text is None:
        return
    import torch

    from .recorder import Recorder

    channel = Channel(**json.loads(text))
    recorder = Recorder(
        channel.steps, widens=channel.widens, ends_program=True, replay=channel.read_replay()
    )
    if channel.widens:
        torch.set_default_dtype(torch.float64)
    seed = int(os.environ.get("RANK", "0"))
    torch.manual_seed(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)
    recorder.start()
    owner = os.getpid()

    def leave() -> None:
        if os.getpid() == owner and recorder.has_record:
            recorder.stop()
            channel.write_record(recorder.record(*recorder.place))

    atexit.register(leave)
