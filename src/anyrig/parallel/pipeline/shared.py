"""Parameters that several stages of a chain use, such as the tied weights of an embedding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch import nn

from .chain import Chain


@dataclass(frozen=True)
class SharedParameter:
    """One parameter of several stages: their gradients for it must be added.

    Attributes:
        name: in the module, at its first place.
        parameter: the object.
        stages: the indices of the stages that use it, in order.
    """

    name: str
    parameter: nn.Parameter
    stages: tuple[int, ...]


def shared_parameters(chain: Chain, cuts: Sequence[int]) -> list[SharedParameter]:
    """Return the parameters that several stages use, in the order of their first use.

    Args:
        chain: the blocks.
        cuts: the index of the first block of each stage but the first.
    """
    users: dict[int, tuple[str, nn.Parameter, dict[int, None]]] = {}
    bounds = [0, *cuts, len(chain.blocks)]
    for stage, (first, end) in enumerate(pairwise(bounds)):
        for block in chain.blocks[first:end]:
            for name, parameter in block.module.named_parameters():
                users.setdefault(id(parameter), (name, parameter, {}))[2][stage] = None
    return [
        SharedParameter(name, parameter, tuple(stages))
        for name, parameter, stages in users.values()
        if len(stages) > 1
    ]
