"""The backward passes of shards: FSDP2 reduces their gradients.

FSDP2 gathers a block's parameters before its backward pass, and reduces their gradients after it.
Hooks on the gathered parameters weight the gradients in between.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from ...errors import SpreadError
from ...processes.group.membership import Context
from ..gradient_hooks import hooks_of, use_in_this_pass
from ..marks import tensors_with_gradients
from .passes import BackwardPass, Forward, Passes


class ShardPasses(Passes):
    """Weights the gradients that FSDP2 reduces.

    Args:
        context: the state of the process group.
        model: the number of the spread model.
        module: the module, after `fully_shard`.
    """

    _begins_at_outputs = True  # blocks are gathered before the first gradient

    def __init__(self, context: Context, model: int, module: Any) -> None:
        super().__init__(context, model, type(module).__name__)
        self._module = module
        self._syncs = True  # whether FSDP2 reduces gradients
        self._keeps_gathered = False  # whether parameters stay gathered after a backward pass

    def note(self, forward: Forward, output: Any) -> None:
        """Note a forward, and mark what it returned."""
        self.watch(self._gathered())
        super().note(forward, output)
        # FSDP2 has put hooks on the tensors in containers that it knows.
        state = self._state()
        for each in tensors_with_gradients(output):
            if not any(
                getattr(hook, "__self__", None) is state for hook in hooks_of(each).values()
            ):
                each.register_hook(state._pre_backward)  # type: ignore[no-untyped-call]

    def _state(self) -> Any:
        return self._module._get_fsdp_state()

    def _gathered(self) -> list[Tensor]:
        """Return the parameters that learn and that FSDP2 has gathered at least once."""
        found = []
        for layer in self._module.modules():
            if isinstance(layer, FSDPModule):
                group = layer._get_fsdp_state()._fsdp_param_group
                for held in group.fsdp_params if group is not None else ():
                    parameter = getattr(held, "_unsharded_param", None)
                    if parameter is not None and parameter.requires_grad:
                        found.append(parameter)
        return found

    def _reach_output(self, forward: Forward) -> float:
        if torch.is_grad_enabled() and not self._keeps_gathered:
            # The gradient of a gradient needs the parameters again.
            self._keep_gathered(True)
        return super()._reach_output(forward)

    def reach_parameter(self, index: int, gradient: Tensor | None) -> Tensor | None:
        """Return what replaces the gradient of parameter `index`; None leaves it as it is."""
        if not self._state()._state_ctx.post_backward_final_callback_queued:
            raise SpreadError(
                f"the backward pass of this {self._name} in shards has not come through a tensor "
                "that the module returned, so FSDP2 would not reduce its gradients. Return the "
                "tensors of the loss from the module, in a dict, a tuple or a dataclass"
            )
        if use_in_this_pass([self.parameters[index]]) == "returns":
            raise SpreadError(
                f"torch.autograd.grad() was called with parameters of this {self._name}, which is "
                "in shards, so FSDP2 would not reduce their gradients. Call loss.backward(); "
                "torch.autograd.grad() with respect to an input works"
            )
        return super().reach_parameter(index, gradient)

    def _prepare(self, now: BackwardPass) -> None:
        # FSDP2 reads this setting in the backward pass; `no_sync` is a property of the forward.
        if now.reduces is not self._syncs:
            self._module.set_requires_gradient_sync(now.reduces)
            self._syncs = now.reduces

    def _complete(self, now: BackwardPass) -> None:
        """FSDP2 completes the pass itself."""

    def _follow(self, now: BackwardPass) -> None:
        if self._keeps_gathered and now.arrived:
            self._keep_gathered(False)

    def _keep_gathered(self, keeps: bool) -> None:
        self._keeps_gathered = keeps
        self._module.set_reshard_after_backward(not keeps)
        if not keeps:
            for layer in self._module.modules():
                if isinstance(layer, FSDPModule):
                    layer.reshard()
