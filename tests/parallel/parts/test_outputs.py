"""What `spread` returns is what one device returns, or a refusal that says what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from output_modules import Returning, spread_and_one
from torch import Tensor, nn
from torch.nn import functional
from trained_models import CLASSES, first_devices, on_lead

import anyrig
from anyrig.errors import BatchError

pytestmark = [
    pytest.mark.filterwarnings("ignore:PyTorch was compiled without cuDNN"),
    pytest.mark.filterwarnings("ignore::anyrig.parallel.BatchStatisticsWarning"),
    pytest.mark.usefixtures("double_precision"),
]

SHARES = pytest.mark.parametrize("shares", ["auto", [3, 2, 1], [0, 1, 3]])


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
