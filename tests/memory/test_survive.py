"""`survive` computes a step again in smaller parts, with the same gradients, in one process."""

from __future__ import annotations

import gc
import random
import warnings
from typing import Any

import pytest
import torch
from settled import bytes_above
from surviving_steps import (
    Net,
    assert_close,
    batch,
    expected_gradients,
    fail_allocation,
    gradients,
    loss_with,
    notes_of,
)
from torch import Tensor, nn

import anyrig
from anyrig.errors import MemoryTrackingError
from anyrig.memory import SurvivingStep, survive

pytestmark = [
    pytest.mark.gpus(2),
    pytest.mark.filterwarnings("ignore:a step of"),
    pytest.mark.usefixtures("few_objects"),
]


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


def test_a_buffer_that_a_failed_step_replaced_is_put_back() -> None:
    net: Any = Net().cuda()

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        net.samples = net.samples + 100
        if len(x) > 4:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return loss_with(net)(x, y)

    survive(loss_of)(*batch())
    assert net.samples.item() == 2 * 100 + 7


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
