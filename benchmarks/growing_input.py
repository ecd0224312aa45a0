"""Measure how time grows with input that others have made: headers of safetensors, and findings.

Each row reads an input and one that is four times as large. The time may grow six times, and may be
a multiple of the rival's: `json.loads` for the text of a header, and `anyrig check` of the same
files, which finds the same and rewrites nothing, for `anyrig migrate`.
"""

from __future__ import annotations

import gc
import json
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from anyrig.checkpoint.safetensors_header import read_header
from anyrig.errors import CheckpointDamagedError
from anyrig.migration.check import check_source, rewrite_source
from anyrig.migration.rules.every import RULES
from anyrig.migration.source_file import SourceFile
from workloads.figures import bar_text, write_figures

FACTOR, GROWTH_BAR = 4, 6.0
RUNS = 3


@dataclass(frozen=True)
class Row:
    """What reading an input took.

    Attributes:
        count: the entries of the larger input; the smaller one has a quarter of them.
        rival_seconds: of the rival, for the larger input.
        bar: the most times as long as the rival.
    """

    input: str
    count: int
    small_seconds: float
    seconds: float
    rival_seconds: float
    bar: float

    @property
    def holds(self) -> bool:
        """Whether the time grows with the input, and is no more than the bar."""
        grows = self.seconds <= GROWTH_BAR * self.small_seconds
        return grows and self.seconds <= self.bar * self.rival_seconds


def measure(action: Callable[[], object]) -> float:
    """Return the least processor time of several runs."""
    seconds = []
    for _ in range(RUNS):
        started = time.process_time()
        action()
        seconds.append(time.process_time() - started)
    return min(seconds)


def key_twice(count: int) -> bytes:
    return b"{" + b",".join(b'"a%d":0' % i for i in range(count)) + b',"z":0,"z":0}'


def many_dimensions(count: int) -> bytes:
    sizes = b",".join([b"4611686018427387905"] * count)
    return b'{"a":{"dtype":"F32","shape":[' + sizes + b'],"data_offsets":[0,4]}}'


def tensors(count: int) -> bytes:
    entry = '"layer.%d":{"dtype":"F32","shape":[1],"data_offsets":[%d,%d]}'
    return ("{" + ",".join(entry % (i, 4 * i, 4 * i + 4) for i in range(count)) + "}").encode()


def header_row(name: str, make: Callable[[int], bytes], count: int, bar: float) -> Row:
    path = Path(tempfile.mkdtemp()) / "model.safetensors"

    def read() -> None:
        with suppress(CheckpointDamagedError):
            read_header(path)

    def seconds(count: int) -> float:
        header = make(count)
        path.write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * 4 * count)
        return measure(read)

    small, large = seconds(count // FACTOR), seconds(count)
    rival = measure(lambda: json.loads(make(count)))
    path.unlink()
    path.parent.rmdir()
    return Row(name, count, small, large, rival, bar)


def variables(count: int) -> str:
    head = "import torch\nfrom torch.autograd import Variable\n"
    return head + "".join(f"v{i} = Variable(torch.ones(3))\n" for i in range(count))


def old_prints(count: int) -> str:
    return "import torch\n" + "".join(f"print 'loss', {i}\n" for i in range(count))


def statements_of_blocks(count: int) -> str:
    head = "import torch\nfrom torch.autograd import Variable\n"
    return head + "".join(f"if x:\n    y = Variable(x, volatile=True)[{i}]\n" for i in range(count))


def migration_row(name: str, make: Callable[[int], str], count: int, bar: float) -> Row:
    def source(count: int) -> SourceFile:
        return SourceFile(Path("generated.py"), make(count), "utf-8")

    def rewrite(source: SourceFile) -> None:
        rewrite_source(source, RULES, allow_unsafe=True)

    small, large = source(count // FACTOR), source(count)
    return Row(
        name,
        count,
        measure(lambda: rewrite(small)),
        measure(lambda: rewrite(large)),
        measure(lambda: check_source(large, RULES)),
        bar,
    )


def main() -> None:
    gc.disable()
    rows = [
        header_row("header: a key twice", key_twice, 80_000, 4.0),
        header_row("header: many dimensions", many_dimensions, 80_000, 4.0),
        header_row("header: many tensors", tensors, 80_000, 6.0),
        migration_row("findings: Variable", variables, 8_000, 6.0),
        migration_row("findings: print of Python 2", old_prints, 8_000, 6.0),
        migration_row("findings: in blocks", statements_of_blocks, 8_000, 6.0),
    ]
    table = Table("input", "entries", "a quarter", "all", "rival", "bar")
    for row in rows:
        bar = bar_text(f"{GROWTH_BAR:g} times a quarter, {row.bar:g} times the rival", row.holds)
        times = [f"{each:.2f} s" for each in (row.small_seconds, row.seconds, row.rival_seconds)]
        table.add_row(row.input, str(row.count), *times, bar)
    Console().print(table)
    write_figures("growing_input", [asdict(row) | {"holds": row.holds} for row in rows])
    sys.exit(int(not all(row.holds for row in rows)))


if __name__ == "__main__":
    main()
