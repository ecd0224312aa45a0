"""What a module computes is refused in a first call if it does not follow from a part's halves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from pipeline.beside_one_device import rig_of
from reduced_errors import (
    Net,
    batch,
    compared_samples,
    deviation,
    masked_mean,
    masked_mean_by_a_number,
    mean,
    mean_over_targets,
    noise,
    outputs,
    penalty,
    root,
    second_of_two,
    total,
)
from torch import Tensor, nn

import anyrig
from anyrig import Pipeline, Replicas
from anyrig.errors import BatchError

pytestmark = pytest.mark.gpus(2)


@pytest.mark.parametrize(
    "reduce",
    [masked_mean, masked_mean_by_a_number, second_of_two, root, deviation, compared_samples],
    ids=lambda each: each.__name__,
)
def test_what_is_no_mean_over_samples_is_refused(reduce: Callable[..., Any]) -> None:
    model = anyrig.spread(Net(reduce), rig_of(2), Replicas())
    with pytest.raises(BatchError, match=r"Net returns a number.* for 4 samples.* not a mean") as e:
        model(*batch())
    place = {"masked_mean_by_a_number": "['loss']", "second_of_two": "[1][0]"}
    assert place.get(reduce.__name__, "number, which") in str(e.value)
    model.eval()
    with torch.no_grad():  # a number without gradients trains nothing
        model(*batch())


def test_a_sum_is_named_as_one() -> None:
    model = anyrig.spread(Net(total), rig_of(2), Replicas())
    with pytest.raises(BatchError, match=r"it is a sum over samples.* reduction is 'sum'"):
        model(*batch())


@pytest.mark.parametrize(
    "reduce",
    [mean, mean_over_targets, penalty, outputs, noise],
    ids=lambda each: each.__name__,
)
def test_what_is_a_mean_passes(reduce: Callable[..., Any]) -> None:
    module = Net(reduce)
    model = anyrig.spread(module, rig_of(2), Replicas())
    for _ in range(2):
        model(*batch())
    assert module.training
    assert module.dropout.training


def test_the_check_draws_no_random_numbers_and_leaves_no_trace() -> None:
    module = Net(mean)
    model = anyrig.spread(module, rig_of(2), Replicas())
    expected = anyrig.spread(Net(outputs), rig_of(2), Replicas())
    torch.manual_seed(0)
    expected(*batch())
    state = torch.get_rng_state()
    torch.manual_seed(0)
    model(*batch())
    assert torch.equal(torch.get_rng_state(), state)
    assert module.calls == [4, 4]  # one for each device


def test_a_mean_that_lies_in_a_sum_of_micro_batches_is_checked() -> None:
    model = anyrig.spread(Net(masked_mean), rig_of(1), Replicas(), accumulate=True)
    with pytest.raises(BatchError, match="not a mean over samples"):
        model(*batch())


class TakenAsASum:
    """A loss that returns a module's own sum."""

    reduction = "sum"

    def __call__(self, output: Any, target: Any) -> Any:
        return output["loss"] if isinstance(output, dict) else output


def test_a_number_that_the_loss_takes_from_the_output_is_checked() -> None:
    def taken(output: Any, target: Any) -> Any:
        return output["loss"]

    x, mask = batch()
    model = anyrig.spread(Net(masked_mean_by_a_number), rig_of(2), Replicas(), loss=taken)
    with pytest.raises(BatchError, match=r"Net returns a number, which is .* not a mean"):
        model(x, mask, target=None)
    model = anyrig.spread(Net(mean), rig_of(2), Replicas(), loss=lambda output, target: output)
    assert model(x, mask, target=None).requires_grad


def test_a_number_that_the_loss_takes_as_a_sum_is_one() -> None:
    x, mask = batch()
    module = Net(total)
    module.dropout.p = 0.0
    alone = module(x, mask)
    model = anyrig.spread(module, rig_of(2), Replicas(), loss=TakenAsASum())
    torch.testing.assert_close(model(x, mask, target=None).cpu(), alone)
    model = anyrig.spread(Net(mean), rig_of(2), Replicas(), loss=TakenAsASum())
    with pytest.raises(
        BatchError, match="the loss takes it as a sum over samples, which it is not"
    ):
        model(x, mask, target=None)


def test_one_device_computes_whatever_it_is() -> None:
    model = anyrig.spread(Net(masked_mean), rig_of(1), Replicas())
    assert model(*batch()).requires_grad


def test_a_part_of_one_sample_is_checked_later() -> None:
    model = anyrig.spread(Net(total), rig_of(2), Replicas())
    x, mask = batch()
    model(x[:2], mask[:2])
    with pytest.raises(BatchError, match="sum over samples"):
        model(x, mask)


def test_each_set_of_arguments_is_checked() -> None:
    class Optional(Net):
        def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
            h = self.linear(x)
            return h if mask is None else masked_mean(h.square(), mask, self)

    model = anyrig.spread(Optional(mean), rig_of(2), Replicas())
    x, mask = batch()
    model(x)
    with pytest.raises(BatchError, match="not a mean over samples"):
        model(x, mask=mask)


def test_what_the_module_writes_into_its_arguments_stays() -> None:
    class InPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 4).double()

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            return self.linear(torch.relu_(x)).square().mean()

    model = anyrig.spread(InPlace(), rig_of(2), Replicas())
    model(*batch()).backward()


def test_half_precision_is_not_taken_for_another_mean() -> None:
    module = Net(mean).bfloat16()
    module.dropout.p = 0.0
    x, mask = batch()
    for scale in (0.1, 1.0, 30.0):
        model = anyrig.spread(module, rig_of(2), Replicas())
        model((scale * x).bfloat16(), mask.bfloat16())


class Stages(nn.Module):
    """Two layers, which a pipeline divides, and a function of their errors."""

    def __init__(self, reduce: Callable[[Tensor, Tensor, nn.Module], Any]) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 4).double(), nn.Linear(4, 4).double()
        self.dropout = nn.Dropout(0.1)
        self.reduce = reduce

    def forward(self, x: Tensor, mask: Tensor) -> Any:
        h = self.last(self.dropout(self.first(x).tanh()))
        return self.reduce(h.square(), mask, self)


def in_stages(reduce: Callable[..., Any], micro_batches: int = 2) -> nn.Module:
    plan = Pipeline(micro_batches=micro_batches, example=(batch(), {}))
    return anyrig.spread(Stages(reduce), rig_of(2), plan)


@pytest.mark.parametrize(
    "reduce", [masked_mean, root, deviation, compared_samples], ids=lambda each: each.__name__
)
def test_micro_batches_are_checked(reduce: Callable[..., Any]) -> None:
    model = in_stages(reduce)
    with pytest.raises(BatchError, match=r"Stages returns a number.* not a mean"):
        model(*batch())
    assert in_stages(reduce, micro_batches=1)(*batch()).requires_grad


@pytest.mark.parametrize(
    "reduce", [mean, mean_over_targets, outputs], ids=lambda each: each.__name__
)
def test_micro_batches_of_a_mean_pass(reduce: Callable[..., Any]) -> None:
    model = in_stages(reduce)
    for _ in range(2):
        model(*batch())
    x, mask = batch()
    model(x[:5], mask[:5])


def test_rounding_is_that_of_the_terms_and_not_of_their_mean() -> None:
    class Cancelling(nn.Module):
        """Adds up one value after the other."""

        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones((), dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            return (self.scale * x).cumsum(0)[-1, 0] / len(x)

    x = torch.tensor([0.1, 0.2, 0.3, -0.6], dtype=torch.float64).repeat(2)[:, None]
    value = anyrig.spread(Cancelling(), rig_of(2), Replicas())(x)
    assert 0 < abs(value.item()) < 1e-15


def test_rounding_to_the_type_of_autocast_passes() -> None:
    class InHalf(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x).mean().float()

    module = InHalf().cuda()
    apart = []
    for seed in range(20):
        x = torch.randn(8, 3, generator=torch.Generator().manual_seed(seed)).cuda()
        with torch.autocast("cuda", torch.bfloat16):
            anyrig.spread(module, rig_of(2), Replicas())(x)
            whole, halves = module(x[:4]), (module(x[:2]) + module(x[2:4])) / 2
        apart.append(((whole - halves).abs() / halves.abs()).item())
    assert max(apart) > 1e-3  # so the types matter
