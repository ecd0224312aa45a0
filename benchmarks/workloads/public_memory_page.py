"""Write docs/fit_cases.md from the figures of `judge_fit.py`, which runs this.

Files of GitHub are linked at their repository's default branch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "fit_cases.md"
FIGURES = ROOT / "benchmarks" / "results" / "fit-cases.json"
HEAD = """# Public cases of what fits

Programs that others ran on a GPU, or that ran out of its memory there, and what
[`anyrig fit`](fit.md#how-certain-it-is) says of them. Each is written from its source, with random
weights and with the model's sizes, the batch, the precision and the optimizer that the source
names. PyTorch before 1.10 kept more for a backward pass, and before 2.0 kept gradients between
steps: programs of that time do so, too. No case took part in a fit. `benchmarks/judge_fit.py`
rehearses them with transformers and PEFT, and writes this page;
`benchmarks/workloads/public_memory_cases.toml` has the programs.

"""
NAMES = ("program", "GPU", "truth", "verdict", "peak", "upper bound", "source")
COLUMNS = f"| {' | '.join(NAMES)} |\n{'|---' * len(NAMES)}|\n"
OPEN = "\nNot counted, as the verdict depends on what the source leaves open: "


def page(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the text of the page."""
    rows = list(rows)
    counted = [row for row in rows if not row["undetermined"]]
    failed = [row for row in counted if not row["ran"]]
    ran = [row for row in counted if row["ran"]]
    certain = sum(row["verdict"] == "certain" for row in failed)
    fitting = sum(row["verdict"] in ("certain", "likely") for row in ran)
    text = HEAD + (
        f"{certain} of {len(failed)} that ran out of memory are called certain, and {fitting} of"
        f" {len(ran)} that ran\nare called certain or likely.\n\n"
    )
    text += COLUMNS + "".join(map(_line, counted))
    for reason in dict.fromkeys(row["undetermined"] for row in rows if row["undetermined"]):
        left = (row for row in rows if row["undetermined"] == reason)
        text += f"{OPEN}{reason}.\n\n{COLUMNS}{''.join(map(_line, left))}"
    return text


def _line(row: Mapping[str, Any]) -> str:
    cells = [
        row["name"],
        _gpu(row),
        "ran" if row["ran"] else "ran out of memory",
        row["verdict"],
        *(_size(row[name]) for name in ("peak_bytes", "bound_bytes")),
        f"{_link(row['source'])}, {row['date']}",
    ]
    return f"| {' | '.join(cells)} |\n"


def _gpu(row: Mapping[str, Any]) -> str:
    return "K80" if row["rig"].endswith("iB") else row["rig"]


def _size(count: int | None) -> str:
    return "" if count is None else f"{count / 1e9:.2f} GB"


def _link(source: str) -> str:
    """Return a source with a link to its issue or file on GitHub."""
    repository, _, rest = source.partition(", ")
    place, colon, told = rest.partition(": ")
    issue = re.fullmatch(r"issue (\d+)", place)
    path = f"issues/{issue[1]}" if issue else f"blob/HEAD/{place}"
    return f"[{repository}, {place}](https://github.com/{repository}/{path}){colon}{told}"


def write_page() -> None:
    """Write the page from the figures."""
    PAGE.write_text(page(json.loads(FIGURES.read_text())["rows"]))


if __name__ == "__main__":
    write_page()
