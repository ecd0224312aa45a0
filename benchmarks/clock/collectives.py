"""NCCL's collectives inside a node: two protocols, one of low latency and one of high bandwidth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from anyrig.virtual.build import load_extension

from .fitting import Coefficients, Unknown, facts, fit_loss
from .measurements import GPUS, fits, read_lines

# In the order of `CollectiveKind` in csrc/time/cost/collective_cost.h.
_KINDS = {"all_reduce": 0, "all_gather": 3, "reduce_scatter": 4, "alltoall": 5}
_BYTES = {"half": 2, "int8": 1}


class Collectives:
    """The measurements of one GPU's collectives, by kind and number of ranks."""

    def __init__(self, folder: Path, name: str, *, judges: bool) -> None:
        self.gpu, _ = facts(GPUS[name])
        self.groups: dict[tuple[int, int], tuple[list[float], list[float]]] = {}
        for line in read_lines(folder / "nccl.csv.gz"):
            kind, ranks = _KINDS[line["op_name"]], int(line["num_gpus"])
            size = int(line["message_size"]) * _BYTES[line["nccl_dtype"]]
            if line["card"] == name and fits((kind, ranks, size)) != judges:
                sizes, ms = self.groups.setdefault((kind, ranks), ([], []))
                sizes.append(size)
                ms.append(float(line["latency"]))

    def ratios(self, coefficients: Coefficients | None = None) -> Any:
        """Return predicted over measured time of all rows."""
        if coefficients is not None:
            self.gpu.coefficients = coefficients
        predict = load_extension().predict_collective_seconds
        return np.concatenate(
            [
                1e3 * np.asarray(predict(self.gpu, kind, sizes, ranks)) / np.asarray(ms)
                for (kind, ranks), (sizes, ms) in self.groups.items()
            ]
        )


def fit_protocols(folder: Path, name: str, base: Coefficients) -> Coefficients:
    rows = Collectives(folder, name, judges=False)
    unknowns = [
        Unknown("collective.base_seconds", 8e-6, is_fraction=False),
        Unknown("collective.link_step_seconds", 0.7e-6, is_fraction=False),
        Unknown("collective.low_latency_fraction", 0.25),
        Unknown("collective.large_base_seconds", 3e-5, is_fraction=False),
        Unknown("collective.bandwidth_fraction", 0.75),
    ]

    def loss(values: Coefficients, _: float | None) -> float:
        return float(np.mean(np.abs(np.log(rows.ratios(values)))))

    return fit_loss(base, unknowns, loss)[0]
