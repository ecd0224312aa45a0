"""Measure how long `anyrig check` takes to read 500 Python files of PyTorch.

The files are those of five folders of the installed torch, in the order of their names. The whole
command may take 2 s of processor time. The rival is `ast.parse` of the same texts, which every
checker needs: the check may take 4 times as long.
"""

from __future__ import annotations

import ast
import gc
import importlib.util
import os
import resource
import subprocess
import sys
import time
import warnings
from pathlib import Path

from rich.console import Console
from rich.table import Table

from workloads.figures import bar_text, write_figures

FILES = 500
FOLDERS = ("ao", "distributions", "nn", "optim", "utils")
COMMAND_BAR_SECONDS, RATIO_BAR = 2.0, 4.0


def files() -> list[Path]:
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    root = Path(spec.origin).parent
    return sorted(path for folder in FOLDERS for path in (root / folder).rglob("*.py"))[:FILES]


def command_seconds(paths: list[Path]) -> float:
    """The processor time of the command in a process of its own."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "anyrig", "check", "--json", *map(str, paths)]
    subprocess.run(command, stdout=subprocess.DEVNULL, timeout=300)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def parse_seconds(paths: list[Path]) -> float:
    texts = [path.read_text(encoding="utf-8") for path in paths]
    started = time.process_time()
    for text in texts:
        ast.parse(text)
    return time.process_time() - started


def main() -> None:
    gc.disable()
    warnings.simplefilter("ignore")  # those of the texts
    os.environ["PYTHONWARNINGS"] = "ignore"
    paths = files()
    lines = sum(path.read_bytes().count(b"\n") for path in paths)
    command = min(command_seconds(paths) for _ in range(3))
    parse = min(parse_seconds(paths) for _ in range(3))
    holds = command <= COMMAND_BAR_SECONDS and command <= RATIO_BAR * parse
    table = Table("files", "lines", "anyrig check", "ast.parse", "bar")
    bar = bar_text(f"{COMMAND_BAR_SECONDS} s, {RATIO_BAR} times", holds)
    table.add_row(str(len(paths)), str(lines), f"{command:.2f} s", f"{parse:.2f} s", bar)
    Console().print(table)
    row = {"files": len(paths), "lines": lines, "seconds": command, "ast_parse_seconds": parse}
    write_figures("check_speed", [row | {"ratio": command / parse, "holds": holds}])
    sys.exit(int(not holds))


if __name__ == "__main__":
    main()
