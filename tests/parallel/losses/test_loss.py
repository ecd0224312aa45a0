"""The loss part by part is the loss of the whole batch, and so are the gradients."""

from __future__ import annotations

import functools
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from part_losses import CLASS_WEIGHTS, CLASSES, DEVICES, ROWS, check, classes, scores, squares
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import anyrig
from anyrig.errors import BatchError
from anyrig.parallel.losses.criterions import recognise
from anyrig.parallel.losses.loss import criterion_on, explain_loss, loss_part
from anyrig.parallel.losses.parallel_loss import ParallelLoss
from anyrig.parallel.losses.whole import combine_losses
from anyrig.parallel.parts.scatter import scatter


def relative(output: Tensor, target: Tensor) -> Tensor:
    return ((output - target).abs() / target.abs()).mean()


def per_token(output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    flat = functional.cross_entropy(output.flatten(0, 1), target.flatten(), reduction="sum")
    return flat, (target != -100).sum()


class Doubled(nn.CrossEntropyLoss):
    """Has a forward of its own, so its mean is unknown."""

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return 2 * super().forward(output, target)


class Renamed(nn.MSELoss):
    """Differs from nn.MSELoss only in its name."""


@pytest.mark.gpus(3)
def test_callables_of_ones_own() -> None:
    y = scores(3)
    x = y + 1 + torch.rand_like(y)
    check(relative, x, y, (3, 2, 0))
    check(lambda output, target: (output - target).square(), x, y, (3, 2, 0))
    summed = functools.partial(lambda output, target: (output - target).abs().sum())
    summed.reduction = "sum"  # type: ignore[attr-defined]
    check(summed, x, y, (3, 2, 0))
    tolerant = functools.partial(lambda o, t, by: (o - t - by).abs().sum(), by=torch.ones(3))
    tolerant.reduction = "sum"  # type: ignore[attr-defined]
    check(tolerant, x, y, (3, 2, 0))
    check(Doubled(), scores(CLASSES), classes(ignored=0), (3, 2, 0))
    assert recognise(Doubled()) is None
    assert recognise(Renamed()) is not None


@pytest.mark.gpus(3)
def test_a_callable_may_return_sum_and_count() -> None:
    x, target = scores(7, CLASSES), classes(7)
    whole_x = x.clone().requires_grad_()
    total, count = per_token(whole_x, target)
    (total / count).backward()
    x.requires_grad_()
    loss = ParallelLoss(per_token)(scatter(x, DEVICES, (1, 3, 1)), target)
    loss.backward()
    torch.testing.assert_close(loss.cpu(), total / count, rtol=1e-9, atol=0)
    torch.testing.assert_close(x.grad, whole_x.grad, rtol=1e-9, atol=1e-12)
    counted = ParallelLoss(lambda o, t: ((o - t).sum(), len(o)))
    outputs = scatter(torch.full((5,), 3.0), DEVICES, (1, 3, 1))
    assert counted(outputs, torch.zeros(5)).item() == 3


class Learned(nn.Module):
    """A criterion with a parameter and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(3, dtype=torch.float64))
        self.register_buffer("shift", torch.rand(3, dtype=torch.float64))

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return ((output - target - self.shift) * self.scale).pow(2).mean()


@pytest.mark.gpus(3)
def test_parameters_of_a_criterion_get_their_gradients() -> None:
    check(Learned(), scores(3), scores(3), (1, 2, 3))
    parallel = ParallelLoss(Learned())
    assert [name for name, _ in parallel.named_parameters()] == ["criterion.scale"]


@pytest.mark.gpus(2)
def test_threads_may_copy_one_criterion_at_the_same_time() -> None:
    criterion = nn.CrossEntropyLoss(CLASS_WEIGHTS)
    devices = [torch.device("cuda:0"), torch.device("cuda:1")] * 8
    with ThreadPoolExecutor(8) as pool:
        copies = list(pool.map(functools.partial(criterion_on, criterion), devices))
    for device, copied in zip(devices, copies, strict=True):
        assert copied.weight.device == device  # type: ignore[attr-defined]
    assert criterion.weight is not None
    assert criterion.weight.device.type == "cpu"
    assert criterion_on(criterion, torch.device("cpu")) is criterion


@pytest.mark.gpus(2)
def test_other_dimensions_have_the_rows() -> None:
    x, y = torch.randn(3, ROWS, 2), torch.randn(3, ROWS, 2)
    outputs = scatter(x, ["cuda:0", "cuda:1"], (3, 1), dim=1)
    for reduction in ("mean", "sum", "none"):
        criterion = nn.MSELoss(reduction=reduction)
        loss = ParallelLoss(criterion, dim=1)(outputs, y)
        torch.testing.assert_close(loss.cpu(), criterion(x, y))


@pytest.mark.gpus(2)
def test_structures_of_outputs_and_targets() -> None:
    def criterion(output: dict[str, Tensor], target: tuple[Tensor, Tensor]) -> Tensor:
        return (output["a"] - target[0]).abs().mean() + (output["b"] - target[1]).abs().mean()

    value = {"a": torch.randn(5, 2), "b": torch.randn(5)}
    target = (torch.randn(5, 2), torch.randn(5))
    loss = ParallelLoss(criterion)(scatter(value, ["cuda:0", "cuda:1"], (4, 1)), target)
    torch.testing.assert_close(loss.cpu(), criterion(value, target))


@pytest.mark.gpus(2)
def test_half_precision_does_not_overflow_where_the_mean_does_not() -> None:
    x = torch.full((512, 4), 20.0, dtype=torch.float16, device="cuda:0", requires_grad=True)
    y = torch.zeros_like(x)
    whole = nn.MSELoss()(x, y)
    loss = ParallelLoss(nn.MSELoss())(scatter(x, ["cuda:0", "cuda:1"], (3, 1)), y)
    assert loss.dtype == whole.dtype == torch.float16
    assert loss.item() == whole.item() == 400
    torch.testing.assert_close(torch.autograd.grad(loss, x), torch.autograd.grad(whole, x))
    with torch.autocast("cuda"):
        assert ParallelLoss(nn.MSELoss())([x], y).dtype == nn.MSELoss()(x, y).dtype


@pytest.mark.gpus(3)
def test_coarse_numbers_are_added_in_finer_ones() -> None:
    # The sum of 257 ones is not a bfloat16: the nearest is 256.
    outputs = scatter(torch.ones(257, dtype=torch.bfloat16), DEVICES, (128, 64, 65))
    loss = ParallelLoss(nn.MSELoss())(outputs, torch.zeros(257, dtype=torch.bfloat16))
    assert loss.dtype == torch.bfloat16
    assert loss.item() == 1


@pytest.mark.gpus(2)
def test_half_precision_with_class_weights_of_half_precision() -> None:
    torch.manual_seed(0)
    criterion = nn.CrossEntropyLoss(CLASS_WEIGHTS.half())
    x, y = torch.randn(6, CLASSES, dtype=torch.float16), torch.tensor([0, 1, 2, 3, 4, 0])
    loss = ParallelLoss(criterion)(scatter(x, ["cuda:0", "cuda:1"]), y)
    # Not compared with half precision on the CPU, which rounds more often than a GPU does.
    expected = nn.CrossEntropyLoss(CLASS_WEIGHTS)(x.double(), y)
    torch.testing.assert_close(loss.cpu().double(), expected, rtol=1e-3, atol=0)


def test_what_pytorch_divides_by_is_known() -> None:
    x = torch.ones(2, 3, 5)
    mean = recognise(nn.KLDivLoss(reduction="mean"))
    assert mean is not None
    assert mean.count(x, x, mean.settings) == 30
    by_rows = recognise(functools.partial(functional.kl_div, reduction="batchmean"))
    assert by_rows is not None
    assert by_rows.count(x, x, by_rows.settings) == 2
    assert recognise(functools.partial(functional.mse_loss, size_average=False)) is None
    assert recognise(functools.partial(functional.mse_loss, x)) is None


@pytest.mark.gpus(2)
def test_where_the_loss_is() -> None:
    outputs = scatter(torch.ones(4, 2), ["cuda:1", "cuda:0"])
    assert ParallelLoss(nn.MSELoss())(outputs, torch.ones(4, 2)).get_device() == 1
    assert ParallelLoss(nn.MSELoss(), 0)(outputs, torch.ones(4, 2)).get_device() == 0


@pytest.mark.parametrize(
    ("criterion", "words"),
    [
        (nn.CrossEntropyLoss(), "CrossEntropyLoss: summed over all parts, divided by the total"),
        (nn.MSELoss(reduction="sum"), "MSELoss: the parts' losses are added"),
        (functional.mse_loss, "mse_loss: summed over all parts, divided by the total count"),
        (
            functools.partial(functional.l1_loss, reduction="none"),
            "l1_loss: the parts' losses are joined",
        ),
        (relative, "relative is not one of PyTorch's criterions: .* else each part's loss is weig"),
        (
            functools.partial(functional.mse_loss, weight=torch.ones(1)),
            "mse_loss is not one of PyTorch's criterions",
        ),
        (Doubled(), r"Doubled is not one of .*: if it returns \(sum, count\), the sum over all p"),
    ],
)
def test_the_way_is_explained(criterion: Any, words: str) -> None:
    assert re.match(words, explain_loss(criterion))


class Tagger(nn.Module):
    """Pads to the longest sequence of its part, or to a given length."""

    def __init__(self, total_length: int | None) -> None:
        super().__init__()
        self.gru = nn.GRU(4, CLASSES, batch_first=True)
        self.total_length = total_length

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        hidden, _ = self.gru(packed)
        return pad_packed_sequence(hidden, batch_first=True, total_length=self.total_length)[0]


def by_tokens(logits: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), target.flatten())


@pytest.mark.gpus(2)
@pytest.mark.filterwarnings("ignore:PyTorch was compiled without cuDNN")
@pytest.mark.parametrize(
    ("criterion", "classes"),
    [(by_tokens, True), (nn.MSELoss(), False), (nn.HuberLoss(), False), (squares, False)],
)
def test_outputs_shorter_than_the_target(criterion: Any, classes: bool) -> None:
    """PyTorch says "Expected input batch_size (35) to match target batch_size (45)", or broadcasts
    a length of one.
    """
    x = torch.randn(10, 9, 4)
    target = torch.randint(CLASSES, (10, 9)) if classes else torch.randn(10, 9, CLASSES)
    for shortest in (7, 1):
        lengths = torch.tensor([9] * 5 + [shortest] * 5)
        one, several = (Tagger(length).cuda() for length in (None, 9))
        several.load_state_dict(one.state_dict())
        short = anyrig.spread(one, anyrig.Rig.parse("cuda:0,1"), loss=criterion)
        with pytest.raises(BatchError, match=rf"\(5, {shortest}, 5\).*total_length="):
            short(x, lengths, target=target)
        model = anyrig.spread(several, anyrig.Rig.parse("cuda:0,1"), loss=criterion)
        loss = model(x, lengths, target=target)
        expected = criterion(one(x.cuda(), lengths), target.cuda())
        torch.testing.assert_close(loss, expected)


@pytest.mark.gpus(2)
def test_columns_against_vectors_are_not_broadcast() -> None:
    """On one device [N, 1] against [N] pairs all samples; a part would pair only its own."""
    outputs = scatter(torch.randn(4, 1), ["cuda:0", "cuda:1"])
    words = r"MSELoss .*pairs.* \(2, 1\) and \(2,\).*Give both the same shape"
    with pytest.raises(BatchError, match=words):
        ParallelLoss(nn.MSELoss())(outputs, torch.randn(4))


@pytest.mark.gpus(2)
def test_other_errors_of_a_criterion_stay_what_they_are() -> None:
    def failing(output: Tensor, target: Tensor) -> Tensor:
        raise torch.OutOfMemoryError("full") if output.dim() == 1 else ValueError("mine")

    with pytest.raises(torch.OutOfMemoryError):
        ParallelLoss(failing)(scatter(torch.ones(4), ["cuda:0", "cuda:1"]), torch.ones(4, 3))
    with pytest.raises(ValueError, match=r"^mine$"):
        ParallelLoss(failing)(scatter(torch.ones(4, 3), ["cuda:0", "cuda:1"]), torch.ones(4, 3))


@pytest.mark.gpus(2)
def test_means_of_half_precision_times_samples_do_not_overflow() -> None:
    outputs = scatter(torch.full((8192,), 20.0, dtype=torch.float16), ["cuda:0", "cuda:1"])
    loss = ParallelLoss(lambda output, target: output.mean())(outputs, torch.zeros(8192))
    assert loss.dtype == torch.float16
    assert loss.item() == 20


def test_what_is_no_loss() -> None:
    with pytest.raises(BatchError, match="the loss <lambda> returned dict; return a tensor, or"):
        ParallelLoss(lambda output, target: {})([torch.ones(2)], torch.ones(2))
    with pytest.raises(BatchError, match="there are no outputs"):
        ParallelLoss(nn.MSELoss())([], torch.ones(2))
    with pytest.raises(BatchError, match=r"3 samples to divide, but the parts have 2 = 2"):
        ParallelLoss(nn.MSELoss())([torch.ones(2)], torch.ones(3))
    parts = [
        loss_part(nn.MSELoss(reduction=reduction), torch.ones(2), torch.ones(2), 2)
        for reduction in ("mean", "sum")
    ]
    with pytest.raises(BatchError, match="reduced in different ways for different parts"):
        combine_losses(parts, "cpu")
