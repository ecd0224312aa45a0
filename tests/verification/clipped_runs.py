"""Runs whose ranks change their own gradients before they are reduced, or after.

Each function is one rank's program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from anyrig import Rig

STEPS = 2
SAMPLES, FEATURES = 24, 6
MOST = 0.25  # less than the norm of the gradient on any rank

Change = Callable[[list[Tensor]], object]


def clip(parameters: Iterable[Tensor]) -> None:
    nn.utils.clip_grad_norm_(parameters, MOST)


def average(parameters: list[Tensor]) -> None:
    for one in parameters:
        dist.all_reduce(one.grad)
        one.grad /= dist.get_world_size()


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, 3))


def train(
    model: nn.Module, *changes: Change, parts: int = 1, more: Callable[[], Tensor] | None = None
) -> None:
    """Train with a loss that has `parts` micro-batches, and change the gradients of each step.

    A wrapped model reduces the gradients of the last micro-batch, unless the changes do.
    """
    ranks = dist.get_world_size()
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(STEPS * SAMPLES, FEATURES, generator=generator)
    data = TensorDataset(inputs, torch.randn(STEPS * SAMPLES, 3, generator=generator))
    sampler = DistributedSampler(data, shuffle=False)
    loader = DataLoader(data, SAMPLES // ranks // parts, sampler=sampler)
    extra = None if more is None else more()
    parameters = [*model.parameters(), *([] if extra is None else [extra])]
    optimizer = torch.optim.SGD(parameters, 0.1)
    for number, (x, y) in enumerate(loader, 1):
        is_last = number % parts == 0
        is_wrapped = isinstance(model, DistributedDataParallel)
        waits = is_wrapped and (average in changes or not is_last)
        with model.no_sync() if waits else nullcontext():
            output = model(x) if extra is None else model(x * extra)
            (nn.functional.mse_loss(output, y) / parts).backward()
        if is_last:
            for change in changes:
                change(parameters)
            optimizer.step()
            optimizer.zero_grad()


def clips_before_the_reduction(_: Rig) -> None:
    train(net(), clip, average)


def clips_micro_batches_before_the_reduction(_: Rig) -> None:
    train(net(), clip, average, parts=2)


def clips_within_no_sync(_: Rig) -> None:
    train(DistributedDataParallel(net()), clip, average)


def clips_micro_batches_within_no_sync(_: Rig) -> None:
    train(DistributedDataParallel(net()), clip, average, parts=2)


def clips_on_one_rank(_: Rig) -> None:
    def clip_on_rank_1(parameters: list[Tensor]) -> None:
        if dist.get_rank() == 1:
            clip(parameters)

    train(net(), clip_on_rank_1, average)


def divides_by_its_own_norm(_: Rig) -> None:
    def normalise(parameters: list[Tensor]) -> None:
        norm = nn.utils.get_total_norm(one.grad for one in parameters)
        for one in parameters:
            one.grad /= norm

    train(net(), normalise, average, parts=2)


def clips_after_the_reduction(_: Rig) -> None:
    train(net(), average, clip, parts=2)


def clips_after_a_wrapper_reduced(_: Rig) -> None:
    train(DistributedDataParallel(net()), clip, parts=2)


def clips_far_above_every_norm(_: Rig) -> None:
    def clip_nothing(parameters: list[Tensor]) -> None:
        nn.utils.clip_grad_norm_(parameters, 1e6)

    train(net(), clip_nothing, average)


def clips_values(_: Rig) -> None:
    def clip_values(parameters: list[Tensor]) -> None:
        nn.utils.clip_grad_value_(parameters, 0.01)

    train(net(), clip_values, average)


def clips_and_never_reduces(_: Rig) -> None:
    train(net(), clip)


def reduces_and_then_clips_values_on_one_rank(_: Rig) -> None:
    def clip_values(parameters: list[Tensor]) -> None:
        if dist.get_rank():
            nn.utils.clip_grad_value_(parameters, 0.01)

    train(net(), average, clip_values)


def reduces_and_then_clips_each_tensor_on_one_rank(_: Rig) -> None:
    def clip_each(parameters: list[Tensor]) -> None:
        for one in parameters if dist.get_rank() else []:
            clip([one])

    train(DistributedDataParallel(net()), clip_each)


def takes_the_first_ranks_gradients(_: Rig) -> None:
    def send(parameters: list[Tensor]) -> None:
        for one in parameters:
            dist.broadcast(one.grad, 0)

    train(net(), send)


def trains_a_parameter_of_no_module(_: Rig) -> None:
    train(DistributedDataParallel(net()), more=lambda: nn.Parameter(torch.ones(FEATURES)))


def trains_a_parameter_of_no_module_unwrapped(_: Rig) -> None:
    train(net(), more=lambda: nn.Parameter(torch.ones(FEATURES)))


SCALED = "    each rank multiplied its gradients by a number of its own before they were reduced: "
UNKNOWN = "probably: the gradient differs, and by no constant factor"
OF_NO_MODULE = (
    f"    change: no module has parameter 4 of shape ({FEATURES},), and DistributedDataParallel "
    "reduces only the parameters of its module: create such parameters in the model's __init__, "
    "as self.name = nn.Parameter(...); "
)

# The exit status, and a part of the text.
EXPECTED = {
    "clips_before_the_reduction": (1, SCALED + "rank 0 by 0."),
    "clips_micro_batches_before_the_reduction": (1, SCALED + "rank 0 by 0."),
    "clips_within_no_sync": (1, SCALED + "rank 0 by 0."),
    "clips_micro_batches_within_no_sync": (1, SCALED + "rank 0 by 0."),
    "clips_on_one_rank": (1, SCALED + "rank 0 by 1, rank 1 by 0."),
    "divides_by_its_own_norm": (1, SCALED + "rank 0 by "),
    "clips_after_the_reduction": (0, "the same on the rig and on one device"),
    "clips_after_a_wrapper_reduced": (0, "the same on the rig and on one device"),
    "clips_far_above_every_norm": (0, "the same on the rig and on one device"),
    "clips_values": (1, UNKNOWN),
    "clips_and_never_reduces": (
        1,
        "    the gradients were never reduced: each rank has scaled those of its own samples",
    ),
    "reduces_and_then_clips_each_tensor_on_one_rank": (
        1,
        "    ranks 0 and 1 have different gradients",
    ),
    "reduces_and_then_clips_values_on_one_rank": (1, "    ranks 0 and 1 have different gradients"),
    "takes_the_first_ranks_gradients": (1, UNKNOWN),
    "trains_a_parameter_of_no_module": (
        1,
        OF_NO_MODULE + "or all_reduce these gradients with the mean",
    ),
    "trains_a_parameter_of_no_module_unwrapped": (
        1,
        OF_NO_MODULE + "have these parameters in the module that DistributedDataParallel wraps",
    ),
}
