"""`spread(accumulate=True)`: several backward passes give the gradient of the undivided batch."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from test_every_combination import rows_of
from torch import Tensor, nn
from torch.nn import functional

import anyrig
from anyrig.errors import SpreadError
from anyrig.parallel.parts.scatter import scatter_samples

pytestmark = pytest.mark.gpus(3)

# The samples of each micro-batch before a step: unequal, an odd last group, empty ones.
GROUPS = ([5, 2, 4], [1], [3, 6], [2, 1, 1, 7], [0, 0, 0, 4], [4, 0, 1])


def sum_and_count(output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return a loss in which class 0 is padding, as in sequences of unequal lengths."""
    losses = functional.cross_entropy(output, target, reduction="none")
    return (losses * (target > 0)).sum(), (target > 0).sum()


def own_mean(output: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(output, target)


LOSSES: dict[str, Any] = {
    "outside": None,
    "mean": nn.CrossEntropyLoss(),
    "weights": nn.CrossEntropyLoss(torch.tensor([0.1, 1.0, 3.0], dtype=torch.float64)),
    "ignored": nn.CrossEntropyLoss(ignore_index=2),
    "own mean": own_mean,
    "sum and count": sum_and_count,
}


class Net(nn.Module):
    """Has a layer that only some micro-batches use."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.extra = nn.Linear(4, 6), nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x: Tensor, uses_extra: bool = True) -> Tensor:
        hidden = self.first(x).tanh()
        output: Tensor = self.second(hidden)
        return output + self.extra(hidden) if uses_extra else output


def nets(device: str, *rig: Any, **options: Any) -> tuple[Net, Net, Any]:
    torch.manual_seed(0)
    one = Net().double().to(device)
    several = copy.deepcopy(one)
    loss = options.pop("loss", None)
    if isinstance(loss, nn.Module):
        loss = copy.deepcopy(loss).to(device)
    return one, several, anyrig.spread(several, *rig, accumulate=True, loss=loss, **options)


def batch(samples: int, device: str, place: int = 0) -> tuple[Tensor, Tensor]:
    """Return a batch of all classes; but the second batch of a group has only class 2, and the
    third only class 0, which some losses ignore.
    """
    x = torch.randn(samples, 4, dtype=torch.float64, device="cpu")
    target = (torch.arange(samples, device="cpu") + 1) % 3
    if place in (1, 2):
        target = torch.full_like(target, {1: 2, 2: 0}[place])
    return x.to(device), target.to(device)


def whole_loss(loss: Any, output: Tensor, target: Tensor) -> Tensor:
    value = (loss or own_mean)(output, target)
    return value[0] / value[1] if isinstance(value, tuple) else value


def penalty(net: Net) -> Tensor:
    return 0.1 * (net.first.weight.square().sum() + net.second.bias.sum())


def assert_same(ours: nn.Module, one: nn.Module) -> None:
    for (name, here), there in zip(ours.named_parameters(), one.parameters(), strict=True):
        zero = torch.zeros_like(there)
        found, expected = (zero if p.grad is None else p.grad for p in (here, there))
        assert expected.isfinite().all()
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12, msg=name)


def try_groups(name: str, device: str, *rig: Any, ranks: int = 1) -> None:
    """Train on groups of micro-batches, and on each group as one undivided batch."""
    loss = LOSSES[name]
    one, several, model = nets(device, *rig, loss=loss)
    if isinstance(loss, nn.Module):
        loss = copy.deepcopy(loss).to(device)
    steps = [torch.optim.SGD(net.parameters(), 0.1, momentum=0.9) for net in (one, several)]
    for group in GROUPS:
        batches = [batch(samples, device, place) for place, samples in enumerate(group)]
        for x, target in batches:
            rows = rows_of(len(x), ranks)
            mine, wanted = scatter_samples((x, target), [torch.device(device)] * ranks, rows, 0)[
                dist.get_rank() if ranks > 1 else 0
            ]
            if loss is None:
                value = functional.cross_entropy(model(mine), wanted)
            else:
                value = model(mine, target=wanted)
            (value + penalty(several)).backward()
            with torch.no_grad():  # evaluation in between
                model(mine)
        x, target = (torch.cat(tensors) for tensors in zip(*batches, strict=True))
        (whole_loss(loss, one(x), target) + penalty(one)).backward()
        assert_same(several, one)
        for step in steps:
            step.step()
            step.zero_grad()
    for here, there in zip(several.parameters(), one.parameters(), strict=True):
        torch.testing.assert_close(here, there, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("rig", ["cpu", "cuda:0", "cuda:0,1,2"])
def test_a_group_is_one_batch(name: str, rig: str) -> None:
    options = [anyrig.Rig.parse(rig)]
    try_groups(name, "cpu" if rig == "cpu" else "cuda:0", *options)


def groups_in_ranks(name: str) -> Callable[[], None]:
    return lambda: try_groups(name, "cpu", ranks=dist.get_world_size())


RANK_CASES = {f"case_{name.replace(' ', '_')}": groups_in_ranks(name) for name in LOSSES}
globals().update(RANK_CASES)


def case_refusals() -> None:
    for what in ("no_sync", "join"):
        _, _, model = nets("cpu")
        with pytest.raises(SpreadError, match="accumulate=True"), getattr(model, what)():
            pass
    with pytest.raises(SpreadError, match=r"Shards; use plan=Replicas\(\)"):
        anyrig.spread(Net(), plan=anyrig.Shards(), accumulate=True)
    for refused in REFUSED:
        model = nets("cpu")[2]  # DDP cannot go on after a backward pass that failed
        learn(model, "cpu")
        with pytest.raises(SpreadError, match="accumulate=True"):
            refused(model, "cpu")


def learn(model: Any, device: str) -> None:
    x, target = batch(4, device)
    functional.cross_entropy(model(x), target).backward()


def clipped(model: Any, device: str) -> None:
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    learn(model, device)


def zeroed(model: Any, device: str) -> None:
    model.zero_grad(set_to_none=False)
    learn(model, device)


def replaced(model: Any, device: str) -> None:
    model.first.weight.grad = model.first.weight.grad.clone()
    learn(model, device)


def failed(model: Any, device: str) -> None:
    output = model(batch(4, device)[0])
    output.register_hook(lambda gradient: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        output.sum().backward()
    model.zero_grad()
    handle = model.second.weight.register_hook(lambda gradient: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        learn(model, device)
    handle.remove()
    learn(model, device)


def two_forwards(model: Any, device: str) -> None:
    (model(batch(2, device)[0]).sum() + model(batch(3, device)[0]).sum()).backward()


def twice(model: Any, device: str) -> None:
    loss = model(batch(2, device)[0]).sum()
    loss.backward(retain_graph=True)
    loss.backward()


def of_gradients(model: Any, device: str) -> None:
    model(batch(2, device)[0]).sum().backward(create_graph=True)


REFUSED = (clipped, zeroed, replaced, two_forwards, twice, of_gradients)


@pytest.mark.parametrize("rig", ["cpu", "cuda:0,1,2"])
def test_refusals_leave_a_working_model(rig: str) -> None:
    """After a refusal and zero_grad(), the next group is exact."""
    device = "cpu" if rig == "cpu" else "cuda:0"
    one, several, model = nets(device, anyrig.Rig.parse(rig))
    for refused in (*REFUSED, failed):
        learn(model, device)
        with pytest.raises(SpreadError, match="accumulate=True"):
            refused(model, device)
        model.zero_grad()
        torch.manual_seed(1)
        batches = [batch(3, device), batch(5, device)]
        for x, target in batches:
            functional.cross_entropy(model(x), target).backward()
        one.zero_grad()
        x, target = (torch.cat(tensors) for tensors in zip(*batches, strict=True))
        functional.cross_entropy(one(x), target).backward()
        assert_same(several, one)


@pytest.mark.parametrize("rig", ["cpu", "cuda:0,1,2"])
def test_what_is_refused_at_the_call(rig: str) -> None:
    device, place = "cpu" if rig == "cpu" else "cuda:0", anyrig.Rig.parse(rig)
    for loss in (nn.CrossEntropyLoss(reduction="sum"), nn.MSELoss(reduction="none")):
        with pytest.raises(SpreadError, match=r"return .sum, count."):
            nets(device, place, loss=loss)
    model = nets(device, place, loss=lambda output, target: output.sum(1))[2]
    x, target = batch(6, device)
    with pytest.raises(SpreadError, match="not reduced"):
        model(x, target=target)
    model = nets(device, place, loss=nn.CrossEntropyLoss())[2]
    model(x, target=target).backward()
    with pytest.raises(SpreadError, match="with target= and without"):
        model(x).mean().backward()
    with pytest.raises(SpreadError, match="scattered"):
        model.scattered(x)
    with pytest.raises(SpreadError, match="no_sync"), model.no_sync():
        pass


def test_a_pass_that_reaches_no_gradient_counts_nothing() -> None:
    one, several, model = nets("cuda:0", anyrig.Rig.parse("cuda:0,1,2"))
    (x, target), (y, other) = batch(5, "cuda:0"), batch(3, "cuda:0")
    functional.cross_entropy(model(x), target).backward()
    z = y.clone().requires_grad_()
    output = model(z)
    torch.autograd.grad(output.sum(), z, retain_graph=True)
    torch.autograd.grad(output.sum(), several.first.weight, retain_graph=True)
    functional.cross_entropy(output, other).backward()
    whole = one(torch.cat([x, y]))
    functional.cross_entropy(whole, torch.cat([target, other])).backward()
    assert_same(several, one)


@pytest.mark.parametrize("rig", ["cpu", "cuda:0", "cuda:0,1,2"])
def test_layers_that_only_some_passes_use(rig: str) -> None:
    device = "cpu" if rig == "cpu" else "cuda:0"
    one, several, model = nets(device, anyrig.Rig.parse(rig))
    passes = [(*batch(5, device), True), (*batch(3, device), False), (*batch(4, device), True)]
    for x, target, uses_extra in passes:
        functional.cross_entropy(model(x, uses_extra), target).backward()
        weighted = functional.cross_entropy(one(x, uses_extra), target) * len(x)
        (weighted / 12).backward()
    assert_same(several, one)


def test_a_step_that_the_scaler_skips() -> None:
    one, several, model = nets("cuda:0", anyrig.Rig.parse("cuda:0,1,2"))
    scaler = torch.amp.GradScaler("cuda", init_scale=4.0)
    optimizer = torch.optim.SGD(several.parameters(), 0.0)
    for scale in (float("inf"), 1.0):
        for samples in (5, 2):
            x, target = batch(samples, "cuda:0")
            scaler.scale(functional.cross_entropy(model(x) * scale, target)).backward()
        scaler.unscale_(optimizer)
        if scale == 1.0:
            break
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        torch.manual_seed(2)
        assert scaler.get_scale() == 2.0
    torch.manual_seed(2)
    batches = [batch(5, "cuda:0"), batch(2, "cuda:0")]
    x, target = (torch.cat(tensors) for tensors in zip(*batches, strict=True))
    functional.cross_entropy(one(x), target).backward()
    assert_same(several, one)


@pytest.mark.parametrize("rig", ["cpu", "cuda:0,1,2"])
def test_a_pickled_model_begins_anew(rig: str) -> None:
    device = "cpu" if rig == "cpu" else "cuda:0"
    model = nets(device, anyrig.Rig.parse(rig))[2]
    learn(model, device)
    loaded = pickle.loads(pickle.dumps(model))
    for each in (model, loaded):
        each.zero_grad()
        torch.manual_seed(3)
        learn(each, device)
        learn(each, device)
    assert_same(loaded.module, model.module)


def test_a_copy_and_explain() -> None:
    model = nets("cpu", "cpu")[2]
    learn(model, "cpu")
    assert "all samples since zero_grad()" in str(anyrig.explain(copy.deepcopy(model)))
