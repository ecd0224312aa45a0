"""Runs every operation that needs a value in shape-only mode, and prints the outcomes."""

from __future__ import annotations

import sys

import torch

from anyrig.errors import ValueNeededError
from anyrig.virtual import install

install("1x700GiB", shape_only=True, assume_values="--assume-values" in sys.argv)
x = torch.randn(4, 3, device="cuda")
large = torch.ones(2048, 2048, dtype=torch.bool)  # more than shape-only mode keeps
large_mask, pixels = large.cuda(), torch.ones(2048, 2048, device="cuda")
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
    "ends": lambda: torch.isin(x[:, -1:], x[0]).any().item(),
    "special": lambda: torch.isin(x, x[0]).any().item(),
    "large item": lambda: large_mask.all().item(),
    "large mask": lambda: pixels[large_mask].shape,
    "large nonzero": lambda: large_mask.nonzero().shape,
    "large, on the host": lambda: (large.all().item(), pixels[large].shape),
}
for name, need in NEED_VALUES.items():
    try:
        print(name, "->", need())
    except ValueNeededError as error:
        print(name, "->", type(error).__name__, error)
# These would ask for values, but need not.
for bounds in ({}, {"a": 2.0, "b": 3.0}):
    torch.nn.init.trunc_normal_(torch.empty(64, 64, device="cuda"), **bounds)
linear = torch.nn.Linear(3, 2).cuda()
for fused in (
    torch.optim.SGD(linear.parameters(), momentum=0.9, fused=True),
    torch.optim.SGD(linear.parameters(), lr=torch.tensor(0.1).cuda(), fused=True),
):
    linear(x).sum().backward()
    fused.step()
repeated = torch.repeat_interleave(x, x[:, 0].long(), dim=0, output_size=7)
scores = torch.randn(5, 2, 4, device="cuda", requires_grad=True)
words = torch.tensor([[1, 2, 3], [3, 2, 1]]).cuda()
torch.nn.functional.ctc_loss(scores.log_softmax(-1), words, (5, 4), (3, 2)).backward()
print("no question", tuple(repeated.shape), tuple(scores.grad.shape))
print(repr(x[0]))
print(repr(torch.nn.Linear(3, 2).cuda().weight))
try:
    torch.ones(2).cuda().requires_grad_().mul(2).sum().backward()
    print("backward done")
    torch.empty(2**40, device="cuda")
except torch.OutOfMemoryError as error:
    print(str(error)[:66])
