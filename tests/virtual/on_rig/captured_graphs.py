"""Captures of CUDA graphs, and whether another one succeeds after a failed one."""

from __future__ import annotations

from collections.abc import Callable

import torch

# Whether generators other than the default one must be registered before the capture.
REGISTERS_GENERATORS = torch.__version__ < (2, 12)


def captured(work: Callable[[], object], **options: object) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, **options):  # type: ignore[arg-type]
        work()
    return graph


def replayable_afterwards() -> None:
    source = torch.ones(3, device="cuda")
    results = []
    captured(lambda: results.append(source + 1)).replay()
    assert results[0].tolist() == [2.0] * 3
