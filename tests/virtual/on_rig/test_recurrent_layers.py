"""Recurrent layers compute step by step, behind one node of the graph, as cuDNN's operator."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

KINDS = [nn.LSTM, nn.GRU, nn.RNN]


def layer_of(kind: type[nn.RNNBase]) -> nn.RNNBase:
    torch.manual_seed(0)
    return kind(4, 6, num_layers=2, dtype=torch.float64)


def inputs() -> Tensor:
    torch.manual_seed(1)
    return torch.randn(5, 3, 4, dtype=torch.float64)


def gradients(layer: nn.RNNBase, device: str, *, packed: bool = False) -> list[Tensor]:
    """Return the gradients of the input and the weights, with respect to all results."""
    there = copy.deepcopy(layer).to(device)
    x = inputs().to(device).requires_grad_()
    given = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 4, 2])) if packed else x
    output, states = there(given)
    results = [output.data if packed else output, *states]
    torch.autograd.backward([r.pow(2).sum() for r in results if isinstance(r, Tensor)])
    assert x.grad is not None
    return [x.grad.cpu(), *(p.grad.cpu() for p in there.parameters() if p.grad is not None)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("packed", [False, True])
def test_gradients_are_those_of_the_host(kind: type[nn.RNNBase], packed: bool) -> None:
    layer = layer_of(kind)
    torch.testing.assert_close(
        gradients(layer, "cuda", packed=packed),
        gradients(layer, "cpu", packed=packed),
        rtol=1e-9,
        atol=1e-12,
    )


@pytest.mark.parametrize("batch_first", [False, True])
def test_steps_follow_each_other_in_memory(batch_first: bool) -> None:
    layer = nn.GRU(4, 6, batch_first=batch_first).cuda()
    x = torch.randn(5, 3, 4, device="cuda", requires_grad=True)
    output = layer(x)[0]
    (gradient,) = torch.autograd.grad(output.sum(), x)
    for tensor in (output, gradient):
        assert (tensor.transpose(0, 1) if batch_first else tensor).is_contiguous()


def test_a_graph_that_is_kept_can_be_used_again() -> None:
    layer, x = layer_of(nn.LSTM).cuda(), inputs().cuda()
    result = layer(x)[0].sum()
    result.backward(retain_graph=True)
    weight = layer.weight_hh_l0
    assert weight.grad is not None
    first = weight.grad.clone()
    result.backward()
    torch.testing.assert_close(weight.grad, 2 * first)


def test_a_checkpoint_computes_it_again() -> None:
    layer, x = layer_of(nn.GRU).cuda(), inputs().cuda().requires_grad_()
    (expected,) = torch.autograd.grad(layer(x)[0].sum(), x)
    again = checkpoint(lambda value: layer(value)[0].sum(), x, use_reentrant=False)
    torch.testing.assert_close(torch.autograd.grad(again, x)[0], expected)


def test_a_result_that_cudnn_needs_may_not_be_changed_in_place() -> None:
    layer, x = layer_of(nn.LSTM).cuda(), inputs().cuda().requires_grad_()
    changed = layer(x)[0].mul_(2).sum()
    with pytest.raises(RuntimeError, match=r"modified by an inplace operation: .*\[5, 3, 6\]"):
        changed.backward()
    with torch.backends.cudnn.flags(enabled=False):
        layer(x)[0].mul_(2).sum().backward()
    assert x.grad is not None


@pytest.mark.parametrize("squares", [False, True])
def test_there_is_no_second_derivative(squares: bool) -> None:
    layer, x = layer_of(nn.GRU).cuda(), inputs().cuda().requires_grad_()
    result = layer(x)[0]
    total = result.pow(2).sum() if squares else result.sum()
    (first,) = torch.autograd.grad(total, x, create_graph=True)
    words = re.escape("the derivative for '_cudnn_rnn_backward' is not implemented")
    with pytest.raises(NotImplementedError, match=words):
        first.sum().backward()


@pytest.fixture
def fills_with_nan() -> Iterator[None]:
    """Let new tensors hold NaN until they are written."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("fills_with_nan")
def test_weights_without_influence_have_gradients_of_zero() -> None:
    layer = nn.LSTM(4, 6, proj_size=2, dtype=torch.float64).cuda()
    cells = layer(inputs()[:1].cuda())[1][1]  # the projection comes after them
    cells.sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()
        assert (parameter.grad == 0).all() == (name in ("weight_hr_l0", "weight_hh_l0"))


@pytest.mark.usefixtures("fills_with_nan")
def test_anomaly_detection_finds_none_in_operands_without_gradients() -> None:
    layer, x = layer_of(nn.GRU).cuda(), inputs().cuda()
    layer.weight_hh_l0.requires_grad_(False)
    with torch.autograd.set_detect_anomaly(True):
        layer(x)[0].sum().backward()


class Stopped(torch.autograd.Function):
    """Passes no gradient on."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, *_: Tensor) -> None:
        return None


def test_results_without_gradients_give_none() -> None:
    layer, x = layer_of(nn.LSTM).cuda(), inputs().cuda().requires_grad_()
    Stopped.apply(layer(x)[0]).sum().backward()
    assert x.grad is None
    assert all(parameter.grad is None for parameter in layer.parameters())


def test_threads_with_dropout_leave_the_hosts_numbers_alone() -> None:
    layer = nn.LSTM(4, 6, num_layers=2, dropout=0.5)
    layers = [copy.deepcopy(layer).to(device) for device in range(4)]
    host = torch.get_rng_state()

    def run(device: int) -> Tensor:
        torch.cuda.default_generators[device].manual_seed(3)
        x = torch.ones(30, 3, 4, device=device)
        return torch.stack([layers[device](x)[0].detach().cpu() for _ in range(10)])

    alone = run(0)
    assert torch.equal(torch.get_rng_state(), host)
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(run, range(4)))
    assert torch.equal(torch.get_rng_state(), host)
    for result in together:
        assert torch.equal(result, alone)


def test_dropout_draws_from_the_gpus_generator() -> None:
    layer = nn.LSTM(4, 6, num_layers=2, dropout=0.5, dtype=torch.float64).cuda()
    x = inputs().cuda()

    def draw() -> Tensor:
        result: Tensor = layer(x)[0]
        return result

    host = torch.get_rng_state()
    torch.cuda.manual_seed(3)
    first, second = draw(), draw()
    assert not torch.equal(first, second)
    torch.cuda.manual_seed(3)
    assert torch.equal(draw(), first)
    assert torch.equal(torch.get_rng_state(), host)


def test_inference_mode() -> None:
    layer, x = layer_of(nn.LSTM), inputs()
    with torch.inference_mode():
        there = copy.deepcopy(layer).cuda()(x.cuda())[0]
        torch.testing.assert_close(there.cpu(), layer(x)[0])


def test_only_training_mode_has_a_backward_pass() -> None:
    layer, x = layer_of(nn.LSTM).cuda().eval(), inputs().cuda().requires_grad_()
    words = re.escape("cudnn RNN backward can only be called in training mode")
    with pytest.raises(RuntimeError, match=words):
        layer(x)[0].sum().backward()
    with torch.backends.cudnn.flags(enabled=False):
        layer(x)[0].sum().backward()
    assert x.grad is not None


def test_transforms_differentiate_the_steps_alone() -> None:
    layer, x = layer_of(nn.GRU), inputs()

    def total(there: nn.RNNBase, value: Tensor) -> Tensor:
        result: Tensor = there(value)[0].sum()
        return result

    there = copy.deepcopy(layer).cuda()
    gradient = torch.func.grad(lambda value: total(there, value))
    with pytest.raises(NotImplementedError, match="Cannot access storage of TensorWrapper"):
        gradient(x.cuda())
    with torch.backends.cudnn.flags(enabled=False):
        found = gradient(x.cuda())
    expected = torch.func.grad(lambda value: total(layer, value))(x)
    torch.testing.assert_close(found.cpu(), expected)
