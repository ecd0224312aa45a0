"""Spread a module over the devices of a rig, or over the ranks of a process group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..devices.place import Place, Places, as_rig
from ..private_names import refuse_missing
from ..processes.group.membership import join_group
from .asked import Asked
from .former_options import plan_from
from .losses.loss import Criterion
from .losses.mistakes import require_criterion
from .plan_text import plan_of_environment, precision_of_environment
from .plans import Plan, check_example, require_plan
from .spread_in_process import spread_in_process
from .spread_module import SpreadModule, require_plain_module
from .spread_over_group import spread_over_group

if TYPE_CHECKING:
    from .engines.pipeline.split.arguments import Call


def spread(
    module: torch.nn.Module,
    rig: Places | None = None,
    plan: Plan | None = None,
    *,
    loss: Criterion | None = None,
    dim: int = 0,
    output_device: Place | None = None,
    precision: str | torch.dtype | None = None,
    accumulate: bool = False,
    example: Call | None = None,
    **former: Any,
) -> SpreadModule:
    """Return `module` spread over the devices of a rig; call it as you would call the module.

    ::

        model = anyrig.spread(Net(), loss=nn.CrossEntropyLoss())
        for x, y in loader:
            loss = model(x, target=y)       # of the whole batch; model(x) returns the outputs
            loss.backward()                 # on all devices
            optimizer.step(); optimizer.zero_grad()

    The lead (the first device) computes with the module itself; a module on the CPU is moved there
    in place, as `torch.nn.Module.to` does. On a rig of one device the module is called unchanged.
    In a rank of `anyrig run` or torchrun, or in any process group, the module is spread over the
    group: every rank calls `spread`, uses one device, and calls the model with its own samples.
    `explain` returns how a model was spread, and why.

    Args:
        module: any module; optimize its own parameters.
        rig: by default every working accelerator, beginning with the module's own; in a rank, the
            rank's device.
        plan: `Replicas`, `Shards`, `Pipeline` or `Exact`. By default the plan that the environment
            variable ``ANYRIG_PLAN`` names, as in ``Pipeline(micro_batches=8)``. Without it,
            replicas, if the module, its gradients and Adam's state fit the smallest device; else
            shards in a group, and a pipeline in one process.
        loss: a criterion ``loss(output, target)``, computed on the device of each part's output
            when the model is called with ``target=``, so that outputs are not gathered. See
            `ParallelLoss` for the criterions that are combined exactly.
        dim: the dimension along which batches are divided.
        output_device: where outputs are gathered, in one process; by default the lead, and in a
            pipeline the device of the last stage.
        precision: ``"bfloat16"`` or ``"float16"``: compute forward and `loss` under autocast in
            this dtype on every device and rank. Parameters, gradients and their reduction keep
            their dtype. With float16, scale the loss with a `torch.amp.GradScaler`. By default
            what the environment variable ``ANYRIG_PRECISION`` names; without it, no autocast.
        accumulate: make several backward passes before a step give the gradient of the mean over
            all their samples (or over what `loss` divides by). Do not divide the loss yourself.
        example: (args, kwargs) of a call, for any plan that needs one, also if ``ANYRIG_PLAN``
            names it: the `example` of a `Pipeline` that has none. Other plans ignore it.
        former: `how=` and the other options that preceded plans; they are converted to a plan.

    Raises:
        SpreadError: the module cannot be spread as planned, is spread already, or is on another
            device; a rank was given several devices; `loss` is a class; a device does not
            compute in `precision`; or ``ANYRIG_PLAN`` is not the text of a plan, or
            ``ANYRIG_PRECISION`` not a precision.
        SharesError: the plan's shares do not fit these devices.
        LaunchError: the environment describes a process group incompletely, or its ranks did not
            meet.
    """
    refuse_missing("parallel")
    require_plain_module(module)
    if loss is not None:
        require_criterion(loss)
    check_example(example)
    plan = plan_from(plan, former)
    require_plan(plan)
    why = ""
    if plan is None:
        plan, why = plan_of_environment()
    if precision is None:
        precision, more = precision_of_environment()
        why += more
    asked = Asked(loss, dim, output_device, precision, accumulate, why, example)
    if plan is not None:
        # Before the group: a call that is refused must not change the rank's device.
        plan.refuse(asked)
    rig = None if rig is None else as_rig(rig)
    group = join_group(rig if rig is not None and len(rig) == 1 else None)
    if group is None:
        return spread_in_process(module, rig, plan, asked)
    return spread_over_group(module, rig, plan, asked, group)
