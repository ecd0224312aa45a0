"""What a module computes is refused in a first call if it does not follow from a part's halves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from pipeline.beside_one_device import rig_of
from torch import Tensor, nn
from torch.nn import functional

import anyrig
from anyrig import Pipeline, Replicas
from anyrig.errors import BatchError

pytestmark = pytest.mark.gpus(2)

ROWS = 8


class Net(nn.Module):
    """Returns what a function makes of the errors of positions and a mask; has dropout."""

    def __init__(self, reduce: Callable[[Tensor, Tensor, nn.Module], Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4).double()
        self.dropout = nn.Dropout(0.5)
        self.reduce = reduce
        self.calls: list[int] = []

    def forward(self, x: Tensor, mask: Tensor) -> Any:
        self.calls.append(len(x))
        h = self.dropout(self.linear(x))
        return self.reduce(h.square(), mask, self)


def batch() -> tuple[Tensor, Tensor]:
    numbers = torch.Generator().manual_seed(3)
    x = torch.randn(ROWS, 3, dtype=torch.float64, generator=numbers)
    return x, (torch.rand(ROWS, 4, generator=numbers) > 0.4).double()


def masked_mean(errors: Tensor, mask: Tensor, module: nn.Module) -> Tensor:
    return (errors * mask).sum() / mask.sum()


def masked_mean_by_a_number(errors: Tensor, mask: Tensor, module: nn.Module) -> Any:
    return {"loss": (errors * mask).sum() / mask.sum().item(), "count": mask.sum()}


def second_of_two(errors: Tensor, mask: Tensor, module: nn.Module) -> Any:
    return errors.mean(), [(errors * mask).sum() / mask.sum().clamp(min=1)]


def root(errors: Tensor, mask: Tensor, module: nn.Module) -> Tensor:
    return errors.mean().sqrt()


def deviation(errors: Tensor, mask: Tensor, module: nn.Module) -> Tensor:
    return errors.std()


def compared_samples(errors: Tensor, mask: Tensor, module: nn.Module) -> Tensor:
    return (errors @ errors.T).logsumexp(1).mean()


def total(errors: Tensor, mask: Tensor, module: nn.Module) -> Tensor:
    return (errors * mask).sum()


def mean(errors: Tensor, mask: Tensor, module: nn.Module) -> Tensor:
    return (errors * mask).mean()


def mean_by_a_number(errors: Tensor, mask: Tensor, module: nn.Module) -> Any:
    return errors.sum(), errors.sum() / errors.numel()


def mean_over_targets(errors: Tensor, mask: Tensor, module: nn.Module) -> Tensor:
    targets = torch.where(mask[:, 0] > 0, 1, -100)
    return 2 * functional.cross_entropy(errors, targets) + errors.mean()


def penalty(errors: Tensor, mask: Tensor, module: nn.Module) -> Any:
    return errors, sum(each.square().sum() for each in module.parameters())


def outputs(errors: Tensor, mask: Tensor, module: nn.Module) -> Tensor:
    return errors * mask


def noise(errors: Tensor, mask: Tensor, module: nn.Module) -> Tensor:
    return (errors * torch.rand_like(errors)).mean()


@pytest.mark.parametrize(
    "reduce",
    [masked_mean, masked_mean_by_a_number, second_of_two, root, deviation, compared_samples],
    ids=lambda each: each.__name__,
)
def test_what_is_no_mean_over_samples_is_refused(reduce: Callable[..., Any]) -> None:
    model = anyrig.spread(Net(reduce), rig_of(2), Replicas())
    with pytest.raises(
        BatchError, match=r"Net returns a number.* for 4 samples.* no mean over"
    ) as e:
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
    with pytest.raises(BatchError, match="no mean over samples"):
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
    with pytest.raises(BatchError, match=r"Net returns a number, which is .* no mean over"):
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
    with pytest.raises(BatchError, match="no sum over samples, as which the loss takes it"):
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
    with pytest.raises(BatchError, match="no mean over samples"):
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
    with pytest.raises(BatchError, match=r"Stages returns a number.* no mean over samples"):
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


def softmax(x: Tensor) -> Tensor:
    return x.softmax(0)


def centred(x: Tensor) -> Any:
    return {"scores": [x, x - x.mean(0)]}


def attending(x: Tensor) -> Tensor:
    return (x @ x.T).softmax(1) @ x


def reversed_samples(x: Tensor) -> Tensor:
    return x.flip(0)


def scaled(x: Tensor) -> Tensor:
    return x / x.detach().abs().max()


class Relating(nn.Module):
    def __init__(self, relate: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 3).double(), nn.Linear(3, 3).double()
        self.relate = relate

    def forward(self, x: Tensor) -> Any:
        return self.relate(self.last(self.first(x).tanh()))


@pytest.mark.parametrize("plan", [Replicas(), Pipeline(micro_batches=2)])
@pytest.mark.parametrize("learns", [True, False])
@pytest.mark.parametrize(
    "relate",
    [softmax, centred, attending, reversed_samples, scaled],
    ids=lambda each: each.__name__,
)
def test_samples_that_are_related_are_refused(
    relate: Callable[[Tensor], Any], learns: bool, plan: Replicas | Pipeline
) -> None:
    x, _ = batch()
    if isinstance(plan, Pipeline):
        plan = Pipeline(micro_batches=2, example=((x,), {}))
    model = anyrig.spread(Relating(relate), rig_of(2), plan)
    place = r" \['scores'\]\[1\]" if relate is centred else ""
    with (
        torch.set_grad_enabled(learns),
        pytest.raises(
            BatchError, match=rf"Relating returns a tensor{place} of shape \(4, 3\), whi"
        ),
    ):
        model(x)


@pytest.mark.parametrize("loss", [nn.MSELoss(), lambda output, target: (output - target).mean()])
def test_related_samples_are_refused_beside_a_loss(loss: Any) -> None:
    x, _ = batch()
    model = anyrig.spread(Relating(softmax), rig_of(2), Replicas(), loss=loss)
    with pytest.raises(BatchError, match="the module relates samples to each other"):
        model(x, target=x)


@pytest.mark.parametrize(
    "module",
    [nn.LSTM(3, 3), nn.TransformerEncoderLayer(3, 1, 8)],
    ids=lambda each: type(each).__name__,
)
def test_sequences_in_the_first_dimension_are_refused_with_the_cure(module: nn.Module) -> None:
    x = torch.randn(8, 4, 3)
    model = anyrig.spread(module, rig_of(2), Replicas())
    with pytest.raises(
        BatchError, match=r"without batch_first=True, say so: spread\(module, dim=1\)"
    ):
        model(x)
    model = anyrig.spread(module, rig_of(2), Replicas(), dim=1)
    assert model(x) is not None


def test_what_has_no_gradient_may_relate_samples_in_training() -> None:
    def with_metric(x: Tensor) -> Any:
        return x, x.detach().softmax(0), x.detach().std()

    x, _ = batch()
    assert len(anyrig.spread(Relating(with_metric), rig_of(2), Replicas())(x)) == 3


def test_quantised_layers_are_not_compared() -> None:
    class Scaled(Relating):
        def __init__(self) -> None:
            super().__init__(scaled)
            numbers = torch.ones(2, dtype=torch.int8)
            self.quantised = nn.Parameter(numbers, requires_grad=False)

    x, _ = batch()
    assert anyrig.spread(Scaled(), rig_of(2), Replicas())(x).requires_grad


def test_who_accepts_local_statistics_gets_them() -> None:
    plan = Replicas(local_statistics=True)
    x, mask = batch()
    assert anyrig.spread(Relating(softmax), rig_of(2), plan)(x).requires_grad
    assert anyrig.spread(Net(total), rig_of(2), plan)(x, mask).requires_grad
    with pytest.raises(BatchError, match=r"use plan=Replicas\(local_statistics=True\)"):
        anyrig.spread(Relating(softmax), rig_of(2), Replicas())(x)


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
