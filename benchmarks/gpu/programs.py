"""Whole training steps and forward passes, for timing and for following their allocations."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from clock.language_models import SIZES, LanguageModel
from clock.nano_gpt import LENGTH, WORDS, NanoGpt
from workloads import language_model
from workloads.residual_network import ResidualNetwork

Step = Callable[[], Any]


def _training(
    model: nn.Module,
    loss_of: Callable[[], Tensor],
    optimizer: torch.optim.Optimizer,
    context: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Step:
    def step() -> None:
        optimizer.zero_grad()
        with context():
            loss = loss_of()
        loss.backward()
        optimizer.step()

    model.train()
    return step


def _mixed() -> AbstractContextManager[Any]:
    return torch.autocast("cuda", torch.bfloat16)


def _images(batch: int, order: torch.memory_format) -> tuple[Tensor, Tensor]:
    images = torch.randn(batch, 3, 224, 224, device="cuda").to(memory_format=order)
    return images, torch.randint(1000, (batch,), device="cuda")


def resnet(batch: int, *, is_mixed: bool, is_last: bool) -> Step:
    """ResNet-50; convolutions use TF32 unless mixed, as by default."""
    order = torch.channels_last if is_last else torch.contiguous_format
    with torch.device("cuda"):
        model = ResidualNetwork().to(memory_format=order)
    x, y = _images(batch, order)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    context = _mixed if is_mixed else nullcontext
    return _training(model, lambda: functional.cross_entropy(model(x), y), optimizer, context)


def timm_model(name: str, batch: int) -> Step:
    import timm

    with torch.device("cuda"):
        model = timm.create_model(name).to(memory_format=torch.channels_last)
    x, y = _images(batch, torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    return _training(model, lambda: functional.cross_entropy(model(x), y), optimizer, _mixed)


def nano_gpt(batch: int) -> Step:
    """nanoGPT without flash attention, in TF32 and bfloat16."""
    torch.backends.cuda.matmul.allow_tf32 = True
    with torch.device("cuda"):
        model = NanoGpt()
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.02)
    ids = torch.randint(WORDS, (batch, LENGTH), device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    return _training(model, lambda: model(ids, ids), optimizer, _mixed)


def gpt(batch: int, *, is_mixed: bool, fused: bool, recompute: bool = False) -> Step:
    """A language model of 12 layers of width 768 with fused attention."""
    size = language_model.LanguageModelSize(50304, 768, 12, 12, 1024)
    with torch.device("cuda"):
        model = language_model.LanguageModel(size)
    if recompute:
        for layer in model.layers:
            _recompute(layer)
    ids = torch.randint(size.words, (batch, size.tokens), device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=fused)
    context = _mixed if is_mixed else nullcontext
    return _training(model, lambda: functional.cross_entropy(model(ids), ids), optimizer, context)


def _recompute(layer: nn.Module) -> None:
    forward = layer.forward
    layer.forward = lambda x: checkpoint(forward, x, use_reentrant=False)


class LlamaLayer(nn.Module):
    def __init__(self, width: int, inner: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first_norm, self.second_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        y = self.first_norm(x)
        q, k, v = (
            layer(y).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        q, k = (one * cosine + _rotated(one) * sine for one in (q, k))
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(attended.transpose(1, 2).flatten(2))
        y = self.second_norm(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


def _rotated(x: Tensor) -> Tensor:
    low, high = x.chunk(2, -1)
    return torch.cat((-high, low), -1)


class Llama(nn.Module):
    """A decoder with rotary positions, RMS norms and gated feed-forward layers."""

    def __init__(self, words: int, width: int, inner: int, heads: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.layers = nn.ModuleList(LlamaLayer(width, inner, heads) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, ids: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x, cosine, sine)
        return self.head(self.norm(x))


def llama(batch: int, tokens: int) -> Step:
    """1.1 billion parameters in bfloat16, with AdamW over lists of tensors."""
    with torch.device("cuda"):
        model = Llama(32000, 2048, 5632, 32, 18).to(torch.bfloat16)
        cosine, sine = (torch.randn(tokens, 64, dtype=torch.bfloat16) for _ in range(2))
    ids = torch.randint(32000, (batch, tokens), device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)

    def loss() -> Tensor:
        logits = model(ids, cosine, sine)
        return functional.cross_entropy(logits.flatten(0, 1).float(), ids.flatten())

    return _training(model, loss, optimizer)


def float32_language_model(name: str, length: int, batch: int, *, trains: bool) -> Step:
    """One of the models that NeuSight measured, without an optimizer."""
    with torch.device("cuda"):
        model = LanguageModel(SIZES[name], trains=trains).train(trains)
    ids = torch.ones(batch, length, dtype=torch.long, device="cuda")

    def step() -> None:
        model.zero_grad(set_to_none=False)
        with torch.set_grad_enabled(trains):
            output = model(ids)
        if trains:
            functional.cross_entropy(output.view(-1, output.size(-1)), ids.view(-1)).backward()

    return step


def lstm(batch: int, length: int) -> Step:
    with torch.device("cuda"):
        embedding, head = nn.Embedding(10000, 1024), nn.Linear(1024, 10000)
        layers = nn.LSTM(1024, 1024, 2, batch_first=True)
    model = nn.ModuleList([embedding, layers, head])
    ids = torch.randint(10000, (batch, length), device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def loss() -> Tensor:
        logits = head(layers(embedding(ids))[0])
        return functional.cross_entropy(logits.flatten(0, 1), ids.flatten())

    return _training(model, loss, optimizer)


class UNet(nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(depth + 1)]
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.ModuleList(_double(a, b) for a, b in itertools.pairwise(widths))
        self.rise = nn.ModuleList(
            nn.ConvTranspose2d(b, a, 2, 2) for a, b in itertools.pairwise(widths)
        )
        self.up = nn.ModuleList(_double(2 * a, a) for a in widths[:-1])
        self.last = nn.Conv2d(width, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x, kept = self.first(x), []
        for block in self.down:
            kept.append(x)
            x = block(functional.max_pool2d(x, 2))
        for rise, block in zip(reversed(self.rise), reversed(self.up), strict=True):
            x = block(torch.cat((rise(x), kept.pop()), 1))
        return self.last(x)


def _double(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1),
        nn.GroupNorm(8, outputs),
        nn.SiLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1),
        nn.GroupNorm(8, outputs),
        nn.SiLU(),
    )


def u_net(batch: int, side: int) -> Step:
    with torch.device("cuda"):
        model = UNet(64, 4)
    x = torch.randn(batch, 3, side, side, device="cuda")
    optimizer = torch.optim.Adam(model.parameters(), 1e-4)
    return _training(model, lambda: functional.mse_loss(model(x), x), optimizer, _mixed)


def perceptron(batch: int) -> Step:
    """Small layers, whose kernels take less time than their launches."""
    with torch.device("cuda"):
        model = nn.Sequential(
            *(nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(20)), nn.Linear(256, 10)
        )
    x, y = torch.randn(batch, 256, device="cuda"), torch.randint(10, (batch,), device="cuda")
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    return _training(model, lambda: functional.cross_entropy(model(x), y), optimizer)


# By name: what creates the model and returns its step.
PROGRAMS: dict[str, Callable[[], Step]] = {
    "perceptron, batch 64": lambda: perceptron(64),
    "ResNet-50, TF32, batch 64": lambda: resnet(64, is_mixed=False, is_last=False),
    "ResNet-50, mixed, channels last, batch 256": lambda: resnet(256, is_mixed=True, is_last=True),
    "ResNet-50, mixed, NCHW, batch 128": lambda: resnet(128, is_mixed=True, is_last=False),
    "ViT-B/16, mixed, batch 128": lambda: timm_model("vit_base_patch16_224", 128),
    "ConvNeXt-T, mixed, batch 128": lambda: timm_model("convnext_tiny", 128),
    "EfficientNet-B0, mixed, batch 128": lambda: timm_model("efficientnet_b0", 128),
    "nanoGPT, attention unfused, batch 12": lambda: nano_gpt(12),
    "GPT, mixed, fused AdamW, batch 16": lambda: gpt(16, is_mixed=True, fused=True),
    "GPT, float32, batch 4": lambda: gpt(4, is_mixed=False, fused=False),
    "GPT, mixed, recomputed, batch 16": lambda: gpt(16, is_mixed=True, fused=True, recompute=True),
    "Llama 1.1B, bfloat16, 4 x 1024": lambda: llama(4, 1024),
    "BERT-large, float32, training, 8 x 512": lambda: float32_language_model(
        "bert_large", 512, 8, trains=True
    ),
    "GPT-2 large, float32, forward, 4 x 1024": lambda: float32_language_model(
        "gpt2_large", 1024, 4, trains=False
    ),
    "OPT-1.3B, float32, forward, 2 x 1024": lambda: float32_language_model(
        "opt_13", 1024, 2, trains=False
    ),
    "LSTM, float32, 64 x 128": lambda: lstm(64, 128),
    "U-Net, mixed, 8 x 256": lambda: u_net(8, 256),
}
