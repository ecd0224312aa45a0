"""Operators that `measure_gpu.py` timed on a real GPU, as work records.

`python gpu_rows.py FILE` runs each row of FILE on the virtual GPU of the same name in shape-only
mode, and prints one JSON object a row: the work records of a call, and how often each occurs, as
`training_programs.py` does for steps. A row's key decides which half it belongs to.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from anyrig.hardware import coefficients_of, spec_of_key, values_of

if __package__:
    from .programs import Programs

GPU = "H100-SXM"
FILE = Path(__file__).parents[1] / "results" / "gpu-rows-h100-sxm.json"


def recorded_rows(file: Path = FILE) -> list[dict[str, Any]]:
    """Return the rows of `file` with their work records."""
    command = [sys.executable, __file__, str(file)]
    finished = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=900)
    return [json.loads(line) for line in finished.stdout.splitlines() if line.startswith("{")]


def programs_of(rows: list[dict[str, Any]], keep: Callable[[dict[str, Any]], bool]) -> Programs:
    """Return the rows that satisfy `keep` as programs of one call each."""
    return Programs([row for row in rows if keep(row)], GPU)


def read_rows(file: Path) -> list[dict[str, Any]]:
    """Return the timed rows: family, name, dtype, sizes, ms."""
    rows: list[dict[str, Any]] = json.loads(file.read_text())["kernels"]
    return [row for row in rows if row.get("ms") is not None]


def record_call(prepare: Callable[[], Callable[[], Any]]) -> tuple[list[int], dict[str, Any]]:
    """Run the call, and return how often each distinct work record occurs, and the records."""
    from anyrig.virtual.build import load_extension

    core = load_extension()
    call = prepare()
    call()
    core.begin_work_log()
    call()
    log = core.end_work_log()
    del log["seconds"]
    counts = Counter(zip(*log.values(), strict=True))
    columns = dict(zip(log, map(list, zip(*counts, strict=True)), strict=True))
    return list(counts.values()), columns


def main() -> int:
    import torch

    from anyrig.virtual import install

    sys.path.insert(0, str(Path(__file__).parents[1]))
    install(GPU, shape_only=True, assume_values=True)
    from gpu.kernels import list_kernels

    node_ms = 1e3 * values_of(coefficients_of(spec_of_key(GPU)))["host.graph_node_seconds"][0]
    known = {(k.name, k.dtype, tuple(k.sizes)): k for k in list_kernels()}
    for row in read_rows(Path(sys.argv[1])):
        kernel = known.get((row["name"], row["dtype"], tuple(row["sizes"])))
        if kernel is None:
            continue
        counts, columns = record_call(kernel.prepare)
        # The calls were nodes of a CUDA graph, whose gaps are no part of a kernel's time.
        ms = row["ms"] - node_ms * sum(counts)
        key = f"{row['family']}, {row['name']}, {row['dtype']}, {row['sizes']}"
        line = {**row, "model": key, "ms": ms, "counts": counts, "columns": columns}
        print(json.dumps(line), flush=True)
        torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
