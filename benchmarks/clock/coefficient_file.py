"""The file of the clock's coefficients: tables with their sources, as TOML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

HEAD = """\
# What the clock of virtual GPUs knows beyond data sheets: for each group of coefficients one table
# per GPU (the keys of specs.toml, which also names the relatives that it applies to), per
# architecture, and `otherwise`, of which the first that exists applies. csrc/time/coefficients.h
# explains each value; csrc/time/cost has the formulas. benchmarks/fit_clock.py writes this file.
#
# source          the measurements or publications behind the values
# error_percent   by GPU, the median error on measurements that no fit has seen; absent: unknown
"""


@dataclass(frozen=True)
class Table:
    """The coefficients of one group for one GPU, architecture, or ``otherwise``."""

    group: str
    of: str
    values: dict[str, list[float]]
    source: str
    error_percent: Mapping[str, float] = field(default_factory=dict)

    def text(self) -> str:
        lines = [f"[{self.group}.{self.of}]"]
        lines += [f"{name} = {_text_of(values)}" for name, values in self.values.items()]
        if self.error_percent:
            errors = ", ".join(f"{gpu} = {error:.1f}" for gpu, error in self.error_percent.items())
            lines.append(f"error_percent = {{ {errors} }}")
        lines.append(f'source = "{self.source}"')
        return "\n".join(lines)


def write_tables(path: Path, tables: Sequence[Table]) -> None:
    path.write_text(HEAD + "\n" + "\n\n".join(table.text() for table in tables) + "\n")


def _text_of(values: Sequence[float]) -> str:
    texts = [f"{value:.4g}" for value in values]
    return texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
