"""Small modules whose code, losses and outputs are like those of public libraries."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

V, D, T = 11, 6, 5
Loss = Callable[[Any, Tensor, Tensor], Any]
# The losses of logits of shape (samples, T, V) and labels of shape (samples, T).
LOSSES: dict[str, Loss] = {}
# Those whose targets no argument shows.
WHOLE: dict[str, Loss] = {}


def loss(function: Loss) -> Loss:
    """Register what a `Tagger` computes from its logits and labels."""
    LOSSES[function.__name__] = function
    return function


def whole_loss(function: Loss) -> Loss:
    """Register a loss that needs the whole batch."""
    WHOLE[function.__name__] = function
    return function


@dataclasses.dataclass
class Tagged(OrderedDict):  # type: ignore[type-arg]
    """An output of a class like those of transformers."""

    loss: Tensor
    logits: Tensor

    def __post_init__(self) -> None:
        self.update(loss=self.loss, logits=self.logits)

    def __reduce__(self) -> Any:
        return type(self), (self.loss, self.logits)


class Tagger(nn.Module):
    """Embeds words, computes layers that can be divided, and the loss of this name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.embedding = nn.Embedding(V, D)
        self.layers = nn.ModuleList(nn.Linear(D, D) for _ in range(4))
        self.head = nn.Linear(D, V)
        self.criterion = nn.CrossEntropyLoss()
        self.register_buffer("weights", torch.arange(1.0, V + 1))

    def forward(self, words: Tensor, labels: Tensor) -> Tagged:
        h = self.embedding(words)
        for layer in self.layers:
            h = h + layer(h).tanh()
        logits = self.head(h)
        return Tagged({**LOSSES, **WHOLE}[self.name](self, logits, labels), logits)


class Indexing(nn.Module):
    """Reads the device of a value of the first layers where it computes the last ones."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(*[nn.Linear(D, D) for _ in range(4)])
        self.second = nn.Sequential(*[nn.Linear(D, D) for _ in range(4)])

    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        h = self.first(x)
        device = h.device
        h = self.second(h.tanh())
        return h[torch.arange(h.shape[0], device=device), places.to(device)]


@loss
def a_function(net: Any, logits: Tensor, labels: Tensor) -> Any:
    return F.cross_entropy(logits.view(-1, V), labels.view(-1))


@loss
def labels_are_shifted(net: Any, logits: Tensor, labels: Tensor) -> Any:
    shifted = F.pad(labels, (0, 1), value=-100)[..., 1:].contiguous()
    return F.cross_entropy(logits.view(-1, V), shifted.view(-1).to(logits.device), reduction="mean")


@loss
def a_submodule(net: Any, logits: Tensor, labels: Tensor) -> Any:
    return net.criterion(logits.transpose(1, 2), labels)


@loss
def a_criterion_made_in_forward(net: Any, logits: Tensor, labels: Tensor) -> Any:
    return nn.CrossEntropyLoss(ignore_index=-100)(logits.flatten(0, 1), labels.flatten())


@loss
def log_probabilities(net: Any, logits: Tensor, labels: Tensor) -> Any:
    return F.nll_loss(F.log_softmax(logits, -1).flatten(0, 1), labels.flatten(), ignore_index=-100)


@loss
def scaled_with_another_term(net: Any, logits: Tensor, labels: Tensor) -> Any:
    found = 0.3 * F.cross_entropy(logits.flatten(0, 1), labels.flatten())
    found += 0.1 * logits.square().mean()
    return found


@loss
def two_losses(net: Any, logits: Tensor, labels: Tensor) -> Any:
    first = F.cross_entropy(logits[:, 0], labels[:, 0])
    return first + 2 * F.cross_entropy(logits[:, 1:].flatten(0, 1), labels[:, 1:].flatten())


@loss
def smoothed(net: Any, logits: Tensor, labels: Tensor) -> Any:
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=0.1)


@loss
def some_labels_are_masked(net: Any, logits: Tensor, labels: Tensor) -> Any:
    kept = torch.where(labels == 3, -100, labels)
    return F.cross_entropy(logits.flatten(0, 1), kept.flatten())


@loss
def only_selected_tokens(net: Any, logits: Tensor, labels: Tensor) -> Any:
    kept = labels != -100
    return F.cross_entropy(logits[kept], labels[kept])


@loss
def a_mean_over_samples(net: Any, logits: Tensor, labels: Tensor) -> Any:
    return (logits.mean((1, 2)) - labels.double().mean(1)).square().mean()


@whole_loss
def class_weights(net: Any, logits: Tensor, labels: Tensor) -> Any:
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), weight=net.weights)


@whole_loss
def a_sum_that_is_divided(net: Any, logits: Tensor, labels: Tensor) -> Any:
    total = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
    return total / (labels != -100).sum()


@whole_loss
def a_contrast_between_samples(net: Any, logits: Tensor, labels: Tensor) -> Any:
    features = logits.mean(1)
    pairs = features @ features.flip(-1).t()
    return F.cross_entropy(pairs, torch.arange(pairs.shape[0], device=pairs.device))


@whole_loss
def a_contrast_between_labels(net: Any, logits: Tensor, labels: Tensor) -> Any:
    features = logits.mean(1)
    samples = torch.arange(labels.shape[0]).to(labels)
    return F.cross_entropy(features @ features.flip(-1).t(), samples)


@whole_loss
def targets_of_a_teacher(net: Any, logits: Tensor, labels: Tensor) -> Any:
    return F.cross_entropy(logits.flatten(0, 1), logits.detach().flip(-1).argmax(-1).flatten())


@whole_loss
def labels_changed_in_place(net: Any, logits: Tensor, labels: Tensor) -> Any:
    kept = labels.clone()
    kept[kept == 3] = -100
    return F.cross_entropy(logits.flatten(0, 1), kept.flatten())


def batch(samples: int, ignored: str = "unevenly") -> dict[str, Tensor]:
    """Return words and labels, some, all or no labels of which are ignored."""
    generator = torch.Generator().manual_seed(samples)
    words, labels = torch.randint(V, (2, samples, T), generator=generator).unbind()
    if ignored == "unevenly":  # none of the first sample, all of the last, some of the others
        counted = torch.arange(samples).flip(0)[:, None] * T // max(samples - 1, 1)
        labels = torch.where(torch.arange(T) < counted, labels, -100)
    return {"words": words, "labels": torch.full_like(labels, -100) if ignored == "all" else labels}
