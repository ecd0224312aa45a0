"""Moves to and between GPUs, real or virtual."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence, pad_packed_sequence

from anyrig.transfer import move, pin
from anyrig.transfer.arguments import move_arguments


@pytest.mark.gpus(1)
@pytest.mark.parametrize("non_blocking", [False, True])
def test_there_and_back(gpu: torch.device, non_blocking: bool) -> None:
    x = torch.randn(1000)
    there = move({"x": pin(x), "again": [x]}, gpu, non_blocking=non_blocking)
    assert there["x"].device == gpu
    back = move(there, "cpu", non_blocking=non_blocking)
    assert torch.equal(back["x"], x)
    assert torch.equal(back["again"][0], x)


@pytest.mark.gpus(1)
def test_an_argument_that_is_passed_twice_is_copied_once(gpu: torch.device) -> None:
    x = torch.ones(3)
    for inputs in ((x, x), (x, [x])):
        (first, second), named = move_arguments(inputs, {"again": x}, gpu)
        assert first.device == gpu
        assert named["again"] is first
        assert (second[0] if isinstance(second, list) else second) is first


@pytest.mark.gpus(2)
def test_arguments_on_another_gpu_are_moved(gpu: torch.device) -> None:
    there, here = torch.ones(3, device=torch.device(gpu.type, 1)), torch.ones(3, device=gpu)
    (moved, kept), named = move_arguments((there, here), {"again": there}, gpu)
    assert moved.device == gpu
    assert kept is here
    assert named["again"] is moved


@pytest.mark.gpus(1)
def test_a_copy_to_the_cpu_waits_even_if_asked_not_to(gpu: torch.device) -> None:
    x = torch.ones(1024, 1024, device=gpu)
    for _ in range(8):
        x = x @ x / 1024
    assert move(x, "cpu", non_blocking=True).eq(1).all()


@pytest.mark.gpus(1)
def test_module_and_optimizer(gpu: torch.device) -> None:
    module = torch.nn.BatchNorm1d(2)
    moved = move({"mean": module.running_mean, "weight": module.weight, "net": module}, gpu)
    assert moved["net"] is module
    assert moved["weight"] is module.weight
    assert moved["mean"] is module.running_mean
    optimizer = torch.optim.Adam(module.parameters())
    module(torch.randn(4, 2, device=gpu)).square().sum().backward()
    optimizer.step()
    assert optimizer.state[module.weight]["exp_avg"].device == gpu


# Without cuDNN, as on a virtual GPU, PyTorch warns when a recurrent module reaches CUDA.
@pytest.mark.filterwarnings("ignore:PyTorch was compiled without cuDNN")
@pytest.mark.gpus(1)
def test_packed_sequence_is_computed_on_as_on_the_cpu(
    gpu: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # the CPU computes in float32
    packed = pack_sequence([torch.randn(2, 3), torch.randn(4, 3)], enforce_sorted=False)
    rnn = torch.nn.RNN(3, 5)
    expected, lengths = pad_packed_sequence(rnn(packed)[0])
    there = move(packed, gpu)
    assert there.batch_sizes.device.type == "cpu"
    outcome, there_lengths = pad_packed_sequence(move(rnn, gpu)(there)[0])
    assert outcome.device == gpu
    assert torch.equal(there_lengths, lengths)
    torch.testing.assert_close(outcome.cpu(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.gpus(1)
def test_pinning(gpu: torch.device) -> None:
    x = torch.randn(10)
    pinned: dict[str, Any] = pin({"x": x, "name": "n", "there": x.to(gpu)})
    assert pinned["x"].is_pinned()
    assert torch.equal(pinned["x"], x)
    assert pin(pinned) is pinned


@pytest.mark.gpus(1)
def test_objects_pin_themselves(gpu: torch.device) -> None:
    class Batch:
        def __init__(self, x: torch.Tensor) -> None:
            self.x = x

        def pin_memory(self) -> Batch:
            return Batch(self.x.pin_memory())

    assert pin([Batch(torch.ones(1))])[0].x.is_pinned()


@pytest.mark.gpus(2)
def test_from_one_to_the_other(gpu: torch.device) -> None:
    other = torch.device(gpu.type, 1)
    x = torch.randn(10, device=gpu)
    moved = move([x], other, non_blocking=True)
    assert moved[0].device == other
    assert torch.equal(moved[0].cpu(), x.cpu())


@pytest.mark.gpus(2)
def test_a_kind_without_index_is_the_current_device(gpu: torch.device) -> None:
    there = torch.ones(1, device=torch.device(gpu.type, 0))
    with torch.accelerator.device_index(1):
        assert move(there, gpu.type).device.index == 1
    assert move(there, gpu.type) is there


@pytest.mark.gpus(1)
def test_what_has_no_memory_to_pin_is_kept(gpu: torch.device) -> None:
    class InPlace:
        def pin_memory(self) -> None:
            self.is_pinned = True

    batch, other = InPlace(), range(3)
    weight = torch.nn.Parameter(torch.ones(2))
    tree = [batch, other, weight, torch.eye(2).to_sparse()]
    assert pin(tree) is tree
    assert batch.is_pinned
    assert not weight.is_pinned()
