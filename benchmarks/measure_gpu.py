"""Measure the machine's GPU, real or virtual: kernels, whole steps, allocations and the host.

`python benchmarks/measure_gpu.py FILE` writes what it measures to FILE, as JSON. With `--rig KEY`
instead of FILE, it runs the same without computing on a virtual GPU, and prints the JSON as the
last line. `judge_gpu.py` compares the two. Needs timm.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--rig", help="a virtual GPU, such as H100-SXM")
    parser.add_argument("--only", choices=PARTS, action="append")
    given = parser.parse_args()
    if given.file is None and given.rig is None:
        print("nothing to do; use: python benchmarks/measure_gpu.py FILE")
        return 0
    if given.rig is not None:
        from anyrig.virtual import install

        install(given.rig, shape_only=True, assume_values=True)
    measured: dict[str, Any] = {"rig": given.rig, **_about()}
    for part in given.only or PARTS:
        started = time.perf_counter()
        measured[part] = PARTS[part](given.rig)
        measured[f"outside_allocator_after_{part}_bytes"] = _outside_allocator()
        if given.file is not None:  # after each part: what a time limit leaves is of use
            given.file.write_text(json.dumps(measured) + "\n")
        print(f"{part}: {time.perf_counter() - started:.1f} s", flush=True)
    if given.rig is not None:
        print(json.dumps(measured))
    return 0


def _about() -> dict[str, Any]:
    import torch

    free_before, total = torch.cuda.mem_get_info()
    torch.empty(1, device="cuda")
    context_bytes = _outside_allocator()
    properties = torch.cuda.get_device_properties(0)
    names = [name for name in dir(properties) if not name.startswith("_")]
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "driver": _driver_version(),
        "python": platform.python_version(),
        "gpu": properties.name,
        "properties": {name: str(getattr(properties, name)) for name in names},
        "total_bytes": total,
        "free_at_first_bytes": free_before,
        "context_bytes": context_bytes,
    }


def _driver_version() -> str | None:
    import pynvml

    try:
        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:
        return None


def _outside_allocator() -> int:
    """Return the bytes of the GPU in use outside PyTorch's allocator, by any process."""
    import torch

    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved()


def _measure_copies(rig: str | None) -> list[dict[str, Any]]:
    import torch

    from gpu.timing import events_ms

    rows = []
    for mib in (1, 16, 256):
        there = torch.ones(mib * 2**18, device="cuda")
        for is_pinned in (False, True):
            here = torch.ones(mib * 2**18, pin_memory=is_pinned)
            for name, target, source in (("to GPU", there, here), ("from GPU", here, there)):

                def copy(target: Any = target, source: Any = source) -> None:
                    target.copy_(source, non_blocking=True)

                copy()
                ms = min(events_ms(copy) for _ in range(5))
                rows.append({"copy": name, "is_pinned": is_pinned, "mib": mib, "ms": ms})
    return rows


def _measure_host(rig: str | None) -> list[dict[str, Any]]:
    import torch
    from torch import nn

    from gpu.timing import host_us

    x = torch.randn(32, 32, device="cuda")
    wanted = torch.randn(32, 32, device="cuda", requires_grad=True)
    layer = nn.Linear(32, 32, device="cuda")
    calls = {
        "x + 1": lambda: x + 1,
        "x.add_(1)": lambda: x.add_(1),
        "x @ x": lambda: x @ x,
        "x.view(-1)": lambda: x.view(-1),
        "x.sum()": lambda: x.sum(),
        "softmax": lambda: x.softmax(1),
        "Linear": lambda: layer(x),
        "Linear, backward": lambda: layer(x).sum().backward(),
        "x + 1 of x that requires grad": lambda: wanted + 1,
    }
    with torch.no_grad():
        quiet = [{"call": f"{name}", "us": host_us(call)} for name, call in list(calls.items())[:7]]
    return quiet + [{"call": name, "us": host_us(call)} for name, call in list(calls.items())[7:]]


def _measure_kernels(rig: str | None) -> list[dict[str, Any]]:
    import torch

    from gpu.kernels import list_kernels
    from gpu.timing import kernel_ms

    rows = []
    for kernel in list_kernels():
        row = {
            "family": kernel.family,
            "name": kernel.name,
            "dtype": kernel.dtype,
            "sizes": kernel.sizes,
        }
        try:
            row["ms"] = kernel_ms(kernel.prepare)
        except RuntimeError as error:
            row["error"] = str(error).splitlines()[0]
            torch.cuda.synchronize()
        rows.append(row)
        torch.cuda.empty_cache()
    return rows


def _measure_programs(rig: str | None) -> list[dict[str, Any]]:
    from anyrig.virtual import clock
    from gpu.programs import PROGRAMS
    from gpu.steps import measure_program

    compute_seconds = None if rig is None else lambda: clock().devices[0].compute_seconds

    found = []
    for name in PROGRAMS:
        started = time.perf_counter()
        try:
            found.append(measure_program(name, compute_seconds))
        except RuntimeError as error:
            found.append({"name": name, "error": str(error).splitlines()[0]})
        print(f"  {name}: {time.perf_counter() - started:.1f} s", flush=True)
    return found


PARTS: dict[str, Callable[[str | None], list[dict[str, Any]]]] = {
    "host": _measure_host,
    "copies": _measure_copies,
    "kernels": _measure_kernels,
    "programs": _measure_programs,
}

if __name__ == "__main__":
    sys.exit(main())
