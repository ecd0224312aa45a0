"""Modules whose backward passes are split, and how many products of each are deferred."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True)
class Case:
    """A module, its input, and the number of products that are deferred."""

    make: Callable[[], nn.Module]
    make_input: Callable[[], Tensor]
    deferred: int


class Function(nn.Module):
    """A module of parts, with what its forward computes from them and the input."""

    def __init__(self, compute: Callable[[Any, Tensor], Any], **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self.compute = compute

    def forward(self, value: Tensor) -> Any:
        return self.compute(self, value)


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        ctx.save_for_backward(value)
        return value**3

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (value,) = ctx.saved_tensors
        return 3 * value**2 * gradients[0]


class TwoOutputs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Any:
        ctx.save_for_backward(value)
        return value.sin(), value.cos()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (value,) = ctx.saved_tensors
        return gradients[0] * value.cos() - gradients[1] * value.sin()


def weight(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape))


def rows(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(*shape)


def tokens() -> Tensor:
    return torch.randint(0, 7, (3, 4))


def parts_of_lstm(self: Any, value: Tensor) -> Tensor:
    output, (hidden, cell) = self.lstm(self.a(value))
    return output.sum() + (hidden * cell).sum()


def with_penalty(self: Any, value: Tensor) -> Tensor:
    """Return a loss with a gradient of the output, as networks for forces have."""
    value = value if value.requires_grad else value.clone().requires_grad_()
    energy = self.b(torch.tanh(self.a(value)))
    (force,) = torch.autograd.grad(energy.sum(), value, create_graph=True)
    return energy.sum() + force.square().sum()


def with_penalty_of_bias(self: Any, value: Tensor) -> Tensor:
    """Return a loss with a gradient of a bias."""
    energy = self.b(torch.tanh(self.a(value)))
    (slope,) = torch.autograd.grad(energy.sum(), self.a.b, create_graph=True)
    return energy.sum() + slope.square().sum()


def with_computed_bias(forward: Callable[..., Tensor]) -> Function:
    """Return a module with the layers a, whose bias is no parameter, and b."""
    first = Function(lambda s, x: functional.linear(x, s.w, s.b * 2), w=weight(3, 4), b=weight(3))
    return Function(forward, a=first, b=LINEAR(3, 1))


def with_inner_gradient(self: Any, value: Tensor) -> Tensor:
    """Use a gradient as a constant, which adds nothing to the weights' gradients."""
    probe = value.detach().requires_grad_()
    (slope,) = torch.autograd.grad(self.a(probe).square().sum(), probe)
    return self.a(value) * slope


def with_func_gradient(self: Any, value: Tensor) -> Tensor:
    slope = torch.func.grad(lambda one: torch.tanh(self.a(one)).sum())(value)
    return self.a(value) + slope


def with_checkpoint(use_reentrant: bool) -> Callable[[Any, Tensor], Tensor]:
    def compute(self: Any, value: Tensor) -> Tensor:
        part = checkpoint(
            lambda x: torch.tanh(self.b(x)), self.a(value), use_reentrant=use_reentrant
        )
        return self.b(part)

    return compute


def without_graph(self: Any, value: Tensor) -> Tensor:
    with torch.no_grad():
        fixed = self.a(value)
    return self.a(value) + fixed


def frozen(module: nn.Module, *names: str) -> nn.Module:
    for name in names:
        module.get_parameter(name).requires_grad_(False)
    return module


def tied() -> nn.Module:
    embedding = nn.Embedding(7, 5)
    head = nn.Linear(5, 7, bias=False)
    head.weight = embedding.weight
    return nn.Sequential(embedding, nn.Tanh(), head)


def encoder(**options: Any) -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True, **options)


LINEAR = nn.Linear
CASES: dict[str, Case] = {
    "linear": Case(lambda: LINEAR(4, 3), rows(5, 4), 1),
    "linear of a vector": Case(lambda: LINEAR(4, 3), rows(4), 0),
    "linear of three dimensions": Case(lambda: LINEAR(4, 3), rows(2, 5, 4), 1),
    "linear of a transposed input": Case(
        lambda: Function(lambda s, x: s.a(x.transpose(0, 1)), a=LINEAR(4, 3)), rows(2, 5, 4), 1
    ),
    "linear of nothing": Case(lambda: LINEAR(4, 3), rows(2, 0, 4), 1),
    "linear, frozen weight": Case(lambda: frozen(LINEAR(4, 3), "weight"), rows(5, 4), 0),
    "linear, frozen bias": Case(lambda: frozen(LINEAR(4, 3), "bias"), rows(5, 4), 1),
    "linear, bias from elsewhere": Case(
        lambda: Function(
            lambda s, x: functional.linear(x, s.w, s.b * 2), w=weight(3, 4), b=weight(3)
        ),
        rows(5, 4),
        1,
    ),
    "layers": Case(
        lambda: nn.Sequential(LINEAR(4, 6), nn.LayerNorm(6), nn.GELU(), LINEAR(6, 3)), rows(5, 4), 2
    ),
    "in place": Case(
        lambda: nn.Sequential(
            nn.Conv2d(2, 3, 3), nn.ReLU(inplace=True), nn.Flatten(), LINEAR(48, 4), nn.ReLU(True)
        ),
        rows(2, 2, 6, 6),
        2,
    ),
    "in place on three dimensions": Case(
        lambda: Function(lambda s, x: s.b(s.a(x).mul_(2).relu_()), a=LINEAR(4, 4), b=LINEAR(4, 3)),
        rows(2, 5, 4),
        2,
    ),
    "conv1d": Case(lambda: nn.Conv1d(2, 4, 3, stride=2, padding=1), rows(3, 2, 9), 1),
    "conv2d": Case(
        lambda: nn.Conv2d(4, 6, 3, stride=(2, 1), padding=(1, 2), dilation=2, groups=2),
        rows(2, 4, 9, 9),
        1,
    ),
    "conv2d, same": Case(lambda: nn.Conv2d(2, 3, 3, padding="same"), rows(2, 2, 6, 6), 0),
    "conv2d, circular": Case(
        lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), rows(2, 2, 6, 6), 1
    ),
    "conv2d without a batch": Case(lambda: nn.Conv2d(2, 3, 3), rows(2, 6, 6), 0),
    "conv3d": Case(lambda: nn.Conv3d(2, 3, 2, bias=False), rows(2, 2, 4, 4, 4), 1),
    "transposed conv2d": Case(lambda: nn.ConvTranspose2d(2, 3, 3), rows(2, 2, 4, 4), 0),
    "@": Case(lambda: Function(lambda s, x: x @ s.w, w=weight(4, 3)), rows(2, 5, 4), 1),
    "@ from the left": Case(lambda: Function(lambda s, x: s.w @ x, w=weight(3, 4)), rows(4, 2), 1),
    "@, broadcast": Case(
        lambda: Function(lambda s, x: x @ s.w, w=weight(2, 4, 3)), rows(5, 1, 6, 4), 0
    ),
    "bmm": Case(lambda: Function(lambda s, x: x.bmm(s.w), w=weight(2, 4, 3)), rows(2, 5, 4), 1),
    "experts": Case(
        lambda: Function(lambda s, x: torch.matmul(x, s.w), w=weight(2, 4, 3)), rows(2, 5, 4), 1
    ),
    "mm of two weights": Case(
        lambda: Function(lambda s, x: x + torch.mm(s.a, s.b), a=weight(5, 2), b=weight(2, 4)),
        rows(5, 4),
        1,
    ),
    "addmm": Case(
        lambda: Function(lambda s, x: torch.addmm(s.b, x, s.w), b=weight(3), w=weight(4, 3)),
        rows(5, 4),
        1,
    ),
    "addmm, scaled": Case(
        lambda: Function(
            lambda s, x: torch.addmm(s.b, x, s.w, alpha=2), b=weight(3), w=weight(4, 3)
        ),
        rows(5, 4),
        0,
    ),
    "a transposed weight": Case(
        lambda: Function(lambda s, x: s.a(x) @ s.a.weight, a=LINEAR(4, 3)), rows(5, 4), 2
    ),
    "twice, one after the other": Case(
        lambda: Function(lambda s, x: x @ s.w @ s.w, w=weight(4, 4)), rows(5, 4), 2
    ),
    "twice, and once otherwise": Case(
        lambda: Function(lambda s, x: s.a(s.a(x)) + s.a.weight.sum(0), a=LINEAR(4, 4)),
        rows(5, 4),
        2,
    ),
    "unused": Case(
        lambda: Function(lambda s, x: (s.a(x), s.b(x))[0], a=LINEAR(4, 3), b=LINEAR(4, 3)),
        rows(5, 4),
        1,
    ),
    "weight norm": Case(
        lambda: nn.Sequential(parametrizations.weight_norm(LINEAR(4, 3)), LINEAR(3, 3)),
        rows(5, 4),
        1,
    ),
    "tied": Case(tied, tokens, 1),
    "embedding": Case(lambda: nn.Embedding(7, 5), tokens, 0),
    "attention": Case(
        lambda: Function(
            lambda s, x: s.a(x, x, x, need_weights=False)[0],
            a=nn.MultiheadAttention(8, 2, batch_first=True),
        ),
        rows(3, 5, 8),
        2,
    ),
    "attention of two inputs": Case(
        lambda: Function(
            lambda s, x: s.a(x, x * 2, x * 3)[0], a=nn.MultiheadAttention(8, 2, kdim=8, vdim=8)
        ),
        rows(3, 5, 8),
        1,
    ),
    "attention of other sizes": Case(
        lambda: Function(
            lambda s, x: s.a(x, x[..., :4], x[..., :6])[0],
            a=nn.MultiheadAttention(8, 2, kdim=4, vdim=6),
        ),
        rows(3, 5, 8),
        4,
    ),
    "encoder": Case(encoder, rows(3, 5, 8), 4),
    "encoder, norm first": Case(lambda: encoder(norm_first=True), rows(3, 5, 8), 4),
    "lstm": Case(
        lambda: Function(parts_of_lstm, a=LINEAR(4, 4), lstm=nn.LSTM(4, 3, num_layers=2)),
        rows(5, 2, 4),
        1,
    ),
    "chunk": Case(
        lambda: Function(
            lambda s, x: s.b(torch.mul(*s.a(x).chunk(2, -1))), a=LINEAR(4, 6), b=LINEAR(3, 2)
        ),
        rows(5, 4),
        2,
    ),
    "split, one part unused": Case(
        lambda: Function(
            lambda s, x: s.b(s.a(x).split([2, 3, 1], -1)[1]), a=LINEAR(4, 6), b=LINEAR(3, 2)
        ),
        rows(5, 4),
        2,
    ),
    "unbind": Case(
        lambda: Function(
            lambda s, x: [s.b(one) for one in s.a(x).unbind(1)][::2], a=LINEAR(4, 3), b=LINEAR(3, 2)
        ),
        rows(2, 3, 4),
        3,
    ),
    "topk": Case(
        lambda: Function(lambda s, x: s.b(s.a(x).topk(2, -1)[0]), a=LINEAR(4, 6), b=LINEAR(2, 2)),
        rows(5, 4),
        2,
    ),
    "function of two outputs": Case(
        lambda: Function(
            lambda s, x: [s.b(one) for one in TwoOutputs.apply(s.a(x))],
            a=LINEAR(4, 3),
            b=LINEAR(3, 2),
        ),
        rows(5, 4),
        3,
    ),
    "function": Case(
        lambda: Function(lambda s, x: s.b(Cube.apply(s.a(x))), a=LINEAR(4, 3), b=LINEAR(3, 2)),
        rows(5, 4),
        2,
    ),
    "part without a graph": Case(lambda: Function(without_graph, a=LINEAR(4, 3)), rows(5, 4), 1),
    "gradient in the loss": Case(
        lambda: Function(with_penalty, a=LINEAR(4, 3), b=LINEAR(3, 1)), rows(5, 4), 2
    ),
    "gradient in the loss, bias from elsewhere": Case(
        lambda: with_computed_bias(with_penalty), rows(5, 4), 2
    ),
    "gradient of a bias in the loss, bias from elsewhere": Case(
        lambda: with_computed_bias(with_penalty_of_bias), rows(5, 4), 2
    ),
    "gradient as a constant": Case(
        lambda: Function(with_inner_gradient, a=LINEAR(4, 4)), rows(5, 4), 1
    ),
    "gradient by torch.func": Case(
        lambda: Function(with_func_gradient, a=LINEAR(4, 4)), rows(5, 4), 1
    ),
    "checkpoint": Case(
        lambda: Function(with_checkpoint(False), a=LINEAR(4, 4), b=LINEAR(4, 4)), rows(4, 4), 2
    ),
    "reentrant checkpoint": Case(
        lambda: Function(with_checkpoint(True), a=LINEAR(4, 4), b=LINEAR(4, 4)), rows(4, 4), 2
    ),
}
