"""Results computed by a formula instead of rehearsals, and a question that they answer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anyrig.planning.fit import Fit
from anyrig.planning.kept_results import KeptResults
from anyrig.planning.rehearsed_value import Order
from anyrig.planning.rigs import read_rigs
from anyrig.planning.variation import Variation
from anyrig.programs.program import Program
from anyrig.rehearsal.comparison.prices import Prices
from anyrig.rehearsal.comparison.rehearsed_apart import RehearsedApart
from anyrig.virtual.rig import VirtualRig

GIB = 2**30
BATCH = Variation("--batch-size", 1, 512)
OUT_OF_MEMORY = {"kind": "OutOfMemoryError", "text": "CUDA out of memory", "line": "train.py:3"}


@dataclass(frozen=True)
class Formula(KeptResults):
    """Results of a program with `base` and `each` GiB of memory: for itself and for a sample."""

    base: float = 10
    each: float = 0.5
    seconds: float = 0.25

    def find(self, order: Order) -> RehearsedApart | None:
        words = order.make_program().arguments
        name = f"{BATCH.name}="
        value = next((int(word[len(name) :]) for word in words if word.startswith(name)), 1)
        device = VirtualRig.parse(order.rig).devices[0]
        needed = int((self.base + value * self.each) * GIB)
        fits = needed <= device.memory_bytes
        total = min(needed, device.memory_bytes)
        reaches_peak = device.spec is not None or order.steps == 2
        facts: dict[str, Any] = {
            "devices": [
                {
                    "rank": 0,
                    "index": 0,
                    "capacity_bytes": device.memory_bytes,
                    "peak": {
                        "total_bytes": total,
                        "context_bytes": 0,
                        "collective_bytes": 0,
                        "headroom_bytes": device.memory_bytes - total,
                    },
                }
            ],
            "memory": [
                {
                    "rank": 0,
                    "device": 0,
                    "tensor_bytes": [total if reaches_peak else 0],
                    "workspace_bytes": [0],
                    "context_bytes": [0],
                }
            ],
            "steps": [{}],  # the second one runs out of memory
            "typical_step": {"seconds": self.seconds * value, "samples_per_second": None},
            "error": None if fits else OUT_OF_MEMORY,
        }
        return RehearsedApart(0 if fits else 1, facts, None)


def question(
    rigs: str = "T4,RTX-3090,A100-80GB",
    variation: Variation | None = BATCH,
    prices: Prices | None = None,
) -> Fit:
    return Fit(Program("train.py", ("--lr", "1")), read_rigs(rigs), variation, prices)


FORMULA = Formula(Path(), "hash")
