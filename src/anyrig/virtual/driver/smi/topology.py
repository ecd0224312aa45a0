"""``topo -m``: by what each card reaches each other."""

from __future__ import annotations

import os
from collections.abc import Sequence

from .card import Card

_LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks
"""  # noqa: E501 - the lines of nvidia-smi


def topology(cards: Sequence[Card]) -> str:
    """Return the matrix, its columns separated by tabs."""
    heads = [f"GPU{card.index}" for card in cards]
    affinity = [f"0-{(os.cpu_count() or 1) - 1}", "0", "N/A"]
    rows = [["", *heads, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"]]
    rows += [
        [head, *(_path(card, other) for other in cards), *affinity]
        for head, card in zip(heads, cards, strict=True)
    ]
    return "".join("\t".join(row) + "\n" for row in rows) + _LEGEND


def _path(card: Card, other: Card) -> str:
    if card is other:
        return " X "
    links = card.nvlinks_to(other)
    return f"NV{links}" if links else "PHB"
