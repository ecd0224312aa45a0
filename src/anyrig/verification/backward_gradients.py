"""The gradients as the last backward pass left them, before the program changed or reduced them."""

from __future__ import annotations

from torch import Tensor
from torch.optim import Optimizer

from ..observe.census import find_instances, parameters_of
from .piece import Piece, piece_of


class BackwardGradients:
    """Keeps the gradients after the last backward pass, for the parameters of all optimizers."""

    def __init__(self) -> None:
        self._optimizers: list[Optimizer] | None = None
        # By id. The parameters are kept too, so that no other object gets the id of one of them.
        self._kept: dict[int, tuple[Tensor, Piece]] = {}

    def keep(self) -> None:
        """Keep the gradients of now. Call this after each backward pass."""
        if self._optimizers is None:
            self._optimizers = find_instances(Optimizer)[Optimizer]
        parameters = [one for optimizer in self._optimizers for one in parameters_of(optimizer)]
        self._kept = {
            id(one): (one, piece)
            for one in parameters
            if one.grad is not None and (piece := piece_of(one.grad)) is not None
        }

    def changed(self, parameter: Tensor, gradient: Piece) -> Piece | None:
        """Return the kept gradient of a parameter if `gradient` differs from it, else None.

        Returns None, too, if `gradient` is of a part of the parameter.
        """
        _, kept = self._kept.get(id(parameter), (None, None))
        if kept is None or kept.shape != gradient.shape or kept.values.equal(gradient.values):
            return None
        return kept

    def end_step(self) -> None:
        """Look for new optimizers after the next backward pass.

        Keeps the gradients: another optimizer may step after the same backward pass.
        """
        self._optimizers = None
