"""GPT-2 under `nn.DataParallel`, as many scripts still train: the baseline of gpt2_spread.py."""

import torch
from gpt2 import GPT2, load_tokens
from torch import nn

torch.set_float32_matmul_precision("high")
model = nn.DataParallel(GPT2().cuda())
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
criterion = nn.CrossEntropyLoss()

for tokens, targets in load_tokens(32):
    with torch.autocast("cuda", torch.bfloat16):
        scores = model(tokens.cuda())
        loss = criterion(scores.flatten(0, 1), targets.cuda().flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"loss {loss.item():.3f}")
