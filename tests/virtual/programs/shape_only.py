"""Runs every operation that needs a value in shape-only mode, and prints the outcomes."""

from __future__ import annotations

import sys

import torch

from anyrig.errors import ValueNeededError
from anyrig.virtual import install

install("1x700GiB", shape_only=True, assume_values="--assume-values" in sys.argv)
x = torch.randn(4, 3, device="cuda")
NEED_VALUES = {
    "item": lambda: x.sum().item(),
    "bool": lambda: bool((x > 0).any()),
    "if": lambda: 1 if x[0, 0] > 0 else 2,
    "nonzero": lambda: x.nonzero().shape,
    "mask": lambda: x[x > 0].shape,
    "masked assignment": lambda: x.index_put_((x > 0,), torch.tensor(1.0, device="cuda")).shape,
    "masked_select": lambda: x.masked_select(x[0] > 0).shape,
    "cpu": lambda: x.cpu().tolist()[0],
    "equal": lambda: torch.equal(x, x + 1),
    "list": lambda: x.long().sum(0).tolist(),
}
for name, need in NEED_VALUES.items():
    try:
        print(name, "->", need())
    except ValueNeededError as error:
        print(name, "->", type(error).__name__, error)
print(repr(x[0]))
print(repr(torch.nn.Linear(3, 2).cuda().weight))
try:
    torch.ones(2).cuda().requires_grad_().mul(2).sum().backward()
    print("backward done")
    torch.empty(2**40, device="cuda")
except torch.OutOfMemoryError as error:
    print(str(error)[:66])
