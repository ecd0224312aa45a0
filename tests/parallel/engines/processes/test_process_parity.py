"""Replicas in processes learn what one device learns, to 1e-9."""

from __future__ import annotations

import copy
from itertools import combinations
from typing import Any

import pytest
import torch
from process_pairs import SAMPLES, Pair, perceptron, spread
from torch import Tensor, nn
from torch.nn import functional
from trained_models import CLASSES, EXAMPLES, WIDTH, assert_same_numbers, train

import anyrig

pytestmark = pytest.mark.usefixtures("double_precision")


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("kind", EXAMPLES)
def test_three_steps(kind: str, fused: bool) -> None:
    example = EXAMPLES[kind]
    one = example.build()
    several = copy.deepcopy(one)
    criterion = nn.CrossEntropyLoss()
    # An ordinary batch, one smaller than the number of processes, and one of other samples.
    batches = [
        (example.inputs(samples), torch.randint(CLASSES, (samples,)))
        for samples in (SAMPLES, 2, SAMPLES - 1)
    ]
    expected = train(one, batches, "adam", lambda inputs, y: criterion(one(*inputs), y))
    model = spread(several, criterion if fused else None, processes=3)
    found = train(
        several,
        batches,
        "adam",
        lambda inputs, y: model(*inputs, target=y) if fused else criterion(model(*inputs), y),
    )
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    assert_same_numbers(several, one)


def test_the_model_says_how_it_is_spread() -> None:
    model = spread(perceptron())
    assert "2 processes, as asked: this one and 1 that it starts and ends" in str(
        anyrig.explain(model)
    )


def test_parameters_remain_the_same_objects_in_storages_of_their_own() -> None:
    pair = Pair()
    before = [*pair.several.parameters()]
    pair.step()
    after = [*pair.several.parameters()]
    assert all(one is other for one, other in zip(before, after, strict=True))
    assert all(each.untyped_storage().nbytes() == each.nbytes for each in after)


def test_a_method_that_a_notebook_replaces() -> None:
    class Doubled(nn.Linear):  # cannot be imported, so it travels by value
        pass

    pair = Pair(Doubled(WIDTH, CLASSES))
    pair.step()
    Doubled.forward = lambda self, x: nn.Linear.forward(self, x) * 2  # type: ignore[method-assign]
    pair.step()


def test_a_loss_that_reads_the_spread_model() -> None:
    models: list[Any] = []

    def loss(output: Tensor, target: Tensor) -> Tensor:
        weights = sum(each.square().sum() for each in models[-1].parameters())
        return functional.cross_entropy(output, target) + 0.01 * weights

    pair = Pair(loss=nn.CrossEntropyLoss())
    model = spread(pair.several, loss)
    models += [pair.one, model]
    x, y = torch.randn(SAMPLES, WIDTH), torch.randint(CLASSES, (SAMPLES,))
    model(x, target=y).backward()
    models.pop()
    loss(pair.one(x), y).backward()
    torch.testing.assert_close(
        [each.grad for each in pair.several.parameters()],
        [each.grad for each in pair.one.parameters()],
    )


def test_a_spread_model_within_another() -> None:
    one = nn.Sequential(perceptron(), nn.Linear(CLASSES, 1))
    several = copy.deepcopy(one)
    several[0] = spread(several[0])
    model = spread(several)
    x = torch.randn(SAMPLES, WIDTH)
    for output in (one(x), model(x)):
        output.square().mean().backward()
    torch.testing.assert_close(
        [each.grad for each in several.parameters()], [each.grad for each in one.parameters()]
    )


def test_batch_norm_in_eval_mode_and_statistics() -> None:
    module = nn.Sequential(nn.Linear(WIDTH, 6), nn.BatchNorm1d(6), nn.Linear(6, CLASSES))
    pair = Pair(module)
    pair.both(lambda module: module.eval())
    pair.step()
    pair.both(lambda module: module[1].running_mean.fill_(0.5))
    pair.step()


def test_evaluation_between_steps() -> None:
    pair = Pair()
    pair.step()
    x = torch.randn(SAMPLES, WIDTH)
    with torch.no_grad():
        torch.testing.assert_close(pair.model(x), pair.one(x))
    with torch.inference_mode():
        torch.testing.assert_close(pair.model(x), pair.one(x))
    pair.step()


def test_gradients_add_up() -> None:
    pair = Pair()
    for _ in range(2):
        x, y = torch.randn(SAMPLES, WIDTH), torch.randint(CLASSES, (SAMPLES,))
        pair.loss(pair.one(x), y).backward()
        pair.model(x, target=y).backward()
    assert_same_numbers(pair.several, pair.one)


class Chosen(nn.Module):
    """Scales a part by another parameter for positive samples than for others; one is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.positive, self.other, self.unused = (nn.Parameter(torch.ones(1)) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return x * (self.positive if bool(x[0] > 0) else self.other)


@pytest.mark.parametrize("in_worker", ["other", "positive"])
def test_a_parameter_without_a_gradient_has_none(in_worker: str) -> None:
    net = Chosen()
    model = spread(net)
    signs = [1.0, -1.0] if in_worker == "other" else [-1.0, 1.0]
    for _ in range(2):
        net.zero_grad()
        model(torch.tensor([[sign] for sign in signs for _ in range(2)])).sum().backward()
        assert net.unused.grad is None
        assert (net.positive.grad, net.other.grad) == (2, -2)
    net.zero_grad()
    model(torch.ones(4, 1)).sum().backward()
    assert net.positive.grad == 4
    assert net.other.grad is None


def test_accumulate() -> None:
    pair = Pair(accumulate=True)
    batches = [(torch.randn(n, WIDTH), torch.randint(CLASSES, (n,))) for n in (SAMPLES, 3)]
    for x, y in batches:
        pair.model(x, target=y).backward()
    x, y = (torch.cat(each) for each in zip(*batches, strict=True))
    pair.loss(pair.one(x), y).backward()
    assert_same_numbers(pair.several, pair.one)


def test_two_forwards_before_their_backward_passes() -> None:
    pair = Pair()
    losses = []
    for _ in range(2):
        x, y = torch.randn(SAMPLES, WIDTH), torch.randint(CLASSES, (SAMPLES,))
        losses.append((pair.loss(pair.one(x), y), pair.model(x, target=y)))
    for one, several in reversed(losses):
        one.backward()
        several.backward()
    assert_same_numbers(pair.several, pair.one)


def test_a_second_backward_pass() -> None:
    pair = Pair()
    x, y = torch.randn(SAMPLES, WIDTH), torch.randint(CLASSES, (SAMPLES,))
    for loss in (pair.loss(pair.one(x), y), pair.model(x, target=y)):
        loss.backward(retain_graph=True)
        loss.backward()
    assert_same_numbers(pair.several, pair.one)
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_gradients_of_inputs_and_hooks_of_parameters() -> None:
    pair = Pair()
    x, y = torch.randn(SAMPLES, WIDTH), torch.randint(CLASSES, (SAMPLES,))
    found = []
    for module, call in (
        (pair.one, lambda x: pair.loss(pair.one(x), y)),
        (pair.several, lambda x: pair.model(x, target=y)),
    ):
        seen: list[Tensor] = []
        module[0].weight.register_hook(seen.append)
        module[2].weight.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
        given = x.clone().requires_grad_()
        call(given * 2).backward()
        assert len(seen) == 1
        found.append((given.grad, seen[0]))
    torch.testing.assert_close(found[1], found[0])
    assert_same_numbers(pair.several, pair.one)


def test_two_models_as_in_a_gan() -> None:
    results = []
    for processes in (1, 2):
        torch.manual_seed(1)
        maker, judge = nn.Linear(3, WIDTH), nn.Linear(WIDTH, 1)
        make, rate = (spread(each, processes=processes) for each in (maker, judge))
        criterion = nn.BCEWithLogitsLoss()
        optimizers = [torch.optim.Adam(each.parameters(), 0.01) for each in (judge, maker)]
        for _ in range(2):
            real, noise = torch.randn(SAMPLES, WIDTH), torch.randn(SAMPLES, 3)
            fake = make(noise)
            loss = criterion(rate(real), torch.ones(SAMPLES, 1)) + criterion(
                rate(fake.detach()), torch.zeros(SAMPLES, 1)
            )
            optimizers[0].zero_grad()
            loss.backward()
            optimizers[0].step()
            optimizers[1].zero_grad()
            criterion(rate(fake), torch.ones(SAMPLES, 1)).backward()
            optimizers[1].step()
        results.append([*maker.parameters(), *judge.parameters()])
    torch.testing.assert_close(results[1], results[0], rtol=1e-9, atol=1e-12)


class OwnLoss(nn.Module):
    """Takes the mean over targets that are not ignored within the forward."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(self.layer(x), y) * 2


def test_means_over_targets_count_those_of_all_processes() -> None:
    one = OwnLoss()
    several = copy.deepcopy(one)
    model = spread(several, processes=3)
    x, y = torch.randn(SAMPLES, WIDTH), torch.randint(CLASSES, (SAMPLES,))
    y[:5] = -100
    for _ in range(2):
        losses = one(x, y), model(x, y)
        torch.testing.assert_close(losses[1], losses[0])
        for loss in losses:
            loss.backward()
    assert_same_numbers(several, one)


class Weighing(nn.Module):
    """Returns scores, and a weight for each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.scores, self.weights = nn.Linear(WIDTH, CLASSES), nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.scores(x), self.weights(x).sigmoid().squeeze(1)


def weighted(output: tuple[Tensor, Tensor], target: Tensor) -> tuple[Tensor, Tensor]:
    scores, weights = output
    losses = functional.cross_entropy(scores, target, reduction="none")
    return (weights * losses).sum(), weights.sum()


def test_what_a_loss_divides_by_may_learn() -> None:
    one = Weighing()
    several = copy.deepcopy(one)
    model = spread(several, weighted)
    x, y = torch.randn(SAMPLES, WIDTH), torch.randint(CLASSES, (SAMPLES,))
    total, count = weighted(one(x), y)
    (total / count).backward()
    model(x, target=y).backward()
    assert_same_numbers(several, one)


def test_outputs_in_containers_and_images_in_another_memory_format() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv2d(3, 2, 3)

        def forward(self, x: Tensor, flags: dict[str, Any]) -> dict[str, Any]:
            return {"out": self.layer(x), "sum": x.sum((1, 2, 3)), "flag": flags["name"]}

    one = Two().to(memory_format=torch.channels_last)
    model = spread(several := copy.deepcopy(one))
    x = torch.randn(SAMPLES, 3, 5, 5).to(memory_format=torch.channels_last)
    found = [each(x, {"name": "a"}) for each in (one, model)]
    for output in found:
        output["out"].square().sum().backward()
    torch.testing.assert_close(found[1]["out"], found[0]["out"])
    torch.testing.assert_close(found[1]["sum"], found[0]["sum"])
    assert found[1]["flag"] == "a"
    assert_same_numbers(several, one)


def test_dropout_differs_from_part_to_part_and_repeats() -> None:
    model = spread(nn.Sequential(nn.Linear(1, 64), nn.Dropout(0.5)), processes=3)
    with torch.no_grad():
        model.module[0].weight.fill_(1)
    found = []
    for _ in range(2):
        torch.manual_seed(3)
        found.append(model(torch.ones(3, 1)))
    assert torch.equal(found[0], found[1])
    dropped = (found[0] == 0).tolist()
    assert all(one != other for one, other in combinations(dropped, 2))


def test_autocast_and_precision() -> None:
    torch.set_default_dtype(torch.float32)
    one = perceptron()
    model = spread(several := copy.deepcopy(one), nn.CrossEntropyLoss(), precision="bfloat16")
    x, y = torch.randn(SAMPLES, WIDTH), torch.randint(CLASSES, (SAMPLES,))
    with torch.autocast("cpu", torch.bfloat16):
        expected = functional.cross_entropy(one(x), y)
    expected.backward()
    found = model(x, target=y)
    found.backward()
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(
        [each.grad for each in several.parameters()],
        [each.grad for each in one.parameters()],
        rtol=2e-2,
        atol=1e-2,
    )


def test_a_saved_and_a_copied_model_compute() -> None:
    pair = Pair()
    pair.step()
    again = copy.deepcopy(pair.model)
    x, y = torch.randn(SAMPLES, WIDTH), torch.randint(CLASSES, (SAMPLES,))
    torch.testing.assert_close(again(x, target=y), pair.loss(pair.one(x), y))
    before = pair.several[0].weight.clone()
    with torch.no_grad():
        again.module[0].weight.zero_()
    assert torch.equal(pair.several[0].weight, before)
