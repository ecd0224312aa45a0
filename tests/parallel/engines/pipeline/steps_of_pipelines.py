"""Steps on up to eight devices: run as a program, since the plugin's rig has four."""

from __future__ import annotations

import sys
from itertools import product

from anyrig.virtual import install

install("8xA100-80GB")

from beside_one_device import TOLERANCE, Beside, batch, perceptron  # noqa: E402
from torch import nn  # noqa: E402

from anyrig.parallel.engines.pipeline.schedules.named import SCHEDULE_NAMES  # noqa: E402

FEW = [(6, 16, 33), (7, 2, 9), (8, 12, 25)]
MANY = list(product((2, 3, 5, 8), (1, 2, 5, 8, 13, 32), (3, 32, 37)))
SCHEDULES = [name for name in SCHEDULE_NAMES if name != "forward"]


def main() -> None:
    for devices, micro_batches, samples in MANY if "--many" in sys.argv else FEW:
        for schedule in SCHEDULES:
            pair = Beside(
                perceptron(17),
                devices,
                nn.CrossEntropyLoss(ignore_index=2),
                schedule=schedule,
                micro_batches=micro_batches,
                checkpoint="except_last" if samples % 2 else "never",
            )
            x, y = batch(samples)
            for part in (samples, 1 + samples // 2):
                difference = pair.step(x[:part], y[:part])
                case = devices, micro_batches, samples, part, schedule, difference
                assert difference < TOLERANCE, case
    print("done")


if __name__ == "__main__":
    main()
