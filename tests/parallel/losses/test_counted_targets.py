"""Means over targets, in the module or in a custom loss, are those of the whole batch.

Over ranks, `counted_target_cases.py` tries the same.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from pipeline.beside_one_device import TOLERANCE, difference, rig_of
from pipeline.models_with_losses import LOSSES, Tagged, Tagger, V, batch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

import anyrig
from anyrig.errors import BatchError, SpreadError

pytestmark = pytest.mark.gpus(3)


class Beside:
    """A `Tagger` on one device, and its copy on several."""

    def __init__(self, name: str, devices: int = 3, **options: Any) -> None:
        torch.manual_seed(0)
        self.one = Tagger(name).double().to("cuda:0")
        self.several = copy.deepcopy(self.one)
        self.loss = options.get("loss")
        self.model: Any = anyrig.spread(self.several, rig_of(devices), **options)

    def step(self, samples: int, ignored: str = "unevenly") -> float:
        """Train both modules on a batch, and return the greatest difference."""
        call = {name: each.to("cuda:0") for name, each in batch(samples, ignored).items()}
        alone, labels = self.one(**call), call["labels"]
        if self.loss is None:
            losses = alone.loss, self.model(**call).loss
        else:
            losses = self.loss(alone, labels), self.model(**call, target=labels)
        for each in losses:
            each.backward()
        pairs = zip(self.one.parameters(), self.several.parameters(), strict=True)
        gradients = [difference(a.grad, b.grad) for a, b in pairs]
        for each in (self.one, self.several):
            each.zero_grad()
        if losses[0].isnan():
            assert losses[1].isnan()
            return max(gradients)
        return max(difference(*losses), *gradients)


@pytest.mark.parametrize("name", [*LOSSES, "class_weights", "targets_of_a_teacher"])
def test_a_module_with_a_loss_on_several_devices(name: str) -> None:
    pair = Beside(name)
    for samples in (7, 4, 2, 1):
        assert pair.step(samples) < TOLERANCE, samples
    assert pair.step(4, "nowhere") < TOLERANCE


def test_a_batch_whose_targets_are_all_ignored() -> None:
    pair = Beside("a_function")
    assert pair.step(4, "all") < TOLERANCE
    assert pair.step(4) < TOLERANCE


def test_the_loss_without_gradients() -> None:
    pair = Beside("a_function")
    call = {name: each.to("cuda:0") for name, each in batch(7).items()}
    with torch.no_grad():
        assert difference(pair.model(**call).loss, pair.one(**call).loss) < TOLERANCE


class Recomputing(Tagger):
    """Computes the head and the loss again in the backward pass."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__("a_function")
        self.reentrant = reentrant

    def forward(self, words: Tensor, labels: Tensor) -> Any:
        def loss(h: Tensor) -> Tensor:
            return functional.cross_entropy(self.head(h).flatten(0, 1), labels.flatten())

        return checkpoint(loss, self.embedding(words), use_reentrant=self.reentrant)


def test_a_mean_in_a_checkpoint() -> None:
    torch.manual_seed(0)
    one = Recomputing(reentrant=False).double().to("cuda:0")
    several = copy.deepcopy(one)
    model: Any = anyrig.spread(several, rig_of(3))
    call = {name: each.to("cuda:0") for name, each in batch(7).items()}
    losses = one(**call), model(**call)
    for each in losses:
        each.backward()
    assert difference(*losses) < TOLERANCE
    for alone, spread in zip(one.head.parameters(), several.head.parameters(), strict=True):
        assert difference(alone.grad, spread.grad) < TOLERANCE


def test_a_mean_in_a_reentrant_checkpoint_is_refused() -> None:
    model: Any = anyrig.spread(Recomputing(reentrant=True).to("cuda:0"), rig_of(3))
    with pytest.raises(SpreadError, match=r"again in the backward pass.*use_reentrant=False"):
        model(**batch(7))


def mean_of_tokens(output: Any, labels: Tensor) -> Tensor:
    found: Tensor = functional.cross_entropy(output.logits.view(-1, V), labels.flatten())
    return found


def mean_of_a_criterion(output: Any, labels: Tensor) -> Tensor:
    found: Tensor = nn.CrossEntropyLoss()(output.logits.transpose(1, 2), labels)
    return found


def with_another_term(output: Any, labels: Tensor) -> Tensor:
    return 2 * mean_of_tokens(output, labels) + 0.1 * output.logits.square().mean()


@pytest.mark.parametrize("loss", [mean_of_tokens, mean_of_a_criterion, with_another_term])
def test_a_loss_of_ones_own_on_several_devices(loss: Any) -> None:
    pair = Beside("a_function", loss=loss)
    for samples in (7, 4, 1):
        assert pair.step(samples) < TOLERANCE, samples
    assert pair.step(4, "nowhere") < TOLERANCE


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("loss", [mean_of_tokens, mean_of_a_criterion])
def test_a_loss_of_ones_own_in_a_pipeline(loss: Any, schedule: str) -> None:
    plan = anyrig.Pipeline(example=((), batch(4)), schedule=schedule)
    pair = Beside("a_mean_over_samples", loss=loss, plan=plan)
    for samples in (7, 4, 1):
        assert pair.step(samples) < TOLERANCE, samples
    assert pair.step(4, "all") < TOLERANCE


def test_a_pipeline_refuses_what_micro_batches_do_not_show() -> None:
    plan = anyrig.Pipeline(example=((), batch(4)))
    pair = Beside("a_mean_over_samples", loss=with_another_term, plan=plan)
    assert pair.step(4, "nowhere") < TOLERANCE
    with pytest.raises(BatchError, match=r"from 0 to 4 for each sample.*Return \(sum, count\)"):
        pair.step(7)
    assert all(each.grad is None for each in pair.several.parameters())


@pytest.mark.parametrize("name", ["a_contrast_between_samples", "a_contrast_between_labels"])
def test_a_contrast_between_the_samples_of_a_part_is_refused(name: str) -> None:
    pair = Beside(name, devices=2)
    with pytest.raises(SpreadError, match=r"the 4 samples of one part .*gather_over_ranks"):
        pair.step(8)


def test_labels_that_are_numbers_in_order_are_no_contrast() -> None:
    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 4)

        def forward(self, x: Tensor, labels: Tensor) -> Tensor:
            return functional.cross_entropy(self.layer(x), labels.view(-1))

    model: Any = anyrig.spread(Classifier().to("cuda:0"), rig_of(2))
    model(torch.randn(8, 3), labels=torch.arange(4).repeat(2)[:, None]).backward()


class Summing(Tagger):
    def forward(self, words: Tensor, labels: Tensor, count: int = 1) -> Any:
        logits = self.head(self.embedding(words)).flatten(0, 1)
        return functional.cross_entropy(logits, labels.flatten(), reduction="sum") / count


def test_a_sum_over_targets_in_the_module_is_refused() -> None:
    model: Any = anyrig.spread(Summing("a_function").to("cuda:0"), rig_of(2))
    with pytest.raises(SpreadError, match=r"sums the losses of targets.*\(sum, count"):
        model(**batch(7))
    with torch.no_grad():
        model(**batch(7))
    loss = nn.CrossEntropyLoss(reduction="sum")
    module = Tagger("a_mean_over_samples").to("cuda:0")
    model = anyrig.spread(
        module, rig_of(2), loss=lambda o, t: loss(o.logits.flatten(0, 1), t.flatten())
    )
    with pytest.raises(BatchError, match="it is a sum over samples"):
        model(**batch(7), target=batch(7)["labels"])


class Marked(Tensor):
    """A subclass whose functions PyTorch calls through `__torch_function__`."""


def test_a_subclass_of_tensor() -> None:
    pair = Beside("a_function", loss=mean_of_marked)
    assert pair.step(7) < TOLERANCE


def mean_of_marked(output: Any, labels: Tensor) -> Tensor:
    logits = output.logits.as_subclass(Marked)
    return mean_of_tokens(Tagged(output.loss, logits), labels).as_subclass(Tensor)


class ByItsName(Tagger):
    def forward(self, words: Tensor, labels: Tensor) -> Any:
        logits = self.head(self.embedding(words))
        return cross_entropy(logits.flatten(0, 1), labels.flatten())


def mean_by_its_name(output: Any, labels: Tensor) -> Tensor:
    found: Tensor = cross_entropy(output.logits.flatten(0, 1), labels.flatten())
    return found


REFUSED = r"by cross_entropy or nll_loss under an imported.*as torch\.nn\.functional\.cross_entropy"


def test_a_function_that_was_imported_by_its_name_is_refused() -> None:
    model: Any = anyrig.spread(ByItsName("a_function").to("cuda:0"), rig_of(3))
    with pytest.raises(SpreadError, match=REFUSED):
        model(**batch(7))
    model = anyrig.spread(ByItsName("a_function").to("cuda:0"), rig_of(1))
    model(**batch(7)).backward()


@pytest.mark.parametrize("name", ["replicas", "pipeline"])
def test_a_loss_that_was_imported_by_its_name_is_refused(name: str) -> None:
    pipeline = anyrig.Pipeline(2, example=((), batch(4)))
    plan = pipeline if name == "pipeline" else anyrig.Replicas()
    module = Tagger("a_mean_over_samples").to("cuda:0")
    model: Any = anyrig.spread(module, rig_of(2), plan=plan, loss=mean_by_its_name)
    call = batch(7)
    with pytest.raises(SpreadError, match=REFUSED):
        model(**call, target=call["labels"])


def test_functions_of_pytorch_are_as_they_were() -> None:
    before = functional.cross_entropy, functional.nll_loss
    seen: list[Any] = []

    class Looking(Tagger):
        def forward(self, words: Tensor, labels: Tensor) -> Any:
            seen.append(functional.cross_entropy)
            if not len(words):
                raise ArithmeticError
            return super().forward(words, labels)

    model: Any = anyrig.spread(Looking("a_function").to("cuda:0"), rig_of(3))
    model(**batch(7))
    assert before[0] not in seen
    assert (functional.cross_entropy, functional.nll_loss) == before
    with pytest.raises(ArithmeticError):
        model(**batch(0))
    assert (functional.cross_entropy, functional.nll_loss) == before


@pytest.mark.parametrize("loss", [None, with_another_term])
@pytest.mark.parametrize(("name", "devices"), [("replicas", 1), ("replicas", 3), ("pipeline", 2)])
def test_accumulated_means_are_even_or_refused(name: str, devices: int, loss: Any) -> None:
    torch.manual_seed(0)
    module = Tagger("a_function" if loss is None else "a_mean_over_samples").to("cuda:0")
    pipeline = anyrig.Pipeline(2, example=((), batch(4)))
    plan = pipeline if name == "pipeline" else anyrig.Replicas()
    model: Any = anyrig.spread(module, rig_of(devices), plan=plan, loss=loss, accumulate=True)

    def step(samples: int, ignored: int) -> None:
        call = batch(samples, "nowhere")
        call["labels"][:, :ignored] = -100
        target = {} if loss is None else {"target": call["labels"]}
        found = model(**call, **target)
        (found.loss if loss is None else found).backward()

    step(4, 1)
    step(3, 1)
    with pytest.raises(BatchError, match=r"from 3 to 4 for each sample"):
        step(4, 2)
    model.zero_grad()
    step(4, 2)


def test_logical_shards_take_the_mean_over_all_targets() -> None:
    pair = Beside("a_mean_over_samples", loss=mean_of_tokens, plan=anyrig.Exact(3), devices=1)
    for samples in (7, 4):
        assert pair.step(samples) < TOLERANCE
    pair = Beside("a_mean_over_samples", loss=with_another_term, plan=anyrig.Exact(3), devices=1)
    assert pair.step(6, "nowhere") < TOLERANCE
    with pytest.raises(BatchError, match=r"from 0 to 4 for each sample.*Return \(sum"):
        pair.step(7)
