"""Modules of many kinds, each with a call: what a chain must compute exactly.

More than 400 lines: one list of models, which several tests try one after the other.
"""

from __future__ import annotations

import dataclasses
import math
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

D, V, T = 8, 19, 6
Case = Callable[[], tuple[nn.Module, tuple[Any, ...], dict[str, Any]]]
CASES: dict[str, Case] = {}


def case(*args: Any, **kwargs: Any) -> Callable[[Any], Any]:
    """Register a class, or a function that builds a module, with the arguments of a call."""

    def register(build: Any) -> Any:
        CASES[build.__name__] = lambda: (
            build(),
            tuple(a() if callable(a) else a for a in args),
            {key: a() if callable(a) else a for key, a in kwargs.items()},
        )
        return build

    return register


def vectors() -> Tensor:
    return torch.randn(4, D)


def sequences() -> Tensor:
    return torch.randn(2, T, D)


def images() -> Tensor:
    return torch.randn(2, 3, 16, 16)


def words() -> Tensor:
    return torch.randint(V, (2, T))


class FeedForward(nn.Module):
    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(D, 2 * D), nn.Linear(2 * D, D)
        self.dropout, self.act = nn.Dropout(0.2), nn.ReLU(inplace)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.narrow(self.act(self.wide(x))))


@case(vectors)
def sequential() -> nn.Module:
    return nn.Sequential(nn.Linear(D, D), nn.ReLU(inplace=True), nn.Linear(D, D), nn.Tanh())


@case(vectors)
def nested_sequential() -> nn.Module:
    inner = nn.Sequential(OrderedDict(a=nn.Linear(D, D), b=nn.Dropout(0.5), c=nn.Linear(D, D)))
    return nn.Sequential(inner, nn.Sequential(), nn.Sequential(FeedForward(), nn.BatchNorm1d(D)))


class TwoOutputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, x: Tensor) -> Any:
        return self.a(x), {"b": [self.b(x), 3]}


class OneTupleInput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c = nn.Linear(D, D)

    def forward(self, pair: Any) -> Any:
        x, rest = pair
        return self.c(x) * rest["b"][1] + rest["b"][0]


@case(vectors)
def tuples_in_sequential() -> nn.Module:
    return nn.Sequential(nn.Linear(D, D), TwoOutputs(), OneTupleInput(), nn.Linear(D, D))


@case(sequences)
def lstm_in_sequential() -> nn.Module:
    class First(nn.Module):
        def forward(self, pair: Any) -> Tensor:
            return pair[0]

    return nn.Sequential(nn.Linear(D, D), nn.LSTM(D, D), First(), nn.Linear(D, 3))


class Doubling(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        for layer in self:
            x = x + layer(x)
        return 2 * x


@case(vectors)
def own_forward_of_a_sequential() -> nn.Module:
    return Doubling(*(nn.Linear(D, D) for _ in range(5)))


@case(vectors)
class ResidualMlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(FeedForward() for _ in range(6))
        self.norms = nn.ModuleList(nn.LayerNorm(D) for _ in range(6))
        self.head = nn.Linear(D, 3)

    def forward(self, x: Tensor) -> Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + layer(norm(x))
        return self.head(x)


class ConvPair(nn.Module):
    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(before, after, 3, padding=1),
            nn.BatchNorm2d(after),
            nn.ReLU(inplace=True),
            nn.Conv2d(after, after, 3, padding=1),
            nn.BatchNorm2d(after),
            nn.ReLU(inplace=True),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


@case(images)
class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        sizes = [3, 4, 8, 16]
        self.down = nn.ModuleList(ConvPair(a, b) for a, b in pairwise(sizes))
        self.bottom = ConvPair(16, 32)
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * n, n, 2, stride=2) for n in (16, 8, 4))
        self.merge = nn.ModuleList(ConvPair(2 * n, n) for n in (16, 8, 4))
        self.head = nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for level in self.down:
            x = level(x)
            skips.append(x)
            x = F.max_pool2d(x, 2)
        x = self.bottom(x)
        for up, merge in zip(self.up, self.merge, strict=True):
            x, skip = up(x), skips.pop()
            missing = skip.size(2) - x.size(2)
            x = merge(torch.cat([skip, F.pad(x, (0, missing, 0, missing))], 1))
        return self.head(x)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, 2, width // 2).transpose(1, 2)
            for part in self.qkv(x).split(width, -1)
        )
        y = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=mask,
            is_causal=mask is None,
            dropout_p=0.1 if self.training else 0.0,
        )
        return self.out(y.transpose(1, 2).contiguous().view(batch, length, width))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(D), Attention()
        self.norm2, self.mlp = nn.LayerNorm(D), FeedForward()

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = x + self.attention(self.norm1(x), mask)
        return x + self.mlp(self.norm2(x))


@case(words, words)
class Gpt(nn.Module):
    def __init__(self, layers: int = 3) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(V, D), nn.Embedding(T, D)
        self.layers = nn.ModuleDict({"h": nn.ModuleList(Layer() for _ in range(layers))})
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, V, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Any:
        _, length = tokens.size()
        assert length <= T, f"{length} tokens are too many"
        place = torch.arange(0, length, dtype=torch.long, device=tokens.device)
        x = F.dropout(self.words(tokens) + self.places(place), 0.1, self.training)
        for layer in self.layers["h"]:
            x = layer(x)
        logits = self.head(self.norm(x))
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


@case(words)
class GptWithProduct(Gpt):
    """The tied head as a product; ``weight.T`` is recorded as `getattr`, a built-in function."""

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Any:
        x = self.words(tokens) + self.places.weight
        for layer in self.layers["h"]:
            x = layer(x)
        return self.norm(x) @ self.words.weight.T


@case(words)
def long_gpt() -> nn.Module:
    return Gpt(20)


class CrossLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(D, 2, batch_first=True)
        self.mlp = FeedForward()

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        attended, _ = self.attention(x, memory, memory, need_weights=False)
        return self.mlp(x + attended)


@case(words, targets=words)
class EncoderDecoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(V, D)
        self.encoder = nn.ModuleList(Layer() for _ in range(3))
        self.decoder = nn.ModuleList(CrossLayer() for _ in range(3))
        self.bias = nn.Parameter(torch.randn(V))

    def forward(self, source: Tensor, *, targets: Tensor) -> Tensor:
        memory = self.words(source) * math.sqrt(D)
        for layer in self.encoder:
            memory = layer(memory)
        x = self.words(targets)
        for layer in self.decoder:
            x = layer(x, memory)
        return F.linear(x, self.words.weight, self.bias)


@dataclasses.dataclass
class Output:
    logits: Tensor
    hidden: list[Tensor]
    loss: Tensor | None = None


@case(input_ids=words, return_dict=True)
class KeywordsAndDataclass(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(V, D), nn.Linear(D, V)
        self.layers = nn.ModuleList(Layer() for _ in range(2))

    def forward(
        self,
        input_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        return_dict: bool | None = None,
        **others: Any,
    ) -> Any:
        x = self.words(input_ids) if inputs_embeds is None else inputs_embeds
        hidden = []
        for layer in self.layers:
            hidden.append(x)
            x = layer(x)
        logits = self.head(x)
        loss = None if labels is None else F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return Output(logits, hidden, loss) if return_dict else (logits, hidden)


@case({"x": torch.ones(4, D), "scale": 2})
class DictInDictOut(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = FeedForward(), FeedForward()

    def forward(self, batch: dict[str, Any]) -> dict[str, Any]:
        x = self.a(batch["x"]) * batch["scale"]
        return {"out": self.b(x), "middle": (x, 5), "nothing": None}


Pair = namedtuple("Pair", "left right")


@case(vectors)
class NamedTupleOut(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = FeedForward(), FeedForward()

    def forward(self, x: Tensor) -> Pair:
        left = self.a(x)
        return Pair(left, self.b(left))


@case(vectors, vectors, vectors)
class ManyInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(D, D) for _ in range(3))

    def forward(self, *xs: Tensor) -> Tensor:
        x: Any = 0
        for layer, each in zip(self.layers, xs, strict=True):
            x = layer(each + x)
        return x


class Clamped(nn.Module):
    """Scales its input or not, depending on values."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        if x.abs().sum() > 0:
            return x / 2
        return x


@case(vectors)
class ControlFlowInParts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Clamped() for _ in range(5))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


@case(vectors)
class ModeOfTheWhole(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.extra, self.b = FeedForward(), nn.Linear(D, D), FeedForward()

    def forward(self, x: Tensor) -> Any:
        x = self.a(x)
        if self.training:
            aside = self.extra(x + torch.randn_like(x))
            return self.b(x) + 1, aside
        return self.b(x)


@case(vectors)
class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(D, D), nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        view = x[:, :2]
        y = self.b(x.exp())
        x += 1
        view.mul_(2)
        y[:, 0] = 0
        return self.c(F.relu(x, inplace=True)) + y + x


@case(vectors)
class InPlaceFirst(nn.Module):
    """Each layer changes its input, so that the skip connection gets the changed value."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(D, D)
        self.layers = nn.ModuleList(nn.Linear(D, D) for _ in range(4))
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for layer in self.layers:
            x = x + layer(self.act(x))
        return x


@case(vectors)
class SameModuleInALoop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.start, self.layer, self.end = nn.Linear(D, D), FeedForward(), nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        x = self.start(x)
        for _ in range(4):
            x = self.layer(x)
        return self.end(x)


@case(vectors)
class SharedBatchNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(D, D) for _ in range(4))
        self.norm = nn.BatchNorm1d(D)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers[1](self.norm(self.layers[0](x)))
        return self.layers[3](self.layers[2](self.norm(x)))


@case(vectors)
class Buffers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(D, D) for _ in range(4))
        self.register_buffer("scale", torch.full((D,), 1.5))
        self.register_buffer("calls", torch.zeros(()), persistent=False)
        self.shift = torch.ones(D)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        for layer in self.layers:
            x = layer(x) * self.scale + self.shift + torch.ones(D).cumsum(0)
        return x


@case(vectors)
class RandomOperations(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x + torch.randn(x.shape) + torch.rand(D))
        return self.b(F.dropout(x, 0.3, training=True) * torch.bernoulli(torch.full((D,), 0.5)))


@case(vectors)
class Hooked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(FeedForward() for _ in range(3))
        self.layers[0].register_forward_pre_hook(lambda module, args: (args[0] * 2,))
        self.layers[1].register_forward_hook(lambda module, args, result: result + args[0])
        self.layers[2].register_full_backward_hook(lambda module, grads, _: (grads[0] * 3,))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


@case(vectors)
class NoGradPart(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.head = FeedForward(), FeedForward()

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = self.frozen(x)
        return self.head(x)


@case(vectors)
class AutocastPart(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = FeedForward(), FeedForward()

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            x = self.a(x)
        return self.b(x.float())


@case(vectors)
class CountsCalls(nn.Module):
    """Its submodules count in attributes, which tracing must not change."""

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.calls, self.seen = nn.Linear(D, D), 0, []

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            self.seen.append(x.shape)
            return self.linear(x) * self.calls

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(self.Counting() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


@case(vectors)
class Parametrized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.utils.parametrizations.weight_norm(nn.Linear(D, D))
        self.b = nn.utils.parametrizations.spectral_norm(nn.Linear(D, D))
        self.c = nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.b(self.a(x)))


@case(sequences)
class TorchEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(D, 2, 16, batch_first=True, norm_first=True)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(D, 2, 16) for _ in range(3))
        self.last = layer

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.last(x)


@case(sequences)
class TorchTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        encoder = nn.TransformerEncoderLayer(D, 2, 16, batch_first=True)
        decoder = nn.TransformerDecoderLayer(D, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(encoder, 3, enable_nested_tensor=False)
        self.decoder = nn.TransformerDecoder(decoder, 3, nn.LayerNorm(D))

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(x, self.encoder(x))


@case(sequences)
class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(FeedForward() for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return x


@case(vectors)
class OwnParameters(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.randn(D, D) for _ in range(4))
        self.biases = nn.ParameterDict({str(i): torch.randn(D) for i in range(4)})

    def forward(self, x: Tensor) -> Tensor:
        for i, weight in enumerate(self.weights):
            x = torch.tanh(x @ weight + self.biases[str(i)])
        return x


@case(sequences)
class Rotary(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(D, D) for _ in range(4))
        self.register_buffer("frequency", 1.0 / 10 ** torch.linspace(0, 1, D), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        angle = torch.arange(x.shape[1], device=x.device)[:, None] * self.frequency
        cos, sin = angle.cos(), angle.sin()
        for layer in self.layers:
            x = x + layer(x * cos + x.flip(-1) * sin)
        return x


@case(images)
class Inception(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.branches = nn.ModuleList(
            nn.ModuleList(nn.Conv2d(4, 2, k, padding=k // 2) for k in (1, 3)) for _ in range(3)
        )
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for branches in self.branches:
            x = torch.cat([branch(x).relu_() for branch in branches], dim=1)
        return self.head(x.mean((2, 3)))


@case(images)
class DenseNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(3 + 2 * i, 2, 3, padding=1) for i in range(5))

    def forward(self, x: Tensor) -> Tensor:
        features = [x]
        for layer in self.layers:
            features.append(F.relu(layer(torch.cat(features, 1))))
        return torch.cat(features, 1)


@case(vectors)
class MixtureOfExperts(nn.Module):
    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Linear(D, 2)
            self.experts = nn.ModuleList(nn.Linear(D, D) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            out = torch.zeros_like(x)
            chosen = self.gate(x).argmax(-1)
            for i, expert in enumerate(self.experts):
                mine = (chosen == i).nonzero().squeeze(-1)
                if len(mine):
                    out = out.index_add(0, mine, expert(x[mine]))
            return out

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(self.Experts() for _ in range(3))
        self.head = nn.Linear(D, 2)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)


@case(sequences)
class PythonRandom(nn.Module):
    class Dropped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(D, D)

        def forward(self, x: Tensor) -> Tensor:
            import random

            return x if random.random() < 0.5 else self.linear(x)

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(self.Dropped() for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x
