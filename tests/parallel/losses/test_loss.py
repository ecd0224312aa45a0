"""The loss part by part is the loss of the whole batch, and so are the gradients."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
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

DEVICES = ["cuda:0", "cuda:1", "cuda:2"]
ROWS, CLASSES = 12, 5
REDUCTIONS = pytest.mark.parametrize("reduction", ["mean", "sum", "none"])


def scores(*shape: int) -> Tensor:
    return torch.randn(ROWS, *shape, dtype=torch.float64)


def classes(*shape: int, ignored: float = 0.3, index: int = -100) -> Tensor:
    target = torch.randint(CLASSES, (ROWS, *shape))
    return target.masked_fill(torch.rand(target.shape) < ignored, index)


CLASS_WEIGHTS = torch.tensor([0.5, 2.0, 0.0, 1.0, 3.0], dtype=torch.float64)

# name -> (makes a criterion from its reduction, output, target)
CASES: dict[str, tuple[Callable[[str], Any], Callable[[], Tensor], Callable[[], Tensor]]] = {
    "cross entropy": (
        lambda r: nn.CrossEntropyLoss(reduction=r),
        lambda: scores(CLASSES),
        lambda: classes(),
    ),
    "cross entropy, per token": (
        lambda r: nn.CrossEntropyLoss(reduction=r, ignore_index=0),
        lambda: scores(CLASSES, 7),
        lambda: classes(7, index=0),
    ),
    "cross entropy, per pixel, weights": (
        lambda r: nn.CrossEntropyLoss(CLASS_WEIGHTS, reduction=r, ignore_index=1),
        lambda: scores(CLASSES, 3, 4),
        lambda: classes(3, 4, index=1),
    ),
    "cross entropy, ignored beyond the classes": (
        lambda r: nn.CrossEntropyLoss(CLASS_WEIGHTS, reduction=r, ignore_index=255),
        lambda: scores(CLASSES, 3, 4),
        lambda: classes(3, 4, index=255),
    ),
    "cross entropy, smoothed": (
        lambda r: nn.CrossEntropyLoss(reduction=r, label_smoothing=0.2),
        lambda: scores(CLASSES),
        lambda: classes(),
    ),
    "cross entropy, smoothed, weights": (
        lambda r: nn.CrossEntropyLoss(CLASS_WEIGHTS, reduction=r, label_smoothing=0.2),
        lambda: scores(CLASSES, 3),
        lambda: classes(3),
    ),
    "cross entropy of probabilities": (
        lambda r: nn.CrossEntropyLoss(CLASS_WEIGHTS, reduction=r, label_smoothing=0.1),
        lambda: scores(CLASSES, 3),
        lambda: scores(CLASSES, 3).softmax(1),
    ),
    "negative log likelihood": (
        lambda r: nn.NLLLoss(CLASS_WEIGHTS, reduction=r, ignore_index=2),
        lambda: scores(CLASSES),
        lambda: classes(index=2),
    ),
    "squares": (
        lambda r: nn.MSELoss(reduction=r),
        lambda: scores(3, 2),
        lambda: scores(3, 2),
    ),
    "absolutes": (lambda r: nn.L1Loss(reduction=r), lambda: scores(3), lambda: scores(3)),
    "smooth absolutes": (
        lambda r: nn.SmoothL1Loss(reduction=r, beta=0.5),
        lambda: scores(3),
        lambda: scores(3),
    ),
    "huber": (
        lambda r: nn.HuberLoss(reduction=r, delta=0.7),
        lambda: scores(),
        lambda: scores(),
    ),
    "binary": (
        lambda r: nn.BCELoss(reduction=r),
        lambda: scores(4).sigmoid(),
        lambda: scores(4).sigmoid(),
    ),
    "binary of logits": (
        lambda r: nn.BCEWithLogitsLoss(CLASS_WEIGHTS, reduction=r, pos_weight=CLASS_WEIGHTS),
        lambda: scores(CLASSES),
        lambda: scores(CLASSES).sigmoid(),
    ),
    "divergence": (
        lambda r: nn.KLDivLoss(reduction="batchmean" if r == "mean" else r),
        lambda: scores(3, 2).log_softmax(1),
        lambda: scores(3, 2).softmax(1),
    ),
    "soft margin": (
        lambda r: nn.SoftMarginLoss(reduction=r),
        lambda: scores(3),
        lambda: scores(3).sign(),
    ),
    "hinge": (
        lambda r: nn.HingeEmbeddingLoss(reduction=r),
        lambda: scores(3),
        lambda: scores(3).sign(),
    ),
    "poisson": (
        lambda r: nn.PoissonNLLLoss(reduction=r, full=True),
        lambda: scores(3),
        lambda: scores(3).abs(),
    ),
    "margins": (
        lambda r: nn.MultiMarginLoss(weight=CLASS_WEIGHTS, reduction=r),
        lambda: scores(CLASSES),
        lambda: classes(ignored=0),
    ),
    "margins of several labels": (
        lambda r: nn.MultiLabelMarginLoss(reduction=r),
        lambda: scores(CLASSES),
        lambda: torch.tensor([[3, 0, -1, 1, 2]]).repeat(ROWS, 1),
    ),
    "soft margins of several labels": (
        lambda r: nn.MultiLabelSoftMarginLoss(CLASS_WEIGHTS, reduction=r),
        lambda: scores(CLASSES),
        lambda: (scores(CLASSES) > 0).double(),
    ),
    "soft margins of several labels, per token": (
        lambda r: nn.MultiLabelSoftMarginLoss(reduction=r),
        lambda: scores(7, CLASSES),
        lambda: (scores(7, CLASSES) > 0).double(),
    ),
    "soft margins of several labels, a function, per pixel": (
        lambda r: functools.partial(
            functional.multilabel_soft_margin_loss, weight=CLASS_WEIGHTS, reduction=r
        ),
        lambda: scores(3, 4, CLASSES),
        lambda: (scores(3, 4, CLASSES) > 0).double(),
    ),
    "a function": (
        lambda r: (
            functional.smooth_l1_loss
            if r == "mean"
            else functools.partial(functional.smooth_l1_loss, reduction=r)
        ),
        lambda: scores(2),
        lambda: scores(2),
    ),
    "a function with settings": (
        lambda r: functools.partial(
            functional.cross_entropy, weight=CLASS_WEIGHTS, ignore_index=4, reduction=r
        ),
        lambda: scores(CLASSES, 2),
        lambda: classes(2, index=4),
    ),
}
if hasattr(nn, "LinearCrossEntropyLoss"):
    CASES["linear cross entropy"] = (
        lambda r: nn.LinearCrossEntropyLoss(
            3, CLASSES, dtype=torch.float64, reduction=r, ignore_index=0
        ),
        lambda: scores(3),
        lambda: classes(index=0),
    )


def check(criterion: Any, output: Tensor, target: Tensor, shares: Any) -> None:
    """Value and gradients of the parts are those of the whole, to 1e-9."""
    output = output.detach().requires_grad_()
    whole = criterion(output, target)
    toward = torch.randn_like(whole)
    parameters = list(criterion.parameters()) if isinstance(criterion, nn.Module) else []
    expected = torch.autograd.grad(whole, [output, *parameters], toward)
    if isinstance(criterion, nn.Module):
        before = {name: value for name, value in vars(criterion).items() if name[0] != "_"}
    loss = ParallelLoss(criterion, "cuda:0")(scatter(output, DEVICES, shares), target)
    found = torch.autograd.grad(loss, [output, *parameters], toward.to("cuda:0"))
    torch.testing.assert_close(loss.cpu(), whole, rtol=1e-9, atol=1e-12)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
    if isinstance(criterion, nn.Module):
        assert before == {n: v for n, v in vars(criterion).items() if n[0] != "_"}


@pytest.mark.gpus(3)
@REDUCTIONS
@pytest.mark.parametrize("case", CASES)
def test_criterions_of_pytorch(case: str, reduction: str) -> None:
    torch.manual_seed(0)
    make, output, target = CASES[case]
    criterion = make(reduction)
    assert recognise(criterion) is not None
    for shares in (None, (5, 2, 1), (0, 1, 0), (7, 0, 1)):
        check(criterion, output(), target(), shares)


@pytest.mark.gpus(3)
@given(
    st.lists(st.integers(0, 6), min_size=3, max_size=3).filter(any),
    st.floats(0, 1),
    st.booleans(),
    st.integers(0, 2**16),
)
@settings(deadline=None, max_examples=40)
def test_whatever_is_ignored_and_wherever(
    shares: list[int], ignored: float, weighted: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    criterion = nn.CrossEntropyLoss(CLASS_WEIGHTS + 0.1 if weighted else None)
    target = classes(3, ignored=ignored)
    target[0] = 0  # at least one target counts
    check(criterion, scores(CLASSES, 3), target, shares)


@pytest.mark.gpus(3)
def test_a_part_of_classes_without_weight_does_not_spoil_the_gradients() -> None:
    criterion = nn.CrossEntropyLoss(CLASS_WEIGHTS)  # class 2 has weight 0
    target = torch.tensor([2] * 4 + [1] * 8)
    check(criterion, scores(CLASSES), target, (1, 1, 1))


@pytest.mark.gpus(3)
def test_all_ignored_is_what_it_is_for_the_whole_batch() -> None:
    x = torch.randn(6, CLASSES, requires_grad=True)
    target = torch.full((6,), -100)
    whole = nn.CrossEntropyLoss()(x, target)
    loss = ParallelLoss(nn.CrossEntropyLoss(), "cpu")(scatter(x, DEVICES), target)
    assert math.isnan(whole.item())
    assert math.isnan(loss.item())
    assert torch.equal(torch.autograd.grad(loss, x)[0], torch.autograd.grad(whole, x)[0])
    summed = nn.CrossEntropyLoss(reduction="sum")
    assert ParallelLoss(summed)(scatter(x, DEVICES), target).item() == 0


@pytest.mark.gpus(3)
def test_a_batch_without_rows() -> None:
    outputs = scatter(torch.ones(0, 2), DEVICES)
    assert math.isnan(ParallelLoss(nn.MSELoss())(outputs, torch.ones(0, 2)).item())


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
    """Differs from nn.MSELoss by its name only."""


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


def squares(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square().mean()


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
