"""The output of ``topo -m``: the connection between each pair of GPUs."""

from __future__ import annotations

import os
from collections.abc import Sequence

from .gpu import Gpu

_LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks
"""  # noqa: E501 - nvidia-smi's own lines


def topology(gpus: Sequence[Gpu]) -> str:
    """Return the connection matrix of `gpus`, with tabs between columns."""
    heads = [f"GPU{gpu.index}" for gpu in gpus]
    affinity = [f"0-{(os.cpu_count() or 1) - 1}", "0", "N/A"]
    rows = [["", *heads, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"]]
    rows += [
        [head, *(_path(gpu, other) for other in gpus), *affinity]
        for head, gpu in zip(heads, gpus, strict=True)
    ]
    return "".join("\t".join(row) + "\n" for row in rows) + _LEGEND


def _path(gpu: Gpu, other: Gpu) -> str:
    if gpu is other:
        return " X "
    links = gpu.nvlinks_to(other)
    return f"NV{links}" if links else "PHB"
