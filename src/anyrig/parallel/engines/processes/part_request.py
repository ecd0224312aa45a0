"""What this process asks of a worker, and what a worker answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ...mapped_memory import Block
from .place import Place
from .sent_errors import SentError
from .settings import Settings


@dataclass(frozen=True)
class Started:
    """The first message of a worker: its process."""

    process: int


@dataclass(frozen=True)
class SearchPath:
    """Where modules are imported from, for all that follows; there is no answer."""

    folders: Sequence[str]


@dataclass(frozen=True)
class Definition:
    """A module and a loss, for a worker that has none, or another version of them."""

    text: bytes  # pickled without tensors
    places: Sequence[Place]
    block: Block
    row: Block  # for the gradients that the worker computes
    facts: Mapping[str, Any]  # of imported code; see `watched_code`


@dataclass(frozen=True)
class ForwardRequest:
    """Compute the forward of a part, and the loss if `has_loss`.

    Attributes:
        model: the number of the model.
        call: the number of the call, by which a backward pass names it.
        definition: the module, if it has changed.
        learns: for each parameter, 1 if it requires a gradient.
        refreshed: the numbers of the tensors whose copies are out of date.
        given: the arguments of the part, ``(args, kwargs)``.
        samples: how many samples the part has, and `total` how many the batch has.
        has_loss: whether the arguments have a target for the loss.
        is_first: whether to check what is computed.
        forgotten: models and calls that are no longer needed.
    """

    model: int
    call: int
    definition: Definition | None
    learns: bytes
    refreshed: Sequence[int]
    given: tuple[Any, Any]
    samples: int
    total: int
    has_loss: bool
    is_first: bool
    settings: Settings
    forgotten: Sequence[tuple[str, int]]


@dataclass(frozen=True)
class BackwardRequest:
    """Compute the gradients of a call's results, given those of the loss with respect to them."""

    call: int
    upstream: Sequence[Tensor | None]
    keeps: bool  # whether another backward pass may follow


@dataclass(frozen=True)
class TargetCount:
    """What a mean over targets divides by in one part; the answer is a `TargetTotal`."""

    own: Tensor


@dataclass(frozen=True)
class TargetTotal:
    """The same of all parts; None if the parts are given up."""

    total: Tensor | None


@dataclass(frozen=True)
class Computed:
    """The result of a part, and the buffers that the forward wrote, of a first call."""

    result: Any
    written: Mapping[str, Tensor]


@dataclass(frozen=True)
class Differentiated:
    """The gradients are in the worker's row: `present` has 1 for each parameter with a gradient."""

    present: bytes
    of_inputs: Sequence[Tensor | None]


@dataclass(frozen=True)
class Failed:
    """A worker's exception, or None if it was stopped."""

    error: SentError | None
