"""Models of each kind with a batch for them, and three steps of an optimizer: what tests compare.

All models are in float64, in which the order of sums changes only the sixteenth digit.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

import anyrig

LEAD = "cuda:0"
WORDS, WIDTH, CLASSES = 23, 8, 5


class Recurrent(nn.Module):
    """Packs its input, and pads its output to the longest sequence of its part."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.lstm = nn.LSTM(WIDTH, 6, num_layers=2, bidirectional=True, batch_first=True)
        self.classes = nn.Linear(12, CLASSES)

    def forward(self, words: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(
            self.embedding(words), lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        padded, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        return self.classes(padded.sum(1))


class RecurrentOnPacked(nn.Module):
    """Takes a `PackedSequence`, which `spread` must therefore divide."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(WIDTH, 6)
        self.classes = nn.Linear(6, CLASSES)

    def forward(self, packed: PackedSequence) -> Tensor:
        _, last = self.gru(packed)
        return self.classes(last[-1])


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True, dropout=0.0)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.classes = nn.Linear(WIDTH, CLASSES)

    def forward(self, words: Tensor, padding: Tensor) -> Tensor:
        hidden = self.layers(self.embedding(words), src_key_padding_mask=padding)
        return self.classes(hidden.masked_fill(padding[..., None], 0).sum(1))


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 12), nn.Tanh(), nn.Linear(12, CLASSES))


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1),
        nn.GroupNorm(2, 6),
        nn.ReLU(),
        nn.Conv2d(6, 6, 3, stride=2),
        nn.BatchNorm2d(6).eval(),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(24, CLASSES),
    )


@dataclass(frozen=True)
class Example:
    """A model, and a function from a number of samples to its arguments."""

    build: Callable[[], nn.Module]
    inputs: Callable[[int], tuple[Any, ...]]


def _vectors(samples: int) -> tuple[Any, ...]:
    return (torch.randn(samples, WIDTH),)


def _images(samples: int) -> tuple[Any, ...]:
    return (torch.randn(samples, 3, 8, 8),)


def _words_and_lengths(samples: int) -> tuple[Any, ...]:
    return torch.randint(WORDS, (samples, 7)), torch.randint(1, 8, (samples,))


def _packed(samples: int) -> tuple[Any, ...]:
    lengths = torch.randint(1, 8, (samples,))
    packed = pack_padded_sequence(torch.randn(7, samples, WIDTH), lengths, enforce_sorted=False)
    return (packed,)


def _words_and_padding(samples: int) -> tuple[Any, ...]:
    words, lengths = _words_and_lengths(samples)
    return words, torch.arange(7) >= lengths[:, None]


EXAMPLES = {
    "perceptron": Example(perceptron, _vectors),
    "convolutional": Example(convolutional, _images),
    "recurrent": Example(Recurrent, _words_and_lengths),
    "recurrent, packed": Example(RecurrentOnPacked, _packed),
    "transformer": Example(Transformer, _words_and_padding),
}

OPTIMIZERS: dict[str, Callable[[Iterable[Tensor]], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9),
    # The bias of attention's keys has a gradient of zero, except for rounding. With a smaller
    # epsilon, Adam would turn the rounding into steps.
    "adam": lambda parameters: torch.optim.Adam(parameters, 0.01, eps=1e-5),
}


class WritesData(torch.optim.SGD):
    """Writes without changing version counters, as older optimizers of other libraries do."""

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.data.add_(parameter.grad.data, alpha=-group["lr"])


OPTIMIZERS["writes to .data"] = lambda parameters: WritesData(parameters, 0.1)
OPTIMIZERS |= {
    f"{kind.__name__}, {way}": partial(kind, lr=0.1, **{way: True})
    for way, kinds in {
        "foreach": (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW),
        # These do not change the versions of what they write.
        "fused": (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad),
        "capturable": (torch.optim.Adam, torch.optim.NAdam, torch.optim.RMSprop),
    }.items()
    for kind in kinds
}


def train(
    module: nn.Module,
    batches: Iterable[tuple[tuple[Any, ...], Tensor]],
    optimizer: str,
    loss_of: Callable[..., Tensor],
) -> list[Tensor]:
    """Take a step for each batch with ``loss_of(inputs, target)``; return the losses."""
    chosen = OPTIMIZERS[optimizer](module.parameters())
    losses = []
    for inputs, target in batches:
        chosen.zero_grad()
        loss = loss_of(inputs, target)
        loss.backward()
        chosen.step()
        losses.append(loss.detach())
    return losses


def on_lead(module: nn.Module) -> nn.Module:
    return copy.deepcopy(module).to(LEAD, torch.float64)


def first_devices(count: int) -> anyrig.Rig:
    return anyrig.Rig.parse(",".join(f"cuda:{index}" for index in range(count)))


def assert_same_numbers(found: nn.Module, expected: nn.Module) -> None:
    """Require that parameters and buffers are equal, to 1e-9 of the largest number in each."""
    here, there = found.state_dict(), expected.state_dict()
    assert list(here) == list(there)
    for name, value in there.items():
        error = (here[name].to(value.device) - value).abs().max()
        assert error <= 1e-9 * value.abs().max(), f"{name} is off by {float(error):.2e}"
