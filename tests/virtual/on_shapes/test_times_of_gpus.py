"""The times of some convolutions on several GPUs, which only a new fit may change.

The errors that docs/virtual_inside.md states are those of these coefficients: a change of the cost
model or of a coefficient that is not judged again by the measurements shows here.
"""

from __future__ import annotations

import pytest
from card_rates import FAMILIES, PRECISIONS, core

from anyrig.hardware import spec_of_key
from anyrig.virtual.gpu_facts import gpu_facts_of

POINTS = 32 * 56 * 56
# A layer of ResNet-50: 32 images of 56 x 56 points, 64 channels in and out, a kernel of 3 x 3.
LAYER = {
    "batch": 32, "in_channels": 64, "out_channels": 64, "kernel_h": 3, "kernel_w": 3,
    "in_h": 56, "in_w": 56, "out_h": 56, "out_w": 56, "flops": 2 * POINTS * 64 * 64 * 9,
    "bytes_read": 4 * POINTS * 64, "bytes_written": 4 * POINTS * 64,
    "footprint_bytes": 8 * POINTS * 64,
}  # fmt: skip
POINTWISE = {
    **LAYER, "kernel_h": 1, "kernel_w": 1, "out_channels": 256, "flops": 2 * POINTS * 64 * 256,
}  # fmt: skip
DEFAULTS = {"precision": PRECISIONS.index("float32"), "element_bytes": 4, "groups": 1}


def groups_of(width: int, channels: int) -> dict[str, float]:
    flops = 2 * POINTS * channels * width * 9
    sizes = {"in_channels": channels, "out_channels": channels}
    return {**sizes, "groups": channels / width, "flops": flops}


HALF = {"precision": PRECISIONS.index("float16"), "element_bytes": 2}
WORKS = {
    "forward": LAYER,
    "gradient by input": {**LAYER, "pass": 1},
    "gradient by weight": {**LAYER, "pass": 2},
    "pointwise": POINTWISE,
    "in halves": {**LAYER, **HALF, "channels_last": 1},
    "in halves, NCHW": {**LAYER, **HALF},
    "in groups": {**LAYER, "groups": 4, "flops": LAYER["flops"] / 4},
    "depthwise": {**LAYER, "groups": 64, "flops": LAYER["flops"] / 64},
    # Transposed, as tensors of few channels are; tensors of 128 channels in such groups are not.
    "halves in groups": {**LAYER, **HALF, "channels_last": 1, **groups_of(16, 64)},
    "halves in more groups": {**LAYER, **HALF, "channels_last": 1, **groups_of(16, 128)},
}

# Microseconds, in the order of `WORKS`.
TIMES = {
    "T4": [1227, 1227, 1480, 765.9, 286, 710.2, 2192, 644.3, 8394, 684.7],
    "V100-32GB": [352.2, 352.2, 606.8, 309.9, 147.1, 298, 582.6, 223.2, 3043, 356.3],
    "A100-80GB": [342.5, 342.5, 707.3, 265.4, 68.97, 135.5, 461.8, 84.58, 1357, 183.6],
    "RTX-3090": [203.4, 203.4, 627.3, 167.2, 131, 276.1, 271, 224, 2893, 277.7],
    "L4": [591.5, 591.5, 1853, 832.9, 334.8, 787.3, 874.7, 532.3, 8986, 784.1],
    "H100-SXM": [113.3, 113.3, 272.1, 86.86, 15.69, 56.21, 148.9, 48.8, 794.1, 48.78],
}


@pytest.mark.parametrize("key", TIMES)
def test_times_change_with_a_fit_only(key: str) -> None:
    names = {name for work in WORKS.values() for name in work}
    columns = {
        name: [float(work.get(name, DEFAULTS.get(name, 0))) for work in WORKS.values()]
        for name in sorted(names)
    }
    columns["family"] = [float(FAMILIES.index("convolution"))] * len(WORKS)
    found = core.predict_seconds(gpu_facts_of(core, spec_of_key(key)), core.Works(columns))
    assert [1e6 * seconds for seconds in found] == pytest.approx(TIMES[key], rel=2e-3)
