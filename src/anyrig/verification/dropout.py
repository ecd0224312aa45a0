"""Turning dropout off, so that its masks do not make two runs differ."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..observe.hooks import Replacements

_FUNCTIONS = (
    "dropout",
    "dropout1d",
    "dropout2d",
    "dropout3d",
    "alpha_dropout",
    "feature_alpha_dropout",
)
_ATTENTION = "scaled_dot_product_attention"

# The position of `dropout_p` in scaled_dot_product_attention(query, key, value, attn_mask,
# dropout_p, is_causal), counted after `query`.
_PLACE_OF_P = 3


class DropoutOff:
    """Makes dropout return its input, and notes the random state from which it would have drawn."""

    def __init__(self) -> None:
        self.states: list[str] = []
        self.was_called = False

    def start(self, replacements: Replacements) -> None:
        """Turn dropout off in this process, until the replacements are undone."""
        for name in _FUNCTIONS:
            replacements.around(nn.functional, name, self._without_dropout)
        replacements.around(nn.functional, _ATTENTION, self._attend_without_dropout)

    def take_states(self) -> tuple[str, ...]:
        """Return the random states noted since the last call."""
        taken = tuple(self.states)
        self.states.clear()
        return taken

    def _without_dropout(
        self,
        original: Callable[..., Tensor],
        input: Tensor,  # noqa: A002 - the name of PyTorch's parameter
        p: float = 0.5,
        training: bool = True,
        inplace: bool = False,
    ) -> Tensor:
        if training and p > 0 and torch.is_grad_enabled():
            self._note(input)
            return input
        return original(input, p, training, inplace)

    def _attend_without_dropout(
        self, attend: Callable[..., Any], query: Tensor, *given: Any, **kwargs: Any
    ) -> Any:
        args = given
        if len(args) > _PLACE_OF_P:
            args, kwargs = args[:_PLACE_OF_P], {"dropout_p": args[_PLACE_OF_P], **kwargs}
            kwargs.update(zip(("is_causal", "scale"), given[_PLACE_OF_P + 1 :], strict=False))
        if kwargs.get("dropout_p", 0.0) > 0:
            self._note(query)
            kwargs["dropout_p"] = 0.0
        return attend(query, *args, **kwargs)

    def _note(self, tensor: Tensor) -> None:
        self.was_called = True
        state = f"{random_state(tensor.device)} {tuple(tensor.shape[1:])}"
        self.states.append(state)


def random_state(device: torch.device) -> str:
    """Return a hash of the state of the random number generator of a device."""
    state = torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()
    return hashlib.blake2b(state.numpy().tobytes(), digest_size=8).hexdigest()
