"""Draws random numbers of every kind; prints the generator's offset and the allocated bytes."""

from __future__ import annotations

import json
import sys

import torch
from torch.nn import functional

from anyrig.virtual import install

install("A100-80GB", shape_only=sys.argv[1] == "shape-only")
torch.manual_seed(0)
x = torch.ones(300, 400, device="cuda")
chances = x[0] / 2
draws = {
    "rand": lambda: torch.rand(10**6, device="cuda"),
    "randn": lambda: torch.randn(300, 400, device="cuda", dtype=torch.bfloat16),
    "randint": lambda: torch.randint(5, (1000,), device="cuda"),
    "randperm": lambda: torch.randperm(5000, device="cuda"),
    "long randperm": lambda: torch.randperm(50_000, device="cuda"),
    "dropout": lambda: functional.dropout(x, 0.1),
    "bernoulli": lambda: torch.bernoulli(chances),
    "normal, deviations": lambda: torch.normal(0.0, chances),
    "normal, both": lambda: torch.normal(x, chances),
    "normal, means": lambda: torch.normal(x, 2.0),
    "one of chances": lambda: torch.multinomial(chances, 1),
    "some of chances": lambda: torch.multinomial(chances, 5),
    "some again and again": lambda: torch.multinomial(chances, 5, replacement=True),
    "exponential": lambda: x.exponential_(),
    # Beyond 32-bit offsets: two launches, and an increment computed for the whole tensor.
    "large": lambda: (
        torch.empty(2**31 + 2, device="cuda", dtype=torch.int8).random_()
        if sys.argv[2:] == ["--large"]
        else None
    ),
}
seen = {}
for name, draw in draws.items():
    torch.cuda.reset_peak_memory_stats()
    draw()
    offset = torch.cuda.default_generators[0].get_offset()
    seen[name] = [offset, torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()]
print(json.dumps(seen))
