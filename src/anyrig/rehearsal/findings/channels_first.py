"""R10: convolutions on matrix units whose tensors have the channels first and are transformed.

The saving: the cost model's time for the same convolutions with the channels last. Until PyTorch
2.15, steps with a group normalization have no finding: it is not known which of their convolutions
would save.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from ..facts import Finding
from .analysis import Analysis
from .change import Change
from .kernel_works import Work
from .replaced import line_of_saving, replace_works

CODE = "R10"

_CONVOLUTION = 2  # `Family` in csrc/time/work.h
_GROUP_NORM = "native_group_norm"


def find(analysis: Analysis) -> Iterator[Finding]:
    """Yield the finding if the steps would be shorter with the channels last."""
    has_group_norm = any(_GROUP_NORM in analysis.name(place) for place in analysis.kernels)
    if has_group_norm and not group_norm_keeps_channels_last():
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


def group_norm_keeps_channels_last() -> bool:
    """Return whether this PyTorch's group normalization keeps the channels last on a GPU.

    Until 2.15, its results have the channels first, whatever it is given, so that the convolutions
    behind it are transformed all the same (aten/src/ATen/native/group_norm.cpp; pytorch#191945).
    """
    last = torch.channels_last
    samples = torch.empty(1, 2, 2, 2, device="meta", memory_format=last)
    return nn.functional.group_norm(samples, 1).is_contiguous(memory_format=last)


def _with_channels_last(work: Work) -> Work | None:
    if work["family"] != _CONVOLUTION or work["channels_last"]:
        return None
    return {**work, "channels_last": 1.0}
