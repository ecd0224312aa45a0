"""What every engine answers: the calls of one spread module, and what may be done with it."""

# ruff: noqa: B027 - in most engines there is nothing to refresh, finish or refuse

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch

from ...errors import SpreadError
from ..accumulation import refuse_with_accumulate
from ..layout import Layout
from ..losses.loss import Criterion, explain_loss


class Engine(ABC):
    """Computes the calls of one module, as its layout says.

    `SpreadModule` passes each call of the same name on to its engine. An engine is not a module: it
    holds the module that is spread, and what one call leaves for the next.

    Attributes:
        module: the module that is spread.
        layout: how it is spread, and why.
        loss: the criterion for calls with ``target=``; None without one.
    """

    def __init__(self, module: torch.nn.Module, layout: Layout, loss: Criterion | None) -> None:
        self.module = module
        self.loss = loss
        self.layout = layout if loss is None else replace(layout, loss=explain_loss(loss))

    @abstractmethod
    def forward(self, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return what a call of the spread module returns."""

    def explain(self) -> Layout:
        """Return the layout as it is now."""
        return self.layout

    def scattered(
        self, call: Callable[..., Any], inputs: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[Any]:
        """Return the outputs of ``call(*inputs, **kwargs)`` where they are."""
        raise SpreadError(
            "scattered() returns the outputs of a batch's parts on their devices, but a "
            f"{type(self).__name__} computes this model, and has none. Call the model itself, with "
            "target= if it has a loss"
        )

    def no_sync(self) -> AbstractContextManager[None]:
        """Return a context; every backward pass of this engine adds up gradients in any case."""
        refuse_with_accumulate(self.layout.accumulate, "no_sync() or join()")
        return nullcontext()

    def join(self) -> AbstractContextManager[None]:
        """Return a context for a loop over batches, whose number may differ among ranks."""
        return self.no_sync()

    def register_comm_hook(self, state: object, hook: Callable[..., Any]) -> None:
        """Reduce gradients over ranks by a hook; this engine does not reduce them so."""
        if self.layout.group is not None:
            raise SpreadError(
                "communication hooks are for replicas over ranks, whose gradients DDP reduces, but "
                f"this model is in {self.layout.way}; leave out register_comm_hook()"
            )

    def refresh(self) -> None:
        """Copy every parameter and buffer again in the next call, if this engine has copies."""

    def method(self, bound: Callable[..., Any], model: torch.nn.Module) -> Callable[..., Any]:
        """Return what a caller gets as a method of the module's class; `model` is spread."""
        return bound

    def clip_grad_norm_(
        self, max_norm: float, norm_type: float, error_if_nonfinite: bool
    ) -> torch.Tensor:
        """Clip the norm of all gradients, and return it."""
        own = getattr(self.module, "clip_grad_norm_", None)
        if own is None:
            own = functools.partial(torch.nn.utils.clip_grad_norm_, self.module.parameters())
        total: torch.Tensor = own(max_norm, norm_type, error_if_nonfinite)
        return total

    def finish_state(self) -> None:
        """End what still changes the module's state, before it is read."""

    def fit_state(self, state: Mapping[str, Any], assign: bool) -> Mapping[str, Any]:
        """Return a state dict that the module here can load; raise SpreadError if none can be."""
        return state

    def refuse_pickle(self) -> None:
        """Raise ShardSaveError if this process has only a part of the model."""

    def refuse_copy(self) -> None:
        """Raise SpreadError if a copy of the model could not compute."""
