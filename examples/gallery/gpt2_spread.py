"""GPT-2 under `anyrig.spread`: each GPU computes the loss of its samples, and reduces gradients
during the backward pass.
"""

import torch
from gpt2 import GPT2, load_tokens
from torch import Tensor, nn

import anyrig

torch.set_float32_matmul_precision("high")


class MeanOverTokens(nn.CrossEntropyLoss):
    def forward(self, scores: Tensor, targets: Tensor) -> Tensor:
        return super().forward(scores.flatten(0, 1), targets.flatten())


rig = anyrig.Rig.detect()
model = anyrig.spread(GPT2(), rig, loss=MeanOverTokens(), precision="bfloat16")
optimizer = torch.optim.AdamW(model.parameters(), fused=True)

for tokens, targets in anyrig.prefetch(load_tokens(32), rig):
    loss = model(tokens, target=targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    anyrig.print_once("step")
