"""R09: matrix products and convolutions in float32, which leave the matrix units unused.

The saving: the cost model's time for the same work in TF32.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..facts import Finding
from .analysis import Analysis
from .change import Change
from .kernel_works import Work
from .replaced import line_of_saving, replace_works

CODE = "R09"

# `Precision` and `Family` in csrc/time/work.h.
_FLOAT32, _TFLOAT32 = 1, 2
_PRODUCT, _CONVOLUTION = 1, 2


def find(analysis: Analysis) -> Iterator[Finding]:
    """Yield the finding if the steps would be shorter with TF32."""
    seconds = replace_works(analysis, lambda place, work: _in_tfloat32(analysis, place, work))
    saved = analysis.saving(Change(seconds=seconds)) if seconds else 0.0
    if not analysis.matters(saved):
        return
    families = {work["family"] for place in seconds for work in analysis.kernels[place].works}
    remedies = []
    if _PRODUCT in families:
        remedies.append('torch.set_float32_matmul_precision("high")')
    if _CONVOLUTION in families:
        remedies.append("torch.backends.cudnn.allow_tf32 = True")
    yield Finding(
        CODE,
        "Products in float32 leave the matrix units unused",
        line_of_saving(analysis, seconds),
        saved,
        None,
        "The GPU computes float32 without its matrix units. TF32 uses them, with the range of "
        "float32 and 10 bits of mantissa for the operands.",
        f"Add {' and '.join(remedies)} at the start of the program; or use torch.autocast with "
        "bfloat16, which saves more.",
    )


def _in_tfloat32(analysis: Analysis, place: int, work: Work) -> Work | None:
    device = analysis.device(place)
    assert device is not None
    if "tfloat32" not in analysis.gpus[device].rates.flops_per_second:
        return None
    if work["family"] not in (_PRODUCT, _CONVOLUTION) or work["precision"] != _FLOAT32:
        return None
    return {**work, "precision": _TFLOAT32}
