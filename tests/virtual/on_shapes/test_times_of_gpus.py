"""The times of some convolutions on several GPUs, which only a new fit may change.

The errors that docs/virtual_inside.md states are those of these coefficients: a change of the cost
model or of a coefficient that is not judged again by the measurements shows here.
"""

from __future__ import annotations

import pytest
from gpu_rates import FAMILIES, PRECISIONS, core

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
    "T4": [1227, 1227, 1480, 765.9, 357.9, 749.8, 3789, 675.8, 8469, 828.4],
    "V100-32GB": [352.3, 352.3, 607.6, 306.5, 178.2, 317.5, 997.1, 234, 3075, 419.6],
    "A100-80GB": [339.5, 339.5, 702, 265.4, 67.5, 129, 795.7, 88.63, 1357, 184.5],
    "RTX-3090": [259.1, 259.1, 758.8, 212.2, 112.7, 266.4, 565.4, 235, 96.43, 181.5],
    "L4": [659.5, 659.5, 1921, 557, 352.4, 757.5, 1325, 558.3, 333.8, 358.6],
    "H100-SXM": [195, 195, 284.1, 112.1, 19.89, 64.67, 182.7, 40.57, 71.91, 33.18],
    "RTX-4090": [126.8, 126.8, 399.9, 104.6, 68.4, 189, 264.8, 138.6, 44.8, 74.26],
    "RTX-5090": [94.6, 94.6, 302.7, 73.47, 51.29, 128.2, 199.7, 62.52, 31.5, 56.38],
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
