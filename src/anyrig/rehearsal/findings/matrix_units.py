"""R09: matrix products and convolutions in float32, which leave the matrix units unused.

The saving: the cost model's time for the same work in TF32. Where the matrix units take neither
TF32 nor bfloat16, it is the time in float16, and an estimate: autocast also adds casts, and changes
the dtype of other kernels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from ...virtual.gpu_facts import on_matrix_units
from ..facts import Finding
from .analysis import Analysis
from .change import Change
from .kernel_works import Work
from .replaced import line_of_saving, replace_works

CODE = "R09"

# `Precision` and `Family` in csrc/time/work.h.
_FLOAT32, _TFLOAT32, _BFLOAT16, _FLOAT16 = 1, 2, 3, 4
_PRODUCT, _CONVOLUTION, _ATTENTION = 1, 2, 3
_BYTES = ("bytes_read", "bytes_written", "footprint_bytes")


def find(analysis: Analysis) -> Iterator[Finding]:
    """Yield a finding if the steps would be shorter with TF32, and another one for float16."""
    for change, describe in ((_in_tfloat32, _describe_tfloat32), (_in_float16, _describe_float16)):
        seconds = replace_works(analysis, partial(change, analysis))
        saved = analysis.saving(Change(seconds=seconds)) if seconds else 0.0
        if analysis.matters(saved):
            text, remedy = describe(analysis, seconds)
            yield Finding(
                CODE,
                "Products in float32 leave the matrix units unused",
                line_of_saving(analysis, seconds),
                saved,
                None,
                text,
                remedy,
                is_estimate=change is _in_float16,
            )


def _describe_tfloat32(analysis: Analysis, seconds: Mapping[int, float]) -> tuple[str, str]:
    families = {work["family"] for place in seconds for work in analysis.kernels[place].works}
    remedies = []
    if _PRODUCT in families:
        remedies.append('torch.set_float32_matmul_precision("high")')
    if _CONVOLUTION in families:
        remedies.append("torch.backends.cudnn.allow_tf32 = True")
    return (
        "The GPU computes float32 without its matrix units. TF32 uses them, with the range of "
        "float32 and 10 bits of mantissa for the operands.",
        f"Add {' and '.join(remedies)} at the start of the program; or use torch.autocast with "
        "bfloat16, which saves more.",
    )


def _describe_float16(analysis: Analysis, seconds: Mapping[int, float]) -> tuple[str, str]:
    return (
        "The GPU computes float32 without its matrix units. They compute in float16, but not in "
        "TF32 or bfloat16. The saving is an estimate: it includes products, convolutions and fused "
        "attention, but not the casts that autocast adds, nor what it saves in other kernels.",
        'Call the model and its loss under torch.autocast("cuda", torch.float16). In training, '
        "scale the loss, because small gradients become 0 in float16: "
        'scaler = torch.amp.GradScaler("cuda"), and in each step scaler.scale(loss).backward(), '
        "scaler.step(optimizer), scaler.update().",
    )


def _in_tfloat32(analysis: Analysis, place: int, work: Work) -> Work | None:
    device = analysis.device(place)
    assert device is not None
    if "tfloat32" not in analysis.gpus[device].rates.flops_per_second:
        return None
    if work["family"] not in (_PRODUCT, _CONVOLUTION) or work["precision"] != _FLOAT32:
        return None
    return {**work, "precision": _TFLOAT32}


def _in_float16(analysis: Analysis, place: int, work: Work) -> Work | None:
    device = analysis.device(place)
    assert device is not None
    has_units = on_matrix_units(analysis.gpus[device].rates)
    if not has_units[_FLOAT16] or has_units[_TFLOAT32] or has_units[_BFLOAT16]:
        return None
    # cuDNN is allowed to use TF32 by default. This GPU computes float32 all the same.
    if work["family"] not in (_PRODUCT, _CONVOLUTION, _ATTENTION) or work["precision"] not in (
        _FLOAT32,
        _TFLOAT32,
    ):
        return None
    halved = {name: work[name] / 2 for name in _BYTES}
    return {**work, **halved, "precision": _FLOAT16, "element_bytes": 2.0}
