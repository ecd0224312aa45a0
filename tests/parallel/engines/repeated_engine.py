"""A custom engine, as docs/architecture.md describes it: the example of a new way to spread.

All devices compute the whole batch, and their results are compared, which exposes a device that
computes wrongly. Gradients are those of the first device.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import anyrig
from anyrig.errors import SpreadError
from anyrig.parallel import Replicas, parallel_apply, replicate
from anyrig.parallel.engines.engine import Engine
from anyrig.parallel.layout import make_layout
from anyrig.parallel.losses.loss import Criterion, loss_for_target
from anyrig.parallel.named_arguments import take_target
from anyrig.parallel.spread_module import SpreadModule
from anyrig.transfer import move
from anyrig.transfer.tree import list_leaves


class RepeatedEngine(Engine):
    """Computes each batch as a whole on every device; raises SpreadError if the results differ."""

    def forward(self, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the first device's output, or its loss."""
        loss = loss_for_target(self.module, self.loss, kwargs)
        target = None if loss is None else take_target(self.module, inputs, kwargs)
        devices = self.layout.devices
        given = [move((inputs, kwargs), device) for device in devices]
        outputs = parallel_apply(
            replicate(self.module, devices),
            [args for args, _ in given],
            [named for _, named in given],
            devices,
        )
        for device, output in zip(devices[1:], outputs[1:], strict=True):
            self._compare(outputs[0], output, device)
        return outputs[0] if loss is None else loss(outputs[0], move(target, self.layout.lead))

    def _compare(self, first: Any, other: Any, device: torch.device) -> None:
        pairs = zip(list_leaves(first), list_leaves(other), strict=True)
        for (one, _), (another, _) in pairs:
            if isinstance(one, Tensor) and not torch.allclose(one, another.to(one.device)):
                apart = float((one - another.to(one.device)).abs().max())
                raise SpreadError(
                    f"{device} computes another output than {self.layout.lead}: they differ by up "
                    f"to {apart:.3g}. Run anyrig doctor on this machine"
                )


def spread_repeated(
    module: torch.nn.Module, rig: anyrig.Rig, loss: Criterion | None = None
) -> SpreadModule:
    """Return a module whose every batch is computed on all devices of a rig."""
    layout = make_layout(rig, Replicas(), None, dim=0)
    return SpreadModule(RepeatedEngine(module.to(layout.lead), layout, loss))
