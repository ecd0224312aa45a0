"""What `spread` returns is what one device returns, or a refusal that says what to do."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from trained_models import CLASSES, first_devices, on_lead

import anyrig
from anyrig.errors import BatchError
from anyrig.parallel.parts.divided_dimension import Answer, read_change, read_shapes

pytestmark = [
    pytest.mark.filterwarnings("ignore:PyTorch was compiled without cuDNN"),
    pytest.mark.filterwarnings("ignore::anyrig.parallel.BatchStatisticsWarning"),
]

SHARES = pytest.mark.parametrize("shares", ["auto", [3, 2, 1], [0, 1, 3]])


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


class Returning(nn.Module):
    """A linear layer; what is returned is made of its output."""

    def __init__(self, make: Callable[..., Any], width: int = CLASSES) -> None:
        super().__init__()
        self.linear = nn.Linear(4, width)
        self.make = make

    def forward(self, x: Tensor, *rest: Any) -> Any:
        return self.make(self.linear(x), *rest)


class OwnLoss(Returning):
    """Computes the loss in its forward, as the models of transformers do."""

    def __init__(self) -> None:
        super().__init__(lambda logits, labels: None)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Any]:  # type: ignore[override]
        logits = self.linear(x)
        loss = functional.cross_entropy(logits, labels)
        return {
            "loss": loss,
            "logits": logits,
            "kept": loss[None],
            "read": loss.item(),
            "complex": torch.complex(loss, -loss),
        }


def spread_and_one(module: nn.Module, shares: Any, **options: Any) -> tuple[Any, Any, Any]:
    one, several = on_lead(module), on_lead(module)
    return (
        one,
        several,
        anyrig.spread(several, first_devices(3), plan=anyrig.Replicas(shares=shares), **options),
    )


@pytest.mark.gpus(3)
@SHARES
@pytest.mark.parametrize("samples", [1, 2, 3, 6, 7, 11])
def test_a_model_that_computes_its_own_loss(samples: int, shares: Any) -> None:
    one, several, model = spread_and_one(OwnLoss(), shares)
    x, y = torch.randn(samples, 4), torch.randint(CLASSES, (samples,))
    expected, found = one(x.cuda(), y.cuda()), model(x, y)
    assert found["loss"].shape == ()
    assert found["loss"].get_device() == 0
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=0)
    expected["loss"].backward()
    found["loss"].mean().backward()  # a line for nn.DataParallel, without effect here
    torch.testing.assert_close(
        several.linear.weight.grad, one.linear.weight.grad, rtol=1e-9, atol=0
    )
    (again,) = torch.autograd.grad(model(x, y)["kept"], several.linear.weight)
    torch.testing.assert_close(again, one.linear.weight.grad, rtol=1e-9, atol=0)


@pytest.mark.gpus(3)
@SHARES
@pytest.mark.parametrize("gives_target", [True, False])
def test_the_models_own_loss_as_the_loss(shares: Any, gives_target: bool) -> None:
    """A sum and a count can also be of something other than samples."""

    def ratio(output: dict[str, Tensor], target: Any) -> tuple[Tensor, Tensor]:
        counted = output["labels"] != 0
        losses = functional.cross_entropy(output["logits"], output["labels"], reduction="none")
        return (losses * counted).sum(), counted.sum()

    def keep(logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
        loss = functional.cross_entropy(logits, labels)
        return {"loss": loss, "logits": logits, "labels": labels}

    x, y = torch.randn(7, 4), torch.tensor([0, 0, 0, 1, 2, 0, 3])
    for criterion in (lambda output, target: output["loss"], ratio):
        one, several, model = spread_and_one(Returning(keep), shares, loss=criterion)
        expected = criterion(one(x.cuda(), y.cuda()), None)
        expected = expected[0] / expected[1] if isinstance(expected, tuple) else expected
        found = model(x, y, target=y if gives_target else None)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=0)
        expected.backward()
        found.backward()
        here, there = several.linear.weight.grad, one.linear.weight.grad
        torch.testing.assert_close(here, there, rtol=1e-9, atol=1e-15)


@pytest.mark.gpus(3)
@pytest.mark.parametrize(
    ("dtype", "number"), [(torch.bfloat16, 1.5078125), (torch.float16, 1.5009765625)]
)
def test_means_in_half_precision_are_taken_in_finer_numbers(
    dtype: torch.dtype, number: float
) -> None:
    module = Returning(lambda y: torch.full((), number, dtype=dtype, device=y.device))
    model = anyrig.spread(on_lead(module), first_devices(3), plan=anyrig.Replicas(shares=[1, 1, 1]))
    found = model(torch.ones(3, 4))
    assert found.dtype == dtype
    assert found.item() == number


@pytest.mark.gpus(2)
@pytest.mark.parametrize("shares", [[1, 2], [2, 1]])
def test_a_mean_has_the_finest_dtype_of_the_parts(shares: list[int]) -> None:
    """A third has more digits in double precision than in single precision."""
    module = Returning(lambda y: y.new_ones((), dtype=(torch.float32, torch.float64)[len(y) - 1]))
    found = anyrig.spread(on_lead(module), first_devices(2), plan=anyrig.Replicas(shares=shares))(
        torch.ones(3, 4)
    )
    assert found.dtype == torch.float64
    assert found.item() == pytest.approx(1.0, abs=1e-15)


@pytest.mark.gpus(3)
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda y: y.argmax(),
            r"the value .*: a single int64 from each part is not a mean.*scattered",
        ),
        (lambda y: {"hit": (y > 0).any()}, r"\['hit'\] .* single bool .* entry for each sample"),
        (
            lambda y: {"rows": len(y)},
            r"\['rows'\] .* differs between .*\(4, 2, 1\).*entry for each",
        ),
        (lambda y: (y, y.shape), r"\[1\] .*\(torch.Size\(\[4, 5\]\), .*entry for each sample"),
        (lambda y: [str(y.device)], r"\[0\] .*\('cuda:0', 'cuda:1', 'cuda:2'\).*entry for each"),
        (
            lambda y: y @ y.T,
            r"shapes \(4, 4\), \(2, 2\), \(1, 1\).*one block of the whole.*outside the module",
        ),
        (lambda y: y.T @ y, r"no dimension of the shapes \(5, 5\).* \(4, 2 and 1\).*expand\(\)"),
        (
            lambda y: y.T @ y > 0,
            r"no dimension of the shapes \(5, 5\).* \(4, 2 and 1\).*expand\(\)",
        ),
    ],
)
def test_what_is_not_the_whole_batchs_is_refused(make: Any, message: str) -> None:
    model = anyrig.spread(
        on_lead(Returning(make)), first_devices(3), plan=anyrig.Replicas(shares=[4, 2, 1])
    )
    with pytest.raises(BatchError, match=message):
        model(torch.randn(7, 4))


@pytest.mark.gpus(2)
def test_pairs_of_samples_are_refused_where_parts_are_equal_too() -> None:
    model = anyrig.spread(on_lead(Returning(lambda y: y @ y.T)), first_devices(2))
    with pytest.raises(BatchError, match=r"dimensions 0 and 1 .* \(2 and 2\).* outside the module"):
        model(torch.randn(4, 4))


# The module's function of [samples, 4], and the number of samples of two equal parts.
DIMENSIONS: dict[str, tuple[Callable[[Tensor], Tensor], int]] = {
    "as many classes as samples": (lambda y: y, 4),
    "as many classes as samples, transposed": (lambda y: y.T.contiguous(), 4),
    "states of a recurrent layer": (lambda y: y[None], 3),
    "states of two layers, two samples": (lambda y: torch.stack([y, -y]), 2),
    "states of two layers, one sample": (lambda y: torch.stack([y, -y]), 1),
    "one state, one sample": (lambda y: y[None, :, None], 1),
    "one value for one sample": (lambda y: y.sum(1), 1),
    "one value for one sample, a column": (lambda y: y.sum(1, keepdim=True), 1),
    "several entries a sample": (lambda y: y.reshape(-1, 2), 2),
    "several entries a sample, fewer columns": (lambda y: y.reshape(-1, 1), 2),
    "a mean, with a dimension": (lambda y: y.mean()[None], 1),
    "none of them": (lambda y: y[:0], 2),
}


@pytest.mark.gpus(2)
@pytest.mark.parametrize("case", DIMENSIONS)
def test_the_dimension_that_was_divided_is_found(case: str) -> None:
    make, samples = DIMENSIONS[case]
    one = on_lead(Returning(make, 4))
    model = anyrig.spread(one, first_devices(2))
    seen: list[int] = []
    one.register_forward_hook(lambda *_: seen.append(1))
    x = torch.randn(2 * samples, 4, device="cuda:0")
    for _ in range(3):
        torch.testing.assert_close(model(x), one(x), rtol=1e-9, atol=0)
    assert len(seen) <= 3 * 3 + 1  # at most one further call, in the first step


@pytest.mark.gpus(2)
@pytest.mark.parametrize("counts", [[2, 2, 2, 2], [3, 1, 2, 2], [1, 3, 0, 5], [1, 1, 1, 0]])
def test_entries_that_a_mask_chose(counts: list[int]) -> None:
    """Parts have equal or different numbers of entries, as wide as a part has samples."""

    class Choosing(nn.Linear):
        def forward(self, x: Tensor, chosen: Tensor) -> Tensor:
            return super().forward(x)[chosen]

    chosen = torch.arange(5) < torch.tensor(counts)[:, None]
    one = on_lead(Choosing(4, 2))
    model = anyrig.spread(one, first_devices(2))
    x = torch.randn(4, 5, 4)
    expected = one(x.cuda(), chosen.cuda())
    torch.testing.assert_close(model(x, chosen), expected, rtol=1e-9, atol=0)


@pytest.mark.gpus(3)
@pytest.mark.parametrize("shares", [[1, 1, 0], [1, 2, 0], [0, 3, 2], [1, 1, 1]])
@pytest.mark.parametrize("whole_numbers", [False, True])
def test_one_entry_that_a_mask_chose_from_each_part(shares: list[int], whole_numbers: bool) -> None:
    """The entry is joined, and a mean of the same shape is averaged."""

    class Choosing(Returning):
        def forward(self, x: Tensor, chosen: Tensor) -> Any:  # type: ignore[override]
            y = self.linear(x).sum(1)
            numbers = x.long().sum(1) if whole_numbers else y
            return {"chosen": numbers[chosen], "column": y[chosen, None], "mean": y.mean()[None]}

    one = on_lead(Choosing(lambda y: y))
    model = anyrig.spread(one, first_devices(3), plan=anyrig.Replicas(shares=shares))
    seen: list[int] = []
    one.register_forward_hook(lambda *_: seen.append(1))
    parts = [2 * share for share in shares]
    chosen = torch.cat([torch.arange(part) == part - 1 for part in parts])
    x = 9 * torch.randn(sum(parts), 4)
    for _ in range(2):
        expected = one(x.cuda(), chosen.cuda())
        torch.testing.assert_close(model(x, chosen), expected, rtol=1e-9, atol=1e-12)
    # One call for each part, one by the test itself, and a further call in the first step only.
    assert len(seen) == 2 * (sum(part > 0 for part in parts) + 1) + 1
    few = torch.zeros(sum(parts), dtype=torch.bool)
    few[0] = True  # parts with other numbers of entries are joined, too
    expected = one(x.cuda(), few.cuda())
    torch.testing.assert_close(model(x, few), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.gpus(2)
def test_one_element_of_each_part_that_two_parts_cannot_explain() -> None:
    """The refusals name the shapes, the samples and the remedy."""

    def fail(y: Tensor) -> Tensor:
        if len(y) > 3:
            raise ValueError("too many")
        return y.mean()[None]

    cases: dict[str, Callable[[Tensor], Tensor]] = {
        r"shapes \(1,\), \(1,\) do not show.* 3 and 2 samples.*with 5 samples.*ValueError: too many"
        r".*A mean must be a tensor without dimensions$": fail,
        r"shapes \(1,\), \(1,\) do not show.*with 5 samples.*did not show it either\. Return": (
            lambda y: y.mean()[None] if len(y) < 4 else y.mean()
        ),
        r"dimensions 1 of the shapes \(1, 1\), \(1, 1\) change with the samples \(3 and 2\)": (
            lambda y: y[:1, : 1 + len(y) // 4]
        ),
    }
    for message, make in cases.items():
        model = anyrig.spread(
            on_lead(Returning(make)), first_devices(2), plan=anyrig.Replicas(shares=[3, 2])
        )
        for _ in range(2):
            with pytest.raises(BatchError, match=message):
                model(torch.randn(5, 4))


@pytest.mark.gpus(2)
def test_a_time_first_module_divided_along_time_is_told_of_dim() -> None:
    module = on_lead(nn.LSTM(4, 6))
    x = torch.randn(6, 3, 4)
    with pytest.raises(
        BatchError,
        match=r"LSTM returns a tensor \[0\] .* without batch_first=True, say so: spread\(module",
    ):
        anyrig.spread(module, first_devices(2))(x)
    model = anyrig.spread(module, first_devices(2), dim=1)
    torch.testing.assert_close(model(x), module(x.cuda()), rtol=1e-9, atol=1e-12)


@pytest.mark.gpus(2)
@pytest.mark.parametrize("samples", [2, 4, 6, 9])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("layers", [1, 2])
def test_recurrent_layers(kind: Any, layers: int, samples: int) -> None:
    """The output has the batch in dimension 0, the states in dimension 1."""
    module = kind(4, 6, layers, batch_first=True, bidirectional=layers == 2)
    one, several = on_lead(module), on_lead(module)
    model = anyrig.spread(several, first_devices(2))
    x = torch.randn(samples, 5, 4, device="cuda:0")
    expected, found = one(x), model(x)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-14)
    for output in (expected, found):
        state = output[1][1] if kind is nn.LSTM else output[1]
        (output[0].square().sum() + state.pow(3).sum()).backward()
    for here, there in zip(several.parameters(), one.parameters(), strict=True):
        torch.testing.assert_close(here.grad, there.grad, rtol=1e-9, atol=1e-14)


class Stateful(nn.Module):
    """Has all kinds of state that a call can change."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("replaced", torch.zeros(()))
        self.last: Any = None
        self.drawn: Any = None

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.replaced = self.replaced + 1
        self.last = len(x)
        self.drawn = random.random()
        return functional.dropout(self.norm(x))[None]


@pytest.mark.gpus(2)
def test_the_call_once_more_leaves_no_trace() -> None:
    """Parts of different sizes need no further call, and leave the same state behind."""
    left = []
    for shares in ([1, 1], [3, 5]):  # with 8 samples, only the first is unclear
        torch.manual_seed(0)
        random.seed(0)
        module = on_lead(Stateful())
        seen: list[int] = []
        module.register_forward_hook(lambda *_, seen=seen: seen.append(1))
        model = anyrig.spread(module, first_devices(2), plan=anyrig.Replicas(shares=shares))
        x = torch.arange(32.0, device="cuda:0").view(8, 4) % 7
        found = model(x)
        assert found.requires_grad
        assert found.shape == (1, 8, 4)
        state = (module.calls, module.replaced, module.norm.num_batches_tracked)
        left.append((len(seen), [value.item() for value in state], torch.rand(1).item()))
        assert module.last == (4 if shares == [1, 1] else 3)
        # Two draws: the two replicas share Python's generator.
        assert random.getstate() == _after(random.Random(0), 2)
        mean = x[: module.last].mean(0)
        torch.testing.assert_close(module.norm.running_mean, 0.1 * mean)
    (calls, *same), (fewer, *others) = left
    assert (calls, fewer) == (3, 2)
    assert same == others


def _after(numbers: random.Random, draws: int) -> Any:
    for _ in range(draws):
        numbers.random()
    return numbers.getstate()


@pytest.mark.gpus(2)
def test_random_numbers_of_the_device_are_not_used_up() -> None:
    states = []
    for shares in ([1, 1], [4, 4]):
        torch.cuda.manual_seed_all(0)
        model = anyrig.spread(
            on_lead(Stateful()), first_devices(2), plan=anyrig.Replicas(shares=shares)
        )
        x = torch.randn(8, 4, device="cuda:0")
        if shares == [1, 1]:
            model(x)
        else:
            model.scattered(x)  # joins nothing, so it needs no further call
        states.append(torch.cuda.get_rng_state(0))
    assert torch.equal(*states)


@pytest.mark.gpus(2)
def test_weights_cast_in_the_call_once_more_are_not_kept() -> None:
    """Weights that autocast caches in a forward without gradients would get none in the next."""
    module = on_lead(Returning(lambda y: y[None], 4)).float()
    model = anyrig.spread(module, first_devices(3), plan=anyrig.Replicas(shares=[1, 4, 4]))
    x = torch.randn(9, 4, device="cuda:0", dtype=torch.float32)
    with torch.autocast("cuda"):
        model(x[:2])  # on the lead, only the further call computes
        model(x).sum().backward()
    found = module.linear.weight.grad.clone()
    module.zero_grad()
    with torch.autocast("cuda"):
        module(x).sum().backward()
    torch.testing.assert_close(found, module.linear.weight.grad, rtol=1e-2, atol=1e-2)


@pytest.mark.gpus(2)
def test_a_module_that_cannot_be_called_once_more() -> None:
    """The refusal says so, and parts of different sizes need no further call."""

    def once(y: Tensor) -> Tensor:
        if len(y) == 3:
            raise ValueError("not three")
        return y[None]

    model = anyrig.spread(on_lead(Returning(once)), first_devices(2))
    words = (
        r"\(1, 2, 5\), \(1, 2, 5\) do not show which dimension has the 2 and 2 samples.*"
        r"with 3 samples.*ValueError: not three.*h\.transpose\(0, 1\).*different numbers"
    )
    with pytest.raises(BatchError, match=words):
        model(torch.randn(4, 4))
    unequal = anyrig.spread(
        on_lead(Returning(once)), first_devices(2), plan=anyrig.Replicas(shares=[1, 3])
    )
    assert unequal(torch.randn(8, 4)).shape == (1, 8, 5)


@pytest.mark.gpus(2)
def test_answers_are_for_calls_that_are_alike() -> None:
    def make(y: Tensor, last: bool) -> Tensor:
        return y.T.contiguous() if last else y

    one = on_lead(Returning(make, 4))
    model = anyrig.spread(one, first_devices(2))
    x = torch.randn(8, 4, device="cuda:0")
    for last in (True, False, True):
        torch.testing.assert_close(model(x, last), one(x, last), rtol=1e-9, atol=0)


@pytest.mark.gpus(2)
def test_answers_are_for_a_mode() -> None:
    class Modal(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            y = super().forward(x)
            return y if self.training else y.T.contiguous()

    one = on_lead(Modal(4, 4))
    model = anyrig.spread(one, first_devices(2))
    x = torch.randn(8, 4, device="cuda:0")
    for training in (True, False, True):
        one.train(training)
        torch.testing.assert_close(model(x), one(x), rtol=1e-9, atol=0)


@pytest.mark.gpus(2)
@pytest.mark.parametrize("lengths", [[4, 1, 2, 3], [2, 1, 4, 3]])
def test_lengths_in_dimension_0_are_not_joined(lengths: list[int]) -> None:
    """Time steps come first, and each part has as many as its longest sequence."""

    class Steps(nn.Linear):
        def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
            return super().forward(x).transpose(0, 1)[: int(lengths.max())]

    model = anyrig.spread(on_lead(Steps(4, 3)), first_devices(2))
    with pytest.raises(BatchError, match=r"total_length=|the length of the whole batch"):
        model(torch.randn(4, 5, 4), torch.tensor(lengths))


@pytest.mark.gpus(2)
@pytest.mark.parametrize(
    "make",
    [
        lambda y: len(y),
        lambda y: (y, y.shape),
        lambda y: 3 * len(y),
        lambda y: y.new_tensor(1).long(),
    ],
)
def test_counts_of_equal_parts_are_refused(make: Any) -> None:
    model = anyrig.spread(on_lead(Returning(make)), first_devices(2))
    for samples in (2, 4, 6):
        with pytest.raises(BatchError, match=r"not a mean over samples.*entry for each sample"):
            model(torch.randn(samples, 4))


@pytest.mark.gpus(2)
@pytest.mark.parametrize("number", [0, 1, 6, True, torch.Size([2, 4])])
def test_whole_numbers_that_are_constant(number: Any) -> None:
    one = on_lead(Returning(lambda y: {"y": y, "number": number}))
    model = anyrig.spread(one, first_devices(2))
    for samples in (2, 4, 6, 7):
        assert model(torch.randn(samples, 4))["number"] == number


@pytest.mark.gpus(2)
def test_what_no_replica_made_is_itself() -> None:
    table = torch.randn(3, 3)
    model = anyrig.spread(on_lead(Returning(lambda y: (y, table))), first_devices(2))
    torch.testing.assert_close(model(torch.randn(5, 4))[1].cpu(), table)


A = Answer
TABLE: list[tuple[list[tuple[int, ...]], list[int], int, Answer]] = [
    ([(3, 7), (2, 7)], [3, 2], 0, A(0)),
    ([(1, 3, 7), (1, 2, 7)], [3, 2], 0, A(1)),
    ([(7, 3), (7, 2)], [3, 2], -2, A(1)),
    ([(3,), (2,)], [3, 2], 1, A(0)),
    ([(3, 7), (3, 7)], [3, 3], 0, A(0)),
    ([(3, 3), (3, 3)], [3, 3], 0, A(candidates=(0, 1))),
    ([(1, 3, 7), (1, 3, 7)], [3, 3], 0, A(candidates=(0, 1))),
    ([(6, 7), (6, 7)], [3, 3], 0, A(candidates=(0,))),
    ([(1,), (1,)], [1, 1], 0, A(candidates=(0,))),
    ([(1,), (1,)], [3, 2], 0, A()),
    ([(1, 1), (1, 1)], [3, 3], 0, A()),
    ([(9, 7), (5, 7)], [3, 2], 0, A(0)),
    ([(9, 3), (5, 3)], [3, 3], 0, A(candidates=(0, 1), differing=(0,))),
    ([(0, 7), (0, 7)], [3, 2], 0, A(0)),
    ([(5, 7), (5, 7)], [3, 2], 0, A(candidates=(0,))),
    ([(3, 9), (3, 5)], [3, 3], 0, A(differing=(1,))),
    ([(3, 9), (2, 5)], [3, 2], 0, A(differing=(1,))),
    ([(3, 3), (2, 2)], [3, 2], 0, A(differing=(1,))),
    ([(9, 3), (5, 2)], [3, 2], 0, A(differing=(1,))),
    ([(7,), (7,)], [3, 2], 1, A()),
]


@pytest.mark.parametrize(("shapes", "samples", "dim", "expected"), TABLE)
def test_what_shapes_say(shapes: Any, samples: Any, dim: int, expected: Answer) -> None:
    assert read_shapes(shapes, samples, dim) == expected


@pytest.mark.parametrize(
    ("first", "probed", "expected"),
    [
        ((3, 3), (4, 3), A(0)),
        ((3, 3), (3, 4), A(1)),
        ((3, 3), (4, 4), A(candidates=(0, 1))),
        ((3, 3), (3, 3), A()),
        ((3, 3), (7, 3), A(0)),  # any number along the divided dimension
        ((3, 3), (3, 7), A()),
    ],
)
def test_what_one_more_sample_says(first: Any, probed: Any, expected: Answer) -> None:
    assert read_change(A(candidates=(0, 1)), first, 3, probed, 0) == expected


def test_parts_that_differ_where_one_more_sample_changes_nothing() -> None:
    unclear = A(candidates=(0, 1), differing=(0,))
    assert read_change(unclear, (9, 3), 3, (9, 3), 0) == A(0)
    assert read_change(unclear, (9, 3), 3, (9, 4), 0) == A(1)
