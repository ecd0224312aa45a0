"""Modules of many kinds in pipelines: skip connections, tied weights, nested values."""

from __future__ import annotations

import copy
import time
from typing import Any

import pytest
import torch
from beside_one_device import TOLERANCE, difference, rig_of
from divided_models import CASES
from torch import Tensor, nn

import anyrig
from anyrig.parallel.engines.pipeline.stage import tensors_of
from anyrig.transfer.arguments import move_tensors

pytestmark = pytest.mark.gpus(4)


# Modules whose samples are in another dimension.
DIMS = {"lstm_in_sequential": 1}
OTHERS = {
    "AutocastPart": "is not for float64",
    "Buffers": "makes tensors on the CPU",
    "TorchEncoder": "attends to all samples: along both dimensions",
    "RandomOperations": "random numbers",
    "PythonRandom": "random numbers",
    "CountsCalls": "computes with the number of its calls, and each micro-batch is a call",
}


def total(output: Any, target: Any) -> Tensor:
    """Return a loss of all tensors in an output: a sum over samples."""
    terms = [(one.double() ** 2).sum() for one in tensors_of(output) if one.is_floating_point()]
    assert terms
    return torch.stack(terms).sum()


total.reduction = "sum"


def doubled(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, dict):
        return {key: doubled(one) for key, one in value.items()}
    return type(value)(map(doubled, value)) if type(value) in (list, tuple) else value


@pytest.mark.parametrize("schedule", ["gpipe", "zero-bubble"])
@pytest.mark.parametrize("name", sorted(CASES.keys() - OTHERS.keys()))
def test_every_kind(name: str, schedule: str) -> None:
    torch.manual_seed(0)
    module, args, kwargs = CASES[name]()
    module, args, kwargs = module.double().eval(), doubled(args), doubled(kwargs)
    if name == "lstm_in_sequential":
        module.train()  # cuDNN's RNN has gradients only in training
    one = copy.deepcopy(module).to("cuda:0")
    moved_args, moved_kwargs = move_tensors((args, kwargs), torch.device("cuda:0"))
    expected = one(*moved_args, **moved_kwargs)
    model = anyrig.spread(
        module,
        rig_of(3),
        plan=anyrig.Pipeline(schedule=schedule, micro_batches=2, example=(args, kwargs)),
        loss=total,
        dim=DIMS.get(name, 0),
    )
    output = model(*args, **kwargs)
    pairs = zip(tensors_of(expected), tensors_of(output), strict=True)
    assert max(difference(*pair) for pair in pairs) < TOLERANCE
    if any(one.dim() == 0 for one in tensors_of(expected)):
        return  # the output has a mean, which is not a sum over samples
    losses = total(expected, None), model(*args, target=None, **kwargs)
    assert difference(*losses) < TOLERANCE
    if any(parameter.requires_grad for parameter in module.parameters()):
        for loss in losses:
            loss.backward()
    for ours, theirs in zip(module.parameters(), one.parameters(), strict=True):
        assert difference(theirs.grad, ours.grad) < TOLERANCE


class Tied(nn.Module):
    """Shares its embedding with its head, and a buffer between its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))
        self.register_buffer("scale", torch.tensor([0.5]))

    def forward(self, words: Tensor) -> Tensor:
        x = self.embedding(words)
        for layer in self.layers:
            x = torch.tanh(layer(x)) * self.scale + x
        return nn.functional.linear(x, self.embedding.weight).transpose(1, 2)


@pytest.mark.parametrize("checkpoint", ["never", "always"])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zero-bubble"])
def test_tied_weights(schedule: str, checkpoint: str) -> None:
    torch.manual_seed(0)
    module = Tied().double()
    one = copy.deepcopy(module)
    loss = nn.CrossEntropyLoss()
    model = anyrig.spread(
        module, rig_of(4), plan=anyrig.Pipeline(schedule=schedule, checkpoint=checkpoint), loss=loss
    )
    optimizers = [torch.optim.SGD(each.parameters(), 0.1) for each in (one, module)]
    words = torch.randint(11, (6, 5))
    for _ in range(2):
        losses = loss(one(words), words), model(words, target=words)
        assert difference(*losses) < TOLERANCE
        for each, optimizer in zip(losses, optimizers, strict=True):
            each.backward()
            optimizer.step()
            optimizer.zero_grad()
    assert module.state_dict().keys() == one.state_dict().keys()
    for ours, theirs in zip(module.parameters(), one.parameters(), strict=True):
        assert difference(theirs, ours) < TOLERANCE


def test_stages_that_compute_again_at_once_have_their_own_copies() -> None:
    module = Tied().double()
    one = copy.deepcopy(module)
    for layer in module.layers:  # autograd's threads of other devices continue
        layer.register_forward_pre_hook(lambda *_: time.sleep(0.003))
    before = module.state_dict(keep_vars=True)
    loss = nn.CrossEntropyLoss()
    model = anyrig.spread(
        module, rig_of(4), plan=anyrig.Pipeline(schedule="gpipe", checkpoint="always"), loss=loss
    )
    words = torch.randint(11, (6, 5))
    losses = loss(one(words), words), model(words, target=words)
    for each in losses:
        each.backward()
    assert difference(*losses) < TOLERANCE
    for ours, theirs in zip(module.parameters(), one.parameters(), strict=True):
        assert difference(theirs.grad, ours.grad) < TOLERANCE
    for name, tensor in module.state_dict(keep_vars=True).items():
        assert tensor is before[name], name


class UsedThrice(nn.Module):
    """Has a parameter whose gradients in three stages are 1, 1e8 and -1e8."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(1, 1, bias=False) for _ in range(3))
        self.shift = nn.Parameter(torch.zeros(1))
        for layer in (self.a, self.b, self.c):
            nn.init.ones_(layer.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x) + self.shift
        x = self.b(x) + self.shift * 1e8
        return self.c(x) - self.shift * 1e8


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zero-bubble"])
def test_gradients_of_a_shared_parameter_are_added_in_the_order_of_stages(schedule: str) -> None:
    module = UsedThrice()
    model = anyrig.spread(
        module,
        rig_of(3),
        plan=anyrig.Pipeline(schedule=schedule, split_points=["b", "c"]),
        loss=total,
    )
    model(torch.full((1, 1), 0.5), target=None).backward()
    assert module.shift.grad is not None
    assert module.shift.grad.item() == 0.0  # 1 + 1e8 is 1e8 in float32
