"""Low-rank adapters on a frozen Llama with the shapes of the 1.1 billion TinyLlama."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

WIDTH, HIDDEN, HEADS, KEY_HEADS, LAYERS, WORDS, RANK = 2048, 5632, 32, 4, 22, 32000, 16


class Adapted(nn.Linear):
    """A frozen linear layer plus a product of two small matrices, which learn."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)
        self.weight.requires_grad_(False)
        self.down = nn.Linear(inputs, RANK, bias=False)
        self.up = nn.Linear(RANK, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.up(self.down(x))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.size = WIDTH // HEADS
        self.q, self.out = Adapted(WIDTH, WIDTH), Adapted(WIDTH, WIDTH)
        self.k, self.v = (Adapted(WIDTH, KEY_HEADS * self.size) for _ in range(2))
        self.gate, self.up = Adapted(WIDTH, HIDDEN), Adapted(WIDTH, HIDDEN)
        self.down = Adapted(HIDDEN, WIDTH)

    def turned(self, x: Tensor) -> Tensor:
        """Rotate the halves of each head by an angle that grows with the position."""
        first, second = x.chunk(2, dim=-1)
        place = torch.arange(x.shape[2], device=x.device, dtype=torch.float32)
        rate = 10000 ** -torch.linspace(0, 1, self.size // 2, device=x.device)
        cosine, sine = (f(place[:, None] * rate).to(x.dtype) for f in (torch.cos, torch.sin))
        return torch.cat([first * cosine - second * sine, first * sine + second * cosine], dim=-1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm_1(x)
        q, k, v = (
            f(y).unflatten(2, (-1, self.size)).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        y = functional.scaled_dot_product_attention(
            self.turned(q), self.turned(k), v, is_causal=True, enable_gqa=True
        )
        x = x + self.out(y.transpose(1, 2).flatten(2))
        y = self.norm_2(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(self.norm(x))


torch.set_default_dtype(torch.bfloat16)
with torch.device("cuda"):
    model = Llama()
for part in (model.tokens, model.norm, model.head):
    part.requires_grad_(False)
learning = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.AdamW(learning, fused=True)

text = torch.randint(WORDS, (16, 1025))
for (batch,) in DataLoader(TensorDataset(text), batch_size=4):
    batch = batch.cuda()
    scores = model(batch[:, :-1])
    loss = functional.cross_entropy(scores.float().flatten(0, 1), batch[:, 1:].flatten())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(learning, 1.0)
    optimizer.step()
    optimizer.zero_grad()
