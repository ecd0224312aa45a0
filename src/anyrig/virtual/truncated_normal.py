"""`torch.nn.init.trunc_normal_` in shape-only mode, in which the drawn numbers are unknown.

PyTorch 2.13 draws again until every number is within the bounds, and asks the GPU after each round
whether a number is out of bounds. With more than a few dozen numbers, the first round is almost
never the last. Shape-only mode therefore takes two rounds, which allocate the same bytes as more
rounds do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ..errors import ValueNeededError


class _TwoRounds(TorchFunctionMode):
    """Answers yes when first asked whether a number is out of bounds, and no afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self._asked = 0

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        arguments: Sequence[Any] = (),
        options: Mapping[str, Any] | None = None,
    ) -> Any:
        if function is not torch.Tensor.__bool__ or not arguments[0].is_cuda:
            return function(*arguments, **(options or {}))
        with suppress(ValueNeededError):
            function(*arguments)  # the host waits for the GPU, whatever the answer
        self._asked += 1
        return self._asked == 1


def patch() -> None:
    """Make `trunc_normal_` end after two rounds on a virtual GPU."""
    init: Any = torch.nn.init
    # The private function, since libraries keep references to the public one, which calls it.
    original = init._no_grad_trunc_normal_

    def two_rounds(tensor: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
        with _TwoRounds():
            # Not the parameter, as the numbers of the host decide how many more it draws.
            original(tensor.detach(), *arguments, **options)
        return tensor

    init._no_grad_trunc_normal_ = two_rounds
