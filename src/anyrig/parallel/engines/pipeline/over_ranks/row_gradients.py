"""Adding the gradients of equal stages of several pipelines.

::

    rank 0  stage 0 ┐                  rank 1  stage 1 ┐
    rank 2  stage 0 ┴─ sum of both     rank 3  stage 1 ┴─ sum of both
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .links import Links

# A message of this size takes much longer than its latency.
_MESSAGE_BYTES = 64 * 2**20


def add_over_rows(
    parameters: Sequence[Tensor], gradients: Sequence[Tensor | None], links: Links
) -> list[Tensor | None]:
    """Return the sums of gradients over the ranks with the same parameters.

    A gradient is None if it is None on every rank.
    """
    device = parameters[0].device if parameters else None
    if device is None:
        return []
    has = torch.tensor([float(each is not None) for each in gradients], device=device)
    links.add_up(has, links.equals)
    needed = has.tolist()
    sums: list[Tensor | None] = [None] * len(parameters)
    for numbers in _messages(parameters, needed):
        given = [gradients[number] for number in numbers]
        dense = [
            torch.zeros_like(parameters[number]) if each is None else each
            for number, each in zip(numbers, given, strict=True)
        ]
        message = torch.cat([each.reshape(-1) for each in dense])
        links.add_up(message, links.equals)
        parts = torch.split(message, [each.numel() for each in dense])
        for number, part in zip(numbers, parts, strict=True):
            sums[number] = part.view_as(parameters[number])
    return sums


def _messages(parameters: Sequence[Tensor], needed: Sequence[float]) -> list[list[int]]:
    """Return which gradients are sent together: those of one dtype, up to a size."""
    messages: list[list[int]] = []
    open_: dict[torch.dtype, tuple[list[int], int]] = {}
    for number, (parameter, is_needed) in enumerate(zip(parameters, needed, strict=True)):
        if not is_needed:
            continue
        numbers, size = open_.get(parameter.dtype, ([], 0))
        if not numbers:
            messages.append(numbers)
        numbers.append(number)
        size += parameter.nbytes
        open_[parameter.dtype] = ([], 0) if size >= _MESSAGE_BYTES else (numbers, size)
    return messages
