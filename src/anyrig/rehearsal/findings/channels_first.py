"""R10: convolutions on matrix units whose tensors have the channels first and are transformed.

The saving: the cost model's time for the same convolutions with the channels last. Steps with a
group normalization have no finding: it is not known which of their convolutions would save.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..facts import Finding
from .analysis import Analysis
from .change import Change
from .kernel_works import Work
from .replaced import line_of_saving, replace_works

CODE = "R10"

_CONVOLUTION = 2  # `Family` in csrc/time/work.h
# Its results have the channels first on a GPU, whatever it is given, so that the convolutions
# behind it are transformed all the same (aten/src/ATen/native/group_norm.cpp).
_GROUP_NORM = "native_group_norm"


def find(analysis: Analysis) -> Iterator[Finding]:
    """Yield the finding if the steps would be shorter with the channels last."""
    if any(_GROUP_NORM in analysis.name(place) for place in analysis.kernels):
        return
    seconds = replace_works(analysis, lambda place, work: _with_channels_last(work))
    saved = analysis.saving(Change(seconds=seconds)) if seconds else 0.0
    if not analysis.matters(saved):
        return
    yield Finding(
        CODE,
        "Convolutions have the channels first",
        line_of_saving(analysis, seconds),
        saved,
        None,
        "The matrix units take tensors with the channels last. cuDNN transforms the others before "
        "and after each convolution.",
        "Call model.to(memory_format=torch.channels_last), and the same for the batches.",
    )


def _with_channels_last(work: Work) -> Work | None:
    if work["family"] != _CONVOLUTION or work["channels_last"]:
        return None
    return {**work, "channels_last": 1.0}
