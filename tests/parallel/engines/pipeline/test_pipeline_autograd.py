"""A pipeline's loss works with PyTorch's hooks, scalers and several backward passes."""

from __future__ import annotations

import copy
import pickle
import time
from typing import Any

import pytest
import torch
from beside_one_device import TOLERANCE, Beside, batch, difference, perceptron, rig_of
from torch import Tensor, nn

import anyrig
from anyrig import Pipeline
from anyrig.errors import SpreadError

pytestmark = pytest.mark.gpus(3)

SCHEDULES = ("gpipe", "1f1b")


def pair_with(schedule: str, **options: Any) -> Beside:
    return Beside(
        perceptron(),
        3,
        nn.CrossEntropyLoss(),
        schedule=schedule,
        **{"micro_batches": 4, **options},
    )


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_hooks_run_once_with_the_whole_gradient(schedule: str) -> None:
    pair = pair_with(schedule)
    seen: list[list[Tensor]] = [[], []]
    for found, module in zip(seen, (pair.one, pair.several), strict=True):
        first = next(module.parameters())
        first.register_hook(lambda grad, found=found: found.append(grad.clone()) or grad.clamp(0))
        first.register_post_accumulate_grad_hook(
            lambda parameter, found=found: found.append(parameter.grad.clone())
        )
    assert pair.step(*batch(9)) < TOLERANCE
    assert len(seen[0]) == len(seen[1]) == 2
    assert max(map(difference, *seen)) < TOLERANCE


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_autograd_grad_leaves_grad_alone(schedule: str) -> None:
    pair = pair_with(schedule)
    x, y = batch(9)
    parameters = list(pair.several.parameters())
    found = torch.autograd.grad(pair.model(x, target=y), parameters)
    assert all(parameter.grad is None for parameter in parameters)
    expected = torch.autograd.grad(
        pair.loss(pair.one(x.to("cuda:0")), y.to("cuda:0")), list(pair.one.parameters())
    )
    assert max(map(difference, expected, found)) < TOLERANCE


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_second_backward_pass(schedule: str) -> None:
    pair = pair_with(schedule)
    x, y = batch(9)
    for loss in (pair.loss(pair.one(x.to("cuda:0")), y.to("cuda:0")), pair.model(x, target=y)):
        loss.backward(retain_graph=True)
        (3 * loss).backward()
        with pytest.raises(RuntimeError, match=r"second time|earlier backward pass"):
            loss.backward()
    assert pair.compare_gradients() < TOLERANCE


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_sparse_gradients_take_the_factor_of_the_loss(schedule: str) -> None:
    def layers() -> nn.Sequential:
        torch.manual_seed(0)
        return nn.Sequential(nn.Embedding(7, 4, sparse=True), nn.Tanh(), nn.Linear(4, 2)).double()

    plan = Pipeline(schedule=schedule, micro_batches=2)
    model = anyrig.spread(layers(), rig_of(2), plan=plan, loss=nn.MSELoss())
    one, x, y = layers(), torch.tensor([1, 2, 2, 6]), torch.randn(4, 2, dtype=torch.float64)
    for loss in (nn.functional.mse_loss(one(x), y), model(x, target=y)):
        (3 * loss).backward()
    for ours, theirs in zip(model.parameters(), one.parameters(), strict=True):
        assert ours.grad is not None
        assert theirs.grad is not None
        assert ours.grad.is_sparse == theirs.grad.is_sparse
        torch.testing.assert_close(ours.grad.cpu().to_dense(), theirs.grad.to_dense())


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = perceptron()

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        return self.layers(x * scale)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_gradient_of_an_argument_that_all_micro_batches_get(schedule: str) -> None:
    pair = Beside(Scaled(), 3, nn.CrossEntropyLoss(), schedule=schedule, micro_batches=4)
    x, y = batch(9)
    scales = [torch.tensor(1.5, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    pair.loss(pair.one(x.to("cuda:0"), scales[0].to("cuda:0")), y.to("cuda:0")).backward()
    pair.model(x, scales[1], target=y).backward()
    assert difference(scales[0].grad, scales[1].grad) < TOLERANCE
    assert pair.compare_gradients() < TOLERANCE


def test_a_graph_of_gradients() -> None:
    pair = pair_with("gpipe")
    x = batch(9)[0].tanh()
    for module, place in ((pair.one, "cuda:0"), (pair.model, "cuda:2")):
        output = module(x.to("cuda:0"))
        loss = (output**3).mean()
        found = torch.autograd.grad(loss, list(module.parameters()), create_graph=True)
        penalty = sum((one**2).sum().to(place) for one in found)
        torch.as_tensor(penalty).backward()
    assert pair.compare_gradients() < TOLERANCE


def test_a_graph_of_gradients_is_refused_by_1f1b() -> None:
    pair = pair_with("1f1b")
    x, y = batch(9)
    first = next(pair.several.parameters())
    with pytest.raises(SpreadError, match='use schedule="gpipe"'):
        torch.autograd.grad(pair.model(x, target=y), [first], create_graph=True)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_scaler_and_clipping(schedule: str) -> None:
    pair = pair_with(schedule)
    states = []
    for module, model in ((pair.one, pair.one), (pair.several, pair.model)):
        scaler = torch.amp.GradScaler("cuda", init_scale=2.0**12)
        optimizer = torch.optim.SGD(module.parameters(), 0.1, momentum=0.9)
        x, y = batch(9)
        for _ in range(2):
            loss = (
                model(x, target=y)
                if model is pair.model
                else pair.loss(model(x.to("cuda:0")), y.to("cuda:0"))
            )
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(module.parameters(), 0.05)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        states.append(scaler.get_scale())
    assert states[0] == states[1]
    assert pair.compare_states() < TOLERANCE


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_accumulation_over_batches_of_unequal_size(schedule: str) -> None:
    pair = pair_with(schedule, accumulate=True)
    first, second = batch(9), batch(5)
    for x, y in (first, second):
        pair.model(x, target=y).backward()
    x, y = (torch.cat(parts).to("cuda:0") for parts in zip(first, second, strict=True))
    pair.loss(pair.one(x), y).backward()
    assert pair.compare_gradients() < TOLERANCE


def test_float16_needs_the_scaled_loss() -> None:
    with pytest.raises(SpreadError, match='scaled loss; use schedule="gpipe"'):
        anyrig.spread(
            perceptron(),
            rig_of(2),
            plan=anyrig.Pipeline(schedule="1f1b"),
            precision="float16",
            loss=nn.CrossEntropyLoss(),
        )
    module = perceptron()
    model = anyrig.spread(
        module, rig_of(2), plan=anyrig.Pipeline(), precision="float16", loss=nn.CrossEntropyLoss()
    )
    x, y = batch(8)
    model(x.float(), target=y).backward()
    assert all(parameter.grad is not None for parameter in module.parameters())


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_precision_is_that_of_autocast(schedule: str) -> None:
    module = perceptron()
    one = copy.deepcopy(module).to("cuda:0")
    model = anyrig.spread(
        module,
        rig_of(3),
        plan=anyrig.Pipeline(schedule=schedule, micro_batches=1, checkpoint="always"),
        precision="bfloat16",
        loss=nn.CrossEntropyLoss(),
    )
    x, y = batch(8)
    x = x.float()
    loss = model(x, target=y)
    with torch.autocast("cuda", torch.bfloat16):
        expected = nn.functional.cross_entropy(one(x.to("cuda:0")), y.to("cuda:0"))
    loss.backward()
    expected.backward()
    assert loss.item() == expected.item()
    for ours, theirs in zip(module.parameters(), one.parameters(), strict=True):
        assert torch.equal(ours.grad.cpu(), theirs.grad.cpu())


class HostNoise(nn.Module):
    """Draws random numbers on the CPU, whatever its input's device."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rand(6, dtype=x.dtype).to(x.device)


def with_dropout() -> nn.Sequential:
    torch.manual_seed(0)
    steps: list[nn.Module] = []
    for _ in range(6):
        steps += [nn.Linear(6, 6), nn.Dropout(0.5), HostNoise()]
        # Autograd's threads of other devices continue meanwhile.
        steps[-3].register_forward_pre_hook(lambda *_: time.sleep(0.0005))
    return nn.Sequential(*steps, nn.Linear(6, 5)).double()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_dropout_is_the_same_in_each_run_and_with_checkpoints(schedule: str) -> None:
    found = []
    for checkpoint in ("never", "never", "except_last", "always"):
        module = with_dropout()
        model = anyrig.spread(
            module,
            rig_of(3),
            plan=anyrig.Pipeline(schedule=schedule, micro_batches=4, checkpoint=checkpoint),
            loss=nn.CrossEntropyLoss(),
        )
        torch.manual_seed(1)
        torch.cuda.manual_seed_all(1)
        x, y = batch(10)
        losses = [model(x, target=y) for _ in range(2)]
        before = torch.get_rng_state()
        for loss in losses:
            loss.backward()
        assert torch.equal(torch.get_rng_state(), before)
        assert losses[0].item() != losses[1].item()
        found.append([losses[1].detach(), *(parameter.grad for parameter in module.parameters())])
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_gradients_are_the_same_to_the_bit_in_each_run(schedule: str) -> None:
    found = []
    for _ in range(3):
        torch.manual_seed(0)
        pair = pair_with(schedule, micro_batches=7)
        pair.model(*batch(21)[:1], target=batch(21)[1]).backward()
        found.append([parameter.grad for parameter in pair.several.parameters()])
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_of_a_pipeline(copied: Any) -> None:
    pair = pair_with("1f1b")
    pair.model = copied(pair.model)
    pair.several = pair.model.module
    assert pair.step(*batch(9)) < TOLERANCE


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_on_streams_of_the_caller(schedule: str) -> None:
    pair = pair_with(schedule)
    x, y = batch(9)
    expected = pair.loss(pair.one(x.to("cuda:0")), y.to("cuda:0"))
    expected.backward()
    streams = [torch.cuda.Stream(index) for index in range(3)]
    torch.cuda.synchronize(0)
    with torch.cuda.stream(streams[0]), torch.cuda.stream(streams[1]):
        loss = pair.model(x, target=y)
        loss.backward()
    for stream in streams:
        stream.synchronize()
    assert difference(expected, loss) < TOLERANCE
    assert pair.compare_gradients() < TOLERANCE
