"""`ParallelLoss`: a criterion over outputs that stay on their devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from ...devices.place import Place
from ...errors import BatchError
from ...transfer.location import device_of
from ..parts.samples import count_samples
from ..parts.scatter import scatter_samples
from .loss import Criterion, criterion_on, loss_part
from .mistakes import require_criterion
from .whole import combine_losses


class ParallelLoss(nn.Module):
    """A criterion over outputs that stay on their devices.

    ::

        criterion = ParallelLoss(nn.CrossEntropyLoss())
        criterion(model.scattered(x), target).backward()

    Value and gradients are those of the criterion on the joined outputs, for PyTorch's criterions
    and for callables that return a mean over samples, a loss for each sample, or ``(sum, count)``.
    The criterion's tensors are copied to each device at each call; its parameters get gradients.

    Args:
        criterion: called as ``criterion(output, target)`` for each part.
        device: where the loss is returned; None means the first output's device.
        dim: the dimension that has the samples.

    Raises:
        SpreadError: `criterion` is a class, or cannot be called.
    """

    def __init__(self, criterion: Criterion, device: Place | None = None, dim: int = 0) -> None:
        super().__init__()
        require_criterion(criterion)
        self.criterion = criterion
        self.device = device
        self.dim = dim

    def forward(self, outputs: Sequence[Any], target: Any) -> Tensor:
        """Return the loss of the whole batch, from each device's output and the whole target.

        Raises:
            BatchError: there are no outputs, or the target has a different number of samples.
        """
        if not outputs:
            raise BatchError("there are no outputs to compute a loss from; pass one per device")
        counts = [count_samples(output, self.dim) or 0 for output in outputs]
        devices = [device_of(output) for output in outputs]
        targets = scatter_samples(target, devices, counts, self.dim)
        parts = [
            loss_part(criterion_on(self.criterion, device), output, part, count)
            for device, output, part, count in zip(devices, outputs, targets, counts, strict=True)
            if count or not any(counts)
        ]
        return combine_losses(parts, devices[0] if self.device is None else self.device, self.dim)
