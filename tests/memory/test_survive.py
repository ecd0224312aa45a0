"""`survive` computes a step again in smaller parts, with the same gradients, in one process."""

from __future__ import annotations

import gc
import random
import re
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from settled import bytes_above
from torch import Tensor, nn

import anyrig
from anyrig.errors import MemoryTrackingError
from anyrig.memory import SurvivingStep, survive
from anyrig.virtual import installation
from anyrig.virtual.build import load_extension

pytestmark = [pytest.mark.gpus(2), pytest.mark.filterwarnings("ignore:a step of")]


@pytest.fixture(autouse=True)
def few_objects() -> Iterator[None]:
    """Leave out the objects of other tests, among which `survive` would search for modules."""
    gc.collect()
    gc.freeze()
    before, random_state = torch.get_default_dtype(), random.getstate()
    torch.set_default_dtype(torch.float64)
    torch.cuda.manual_seed_all(0)
    yield
    fail_allocation(0)
    torch.set_default_dtype(before)
    random.setstate(random_state)


def fail_allocation(number: int, device: int = 0) -> None:
    """Let the `number`-th allocation from now fail on a virtual GPU."""
    if installation() is None:
        pytest.skip("only a virtual GPU fails a given allocation")
    load_extension().fail_allocation(number, device)


class Net(nn.Module):
    """Layers of several kinds, and a buffer that counts samples."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), *layers, nn.Linear(8, 3)
        )
        self.register_buffer("samples", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.samples += len(x)
        y: Tensor = self.layers(x)
        return y


def batch(samples: int = 7) -> tuple[Tensor, Tensor]:
    return torch.randn(samples, 6).cuda(), torch.randint(3, (samples,)).cuda()


def loss_with(net: nn.Module) -> Callable[..., Tensor]:
    return lambda x, y: nn.functional.cross_entropy(net(x), y)


def gradients(net: nn.Module) -> list[Tensor]:
    return [parameter.grad.cpu() for parameter in net.parameters() if parameter.grad is not None]


def assert_close(found: list[Tensor], expected: list[Tensor]) -> None:
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


def expected_gradients(net: nn.Module, loss: Tensor) -> list[Tensor]:
    loss.backward()
    expected = gradients(net)
    net.zero_grad()
    return expected


@pytest.mark.filterwarnings("ignore::anyrig.parallel.BatchStatisticsWarning")
@pytest.mark.parametrize("devices", [1, 2])
def test_every_allocation_fails_in_turn(devices: int) -> None:
    net: Any = Net().cuda()
    if devices > 1:
        net = anyrig.spread(net, "cuda:0,1", plan=anyrig.Replicas(shares=[4, 3]))
    x, y = batch()
    loss_of = loss_with(net)
    for _ in range(2):
        expected = expected_gradients(net, loss_of(x, y))
    net.samples.zero_()
    step = survive(loss_of)
    expected_loss = loss_of(x, y).item()
    net.samples.zero_()
    gc.collect()
    before = [torch.cuda.memory_allocated(device) for device in range(2)]
    for device in range(devices):
        number = survived = 0
        while survived == number:
            number += 1
            fail_allocation(number, device)
            loss = step(x, y)
            fail_allocation(0, device)
            survived += step.largest_part == 4
            assert_close(gradients(net), expected)
            assert loss.item() == pytest.approx(expected_loss, abs=1e-9)
            assert net.samples.item() == 7 or devices > 1  # replicas count on their own
            net.samples.zero_()
            net.zero_grad()
            step.largest_part = None
            del loss
            gc.collect()
            assert [bytes_above(each, device) for device, each in enumerate(before)] == [0, 0]
        assert survived > 15


def test_the_next_steps_stay_small_and_it_says_so() -> None:
    net, sizes = Net().cuda(), []

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        sizes.append(len(x))
        if len(x) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return nn.functional.cross_entropy(net(x), y)

    step = survive(loss_of)
    x, y = batch()
    expected = expected_gradients(net, loss_with(net)(x, y))
    with pytest.warns(RuntimeWarning, match=r"7 samples ran .* in 4 parts of at most 2\. The next"):
        step(x, y)
    assert sizes == [7, 4, 2, 2, 2, 1]
    assert_close(gradients(net), expected)
    assert step.largest_part == 2
    sizes.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(*batch(5))
    assert sizes == [2, 2, 1]


def test_gradients_of_earlier_steps_are_kept() -> None:
    net = Net().cuda()
    first, second = batch(), batch()
    step = survive(loss_with(net))
    for each in (first, second):
        loss_with(net)(*each).backward()
    expected = gradients(net)
    for number in (3, 12, 20):
        net.zero_grad()
        step.largest_part = None
        step(*first)
        held = [parameter.grad for parameter in net.parameters()]
        fail_allocation(number)
        step(*second)
        assert step.largest_part == 4
        assert_close(gradients(net), expected)
        assert all(p.grad is grad for p, grad in zip(net.parameters(), held, strict=True))


def test_random_numbers_begin_again() -> None:
    net = Net(nn.Dropout(0.5)).cuda()
    x, y = batch()

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        return loss_with(net)(x, y) * random.random() * torch.rand(()).item()

    def run(step: SurvivingStep, number: int) -> list[Tensor]:
        torch.manual_seed(5)
        random.seed(5)
        fail_allocation(number)
        step(x, y)
        found = gradients(net)
        net.zero_grad()
        return found

    expected = run(survive(loss_of, largest_part=4), 0)
    assert_close(run(survive(loss_of), 20), expected)


def test_batch_norm_is_refused_unless_allowed() -> None:
    net = Net(nn.BatchNorm1d(8)).cuda()
    x, y = batch()
    step = survive(loss_with(net))
    before = [buffer.clone() for buffer in net.buffers()]
    fail_allocation(20)
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate") as raised:
        step(x, y)
    assert "BatchNorm1d normalizes by the statistics" in notes_of(raised.value)
    assert all(map(torch.equal, net.buffers(), before))
    assert not gradients(net)
    step.largest_part = 4
    with pytest.raises(MemoryTrackingError, match="cannot be divided: BatchNorm1d"):
        step(x, y)
    fail_allocation(20)
    survive(loss_with(net), batch_norm_in_parts=True)(x, y)
    assert net.layers[3].num_batches_tracked.item() == 2
    net.eval()
    fail_allocation(12)
    survive(loss_with(net))(x, y)


def test_means_over_something_else_than_samples() -> None:
    net = Net().cuda()
    x, y = batch()
    y[1:6] = -100
    for given, last in (((x, y), 7), ((x, y.roll(1)), 7), ((x[1:6], y[1:6]), 5)):
        expected_loss = loss_with(net)(*given)
        expected = expected_gradients(net, expected_loss)
        step = survive(loss_with(net), count=lambda x, y: (y != -100).sum(), largest_part=last // 2)
        found = step(*given)
        torch.testing.assert_close(found, expected_loss.detach(), equal_nan=True)
        for one, other in zip(gradients(net), expected, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-9, equal_nan=True)
        net.zero_grad()


def test_sums_and_scaled_losses() -> None:
    net = Net().cuda()
    x, y = batch()
    criterion = nn.CrossEntropyLoss(reduction="sum")
    expected = expected_gradients(net, criterion(net(x), y) * 4)
    scaler = torch.amp.GradScaler("cuda", init_scale=4.0)
    step = survive(
        lambda x, y: criterion(net(x), y),
        reduction="sum",
        backward=lambda loss: scaler.scale(loss).backward(),
        largest_part=3,
    )
    loss = step(x, y=y)
    assert_close(gradients(net), expected)
    torch.testing.assert_close(loss, criterion(net(x), y).detach())


def test_nested_arguments() -> None:
    net = Net().cuda()
    x, y = batch()
    seen = []

    def loss_of(inputs: Any, scale: Tensor, *, names: Any) -> Tensor:
        seen.append((names, len(inputs["y"][0])))
        return loss_with(net)(inputs["x"], inputs["y"][0]) * scale

    step = survive(loss_of, largest_part=4)
    step({"x": x, "y": [y]}, torch.tensor(2.0).cuda(), names=("a",) * 7)
    assert seen == [(("a",) * 7, 4), (("a",) * 7, 3)]
    found = gradients(net)
    net.zero_grad()
    assert_close(found, expected_gradients(net, 2 * loss_with(net)(x, y)))


def notes_of(error: BaseException) -> str:
    return "\n".join(map(str, getattr(error, "__notes__", error.args)))


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    ],
)
def test_libraries_run_out_of_memory_too(error: Exception) -> None:
    weight = torch.ones(2, device="cuda", requires_grad=True)

    def loss_of(x: Tensor) -> Tensor:
        if len(x) > 2:
            raise error
        return (x * weight).mean()

    step = survive(loss_of)
    assert step(torch.ones(4, 2, device="cuda")).item() == 1
    assert step.largest_part == 2


class Sample:
    pass


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (((), {}), "no argument of the step is a tensor"),
        (((torch.ones(4),), {"y": torch.ones(3)}), r"argument 'y' has 3 entries .* tensor has 4"),
        (((torch.ones(4), [Sample()]), {}), r"argument 1, \[0\], is a Sample"),
        (((torch.ones(4), ["a"] * 4), {}), "a list of 4 strs may have one entry for each sample"),
        (((torch.ones(4, requires_grad=True),), {}), "argument 0 requires a gradient"),
        (((torch.ones(4).to_sparse(),), {}), "argument 0 is a nested or sparse tensor"),
        (((torch.ones(1),), {}), "its parts have one sample each"),
    ],
)
def test_a_step_that_cannot_be_divided(arguments: Any, words: str) -> None:
    def loss_of(*args: Any, **kwargs: Any) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    args, kwargs = arguments
    with pytest.raises(torch.OutOfMemoryError) as raised:
        survive(loss_of)(*args, **kwargs)
    assert re.search(words, notes_of(raised.value))
    assert raised.traceback[-1].name == "loss_of"


def test_other_errors_and_wrong_losses() -> None:
    def fail(x: Tensor) -> Tensor:
        raise RuntimeError("on fire")

    with pytest.raises(RuntimeError, match=r"^on fire$"):
        survive(fail)(torch.ones(3))
    with pytest.raises(MemoryTrackingError, match=r"returned a tensor of shape \(3,\)"):
        survive(lambda x: x)(torch.ones(3))
    with pytest.raises(MemoryTrackingError, match="returned a float"):
        survive(lambda x: 1.0)(torch.ones(3))  # type: ignore[arg-type,return-value]
    with pytest.raises(MemoryTrackingError, match="largest_part=0 is not a number of samples"):
        survive(fail, largest_part=0)
    with pytest.raises(MemoryTrackingError, match="reduction='none' is neither"):
        survive(fail, reduction="none")  # type: ignore[arg-type]
    model = anyrig.spread(nn.Linear(2, 2).cuda(), loss=nn.MSELoss(), accumulate=True)
    with pytest.raises(MemoryTrackingError, match="spread with accumulate=True"):
        survive(lambda x: model(x, target=x))


class KeepInGraph(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, kept: Tensor) -> Tensor:
        ctx.kept = kept
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient, None


def test_nothing_of_an_earlier_part_is_held() -> None:
    weight = torch.ones(2, device="cuda", requires_grad=True)
    weight.grad = torch.zeros_like(weight)
    held: list[weakref.ref[Tensor]] = []
    reserved = []

    def hold_and_fail() -> None:
        also_large = torch.empty(2**23, device="cuda")
        raise KeyError(len(also_large))

    def loss_of(x: Tensor) -> Tensor:
        assert [each() for each in held] == [None] * len(held)
        reserved.append(torch.cuda.memory_reserved())
        large = torch.empty(2**20, device="cuda")
        held.append(weakref.ref(large))
        if len(held) == 1:
            try:
                hold_and_fail()
            except KeyError:
                raise torch.OutOfMemoryError from None
        loss: Tensor = KeepInGraph.apply(x * weight, large)  # type: ignore[no-untyped-call]
        return loss.mean()

    x = torch.ones(6, 2, device="cuda")
    torch.cuda.empty_cache()
    survive(loss_of)(x)
    assert len(held) == 3
    assert reserved[0] == reserved[1]  # the caches were emptied when nothing was held


def test_copies_of_autocast_are_not_held() -> None:
    weight = nn.Parameter(torch.ones(64, 64, device="cuda", dtype=torch.float32))
    allocated = []

    def loss_of(x: Tensor) -> Tensor:
        allocated.append(torch.cuda.memory_allocated())
        loss: Tensor = (x @ weight).float().mean()
        if len(x) > 2:
            raise torch.OutOfMemoryError
        return loss

    x = torch.ones(4, 64, device="cuda", dtype=torch.float32)
    (x @ weight).sum()  # cuBLAS gets its workspace
    with torch.autocast("cuda", torch.bfloat16):
        survive(loss_of)(x)
    assert allocated[1] == allocated[0]


class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: nn.Parameter, begun: threading.Event) -> Tensor:
        ctx.weight, ctx.begun = weight, begun
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        ctx.begun.set()
        time.sleep(0.3)
        ctx.weight.grad = torch.full_like(ctx.weight, 1e9)
        return gradient, None, None


class OutOfMemory(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, begun: threading.Event) -> Tensor:
        ctx.begun = begun
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        ctx.begun.wait(10)
        raise torch.OutOfMemoryError("CUDA out of memory")


def test_a_device_that_still_computes_is_waited_for() -> None:
    net = nn.Linear(2, 2, device="cuda:1")
    begun = threading.Event()

    def loss_of(x: Tensor) -> Tensor:
        if len(x) < 4:
            return net(x).mean()
        slow = Slow.apply(net(x), net.weight, begun)  # type: ignore[no-untyped-call]
        fails = OutOfMemory.apply(  # type: ignore[no-untyped-call]
            torch.ones(2, device="cuda:0", requires_grad=True), begun
        )
        loss: Tensor = slow.mean() + fails.mean().to("cuda:1")
        return loss

    x = torch.ones(4, 2, device="cuda:1")
    survive(loss_of)(x)
    time.sleep(0.4)
    assert begun.is_set()
    found = gradients(net)
    net.zero_grad()
    assert_close(found, expected_gradients(net, net(x).mean()))
