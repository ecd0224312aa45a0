"""Giving equal stages of several pipelines the same buffers.

::

    rank 0  stage 0  8 samples  ─ running statistics ─┐     rank 1  stage 1  ─┐
    rank 2  stage 0  7 samples  ◀─────────────────────┘     rank 3  stage 1  ◀┘

As with replicas over ranks, the buffers are those of the first pipeline that had samples.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .links import Links


def copy_over_rows(buffers: Sequence[Tensor], source: int, links: Links) -> None:
    """Give buffers the values of pipeline `source`; all ranks with equal stages must call this.

    A buffer that has these values already is not written, as a graph may have saved it.
    """
    by_dtype: dict[torch.dtype, list[Tensor]] = {}
    for buffer in buffers:
        if buffer.numel():
            by_dtype.setdefault(buffer.dtype, []).append(buffer)
    with torch.no_grad():
        for own in by_dtype.values():
            message = torch.cat([each.reshape(-1) for each in own])
            links.broadcast(message, source)
            parts = torch.split(message, [each.numel() for each in own])
            for buffer, part in zip(own, parts, strict=True):
                there = part.view_as(buffer)
                if not torch.equal(buffer, there):
                    buffer.copy_(there)
