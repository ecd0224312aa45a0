"""Models whose outputs differ in form, with a batch for each, for tests of every combination.

A model's outputs are floating-point tensors in any structure. Those of one element are means over
the batch; in the others each sample has its part. So ``mean_of`` is a mean over samples, whatever
the form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

WIDTH, CLASSES, STEPS = 4, 3, 5


@dataclass
class Output:
    logits: Tensor
    hidden: tuple[Tensor, ...]
    loss: Tensor | float | None = None
    name: str = "output"


class Named(NamedTuple):
    loss: Tensor
    rest: dict[str, Tensor]


class Headed(nn.Module):
    """A layer, and a function that makes the outputs of its output and the labels."""

    def __init__(self, make: Callable[[Tensor, Tensor], Any], width: int = CLASSES) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, 6), nn.Linear(6, width)
        self.make = make

    def forward(self, x: Tensor, labels: Tensor) -> Any:
        return self.make(self.last(self.first(x).tanh()), labels)


class Recurrent(nn.Module):
    """Returns all that a recurrent layer does: its output, and states without dimension 0."""

    def __init__(self, kind: Any, **options: Any) -> None:
        super().__init__()
        self.layer = kind(WIDTH, 3, **options)

    def forward(self, x: Tensor | PackedSequence) -> Any:
        return self.layer(x)


class Tagger(nn.Module):
    """Packs its input and pads its output, to the longest sequence or to a given length."""

    def __init__(self, total_length: int | None) -> None:
        super().__init__()
        self.layer = nn.GRU(WIDTH, CLASSES, batch_first=True)
        self.total_length = total_length

    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        hidden, state = self.layer(packed)
        padded, _ = pad_packed_sequence(hidden, True, total_length=self.total_length)
        return {"tags": padded, "state": state}


class TaggerAlone(Tagger):
    """Returns the padded output only."""

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        return super().forward(x, lengths)["tags"]


class Normalized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(WIDTH, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, CLASSES)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class Choosing(nn.Linear):
    """Returns the entries that a mask chooses: any number of each sample."""

    def forward(self, x: Tensor, chosen: Tensor) -> Tensor:
        return super().forward(x)[chosen]


def own_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(logits, labels)


def counted(output: dict[str, Tensor], target: Tensor) -> tuple[Tensor, Tensor]:
    losses = functional.cross_entropy(output["logits"], target, reduction="none")
    return (losses * (target != 0)).sum(), (target != 0).sum()


# --- batches --------------------------------------------------------------------------------------


def labelled(samples: int) -> tuple[Any, ...]:
    return torch.randn(samples, WIDTH), torch.arange(samples) % CLASSES


def plain(samples: int) -> tuple[Any, ...]:
    return (torch.randn(samples, WIDTH),)


def sequences(samples: int) -> tuple[Any, ...]:
    return (torch.randn(samples, STEPS, WIDTH),)


def by_steps(samples: int) -> tuple[Any, ...]:
    return (torch.randn(STEPS, samples, WIDTH),)


def with_lengths(samples: int) -> tuple[Any, ...]:
    return torch.randn(samples, STEPS, WIDTH), STEPS - torch.arange(samples) * 3 % STEPS


def packed(samples: int) -> tuple[Any, ...]:
    x, lengths = with_lengths(samples)
    return (pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False),)


def masked(samples: int) -> tuple[Any, ...]:
    x, lengths = with_lengths(samples)
    return x, torch.arange(STEPS) < lengths[:, None]


def classes(samples: int) -> Tensor:
    """Return targets of which at least one counts, however few there are."""
    return 2 - torch.arange(samples) % CLASSES


def values(samples: int) -> Tensor:
    return torch.randn(samples, STEPS, CLASSES)


@dataclass(frozen=True)
class Kind:
    """A model with its batches.

    Attributes:
        build: makes the model.
        inputs: makes the arguments for a number of samples.
        dim: the dimension of the inputs that has the samples.
        loss: what `spread` is given; the output is then a loss.
        target: makes a target for it.
        refusal: a regular expression that a refusal matches; None if nothing is refused.
        training: whether the model is in training mode, with statistics of the whole batch.
        in_ranks: whether ranks return what one process would for their samples, without a refusal
            on one rank, which would leave the other ranks waiting.
    """

    build: Callable[[], nn.Module]
    inputs: Callable[[int], tuple[Any, ...]]
    dim: int = 0
    loss: Any = None
    target: Callable[[int], Tensor] = classes
    refusal: str | None = None
    training: bool = False
    in_ranks: bool = True

    def made(self) -> nn.Module:
        """Return a new model in its mode; layers of cuDNN's RNN have gradients only in training."""
        module = self.build().train(self.training)
        for layer in module.modules():
            if isinstance(layer, nn.RNNBase):
                layer.train()
        return module


def _headed(make: Callable[[Tensor, Tensor], Any], **options: Any) -> Kind:
    return Kind(lambda: Headed(make), labelled, **options)


def _recurrent(inputs: Any, kind: Any = nn.LSTM, dim: int = 0, **options: Any) -> Kind:
    return Kind(lambda: Recurrent(kind, **options), inputs, dim)


_LENGTHS = r"total_length="
KINDS: dict[str, Kind] = {
    "logits": _headed(lambda y, labels: y),
    "as many classes as samples": Kind(lambda: Headed(lambda y, labels: y, 2), labelled),
    "a value a sample": _headed(lambda y, labels: y.square().sum(1)),
    "a column": _headed(lambda y, labels: y.sum(1, keepdim=True)),
    "transposed": _headed(lambda y, labels: y.T),
    "own loss": _headed(own_loss),
    "own loss, dict": _headed(lambda y, labels: {"loss": own_loss(y, labels), "logits": y}),
    "own loss, tuple": _headed(lambda y, labels: (own_loss(y, labels)[None], [y, (y.T,)])),
    "own loss, named": _headed(
        lambda y, labels: Named(own_loss(y, labels), {"a": y, "b": y.exp()})
    ),
    "own loss, dataclass": _headed(lambda y, labels: Output(y, (y.sin(), y), own_loss(y, labels))),
    "own loss, read": _headed(lambda y, labels: Output(y, (), own_loss(y, labels).item())),
    "dict": _headed(lambda y, labels: {"a": [y, y], "b": {"c": y.sin()}, "n": None, "k": 3}),
    "dataclass": _headed(lambda y, labels: Output(y, (y.sin(), y[None]))),
    "tokens in one dimension": Kind(
        lambda: nn.Sequential(nn.Linear(WIDTH, CLASSES), nn.Flatten(0, 1)), sequences
    ),
    "tokens that a mask chose": Kind(lambda: Choosing(WIDTH, 2), masked),
    "LSTM": _recurrent(sequences, batch_first=True),
    "LSTM, two layers, bidirectional": _recurrent(
        sequences, num_layers=2, bidirectional=True, batch_first=True
    ),
    "LSTM, dim=1": _recurrent(by_steps, dim=1),
    "GRU": _recurrent(sequences, nn.GRU, batch_first=True),
    "GRU, two layers, dim=1": _recurrent(by_steps, nn.GRU, 1, num_layers=2),
    "RNN": _recurrent(sequences, nn.RNN, batch_first=True),
    "LSTM, packed": _recurrent(packed),
    "GRU, packed, two layers": _recurrent(packed, nn.GRU, num_layers=2),
    "padded inside": Kind(lambda: Tagger(None), with_lengths, refusal=_LENGTHS),
    "padded inside to a length": Kind(lambda: Tagger(STEPS), with_lengths),
    "batch norm": Kind(Normalized, plain),
    "batch norm, of the whole batch": Kind(Normalized, plain, training=True, in_ranks=False),
    "pairs of samples": _headed(
        lambda y, labels: y @ y.T, refusal="outside the module", in_ranks=False
    ),
    "a sum over samples": _headed(
        lambda y, labels: (y, y.T @ y), refusal=r"expand\(\) at no cost", in_ranks=False
    ),
    "the best sample": _headed(
        lambda y, labels: (y, y.sum(1).argmax()), refusal="entry for each", in_ranks=False
    ),
    "how many samples": _headed(
        lambda y, labels: {"y": y, "rows": len(y)}, refusal="entry for each", in_ranks=False
    ),
    "loss=": _headed(lambda y, labels: y, loss=nn.CrossEntropyLoss(ignore_index=1)),
    "loss= the model's own": _headed(
        lambda y, labels: {"loss": own_loss(y, labels), "logits": y},
        loss=lambda output, target: output["loss"],
    ),
    "loss= sum and count": _headed(lambda y, labels: {"logits": y}, loss=counted),
    "loss= padded inside": Kind(
        lambda: TaggerAlone(None),
        with_lengths,
        loss=nn.MSELoss(),
        target=values,
        refusal=_LENGTHS,
        in_ranks=False,
    ),
    "loss= padded inside to a length": Kind(
        lambda: TaggerAlone(STEPS), with_lengths, loss=nn.MSELoss(), target=values
    ),
}


def mean_of(output: Any, samples: int) -> Tensor:
    """Return a mean over samples of everything in an output."""
    values = [
        tensor.sum() / (1 if tensor.numel() == 1 else samples or 1) for tensor in tensors_of(output)
    ]
    return torch.stack(values).sum()


def tensors_of(output: Any) -> Iterator[Tensor]:
    """Yield the floating-point tensors of an output, in order."""
    if isinstance(output, Tensor):
        if output.is_floating_point():
            yield output
        return
    parts: Any = ()
    if isinstance(output, PackedSequence):
        parts = (output.data,)
    elif isinstance(output, dict):
        parts = output.values()
    elif isinstance(output, Output):
        parts = vars(output).values()
    elif isinstance(output, (list, tuple)):
        parts = output
    for part in parts:
        yield from tensors_of(part)
