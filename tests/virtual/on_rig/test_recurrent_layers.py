"""Recurrent layers compute step by step, behind one node of the graph, as cuDNN's operator."""

from __future__ import annotations

import copy
import re

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


def test_there_is_no_second_derivative() -> None:
    layer, x = layer_of(nn.GRU).cuda(), inputs().cuda().requires_grad_()
    (first,) = torch.autograd.grad(layer(x)[0].pow(2).sum(), x, create_graph=True)
    words = re.escape("the derivative for '_cudnn_rnn_backward' is not implemented")
    with pytest.raises(NotImplementedError, match=words):
        first.sum().backward()


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
