"""The batches of a sampler, drawn alike on every rank.

What a sampler draws from PyTorch's, Python's or NumPy's own generator depends on what else the
rank has drawn from it. Here these have a state of their own while the sampler runs, which follows
from a seed; the program does not notice.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from hashlib import blake2b
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

# They draw from the shared generators once, when the first batch is asked for, or never.
_DRAW_ONCE = (SequentialSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
_END = object()


def mix_seed(*numbers: int) -> int:
    """Return a seed of 63 bits that follows from `numbers`, another one for others."""
    text = ",".join(map(str, numbers)).encode()
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big") >> 1


def draw_alike(sampler: Iterable[Any], seed: int) -> Iterator[Any]:
    """Yield what `sampler` yields, as `seed` has it."""
    generators = _generators_of(sampler)
    for generator in generators:
        generator.manual_seed(seed)
    # A sampler draws where its generator is, whatever device the program has made the default.
    device = generators[0].device if generators else torch.device("cpu")
    inner = sampler.sampler if type(sampler) is BatchSampler else sampler
    draws_once = type(inner) in _DRAW_ONCE
    states: list[Any] = []
    iterator: Iterator[Any] | None = None
    while True:
        # A switch of states takes 0.1 ms.
        with nullcontext() if draws_once and iterator else _own_random_state(states, seed), device:
            if iterator is None:
                iterator = iter(sampler)
            batch = next(iterator, _END)
        if batch is _END:
            return
        yield batch


def _generators_of(sampler: Any) -> list[torch.Generator]:
    """Return the generators that a sampler, and those that it wraps, keep as an attribute."""
    found = []
    for _ in range(8):  # samplers in samplers; none is wrapped so often
        generator = getattr(sampler, "generator", None)
        if isinstance(generator, torch.Generator):
            found.append(generator)
        sampler = getattr(sampler, "sampler", None)
    return found


@contextmanager
def _own_random_state(states: list[Any], seed: int) -> Iterator[None]:
    """Have the process's generators go on from `states`, or from `seed` where there are none yet.

    On leaving, `states` are theirs, and the generators are as they were.
    """
    access: list[tuple[Any, Any]] = [
        (torch.get_rng_state, torch.set_rng_state),
        (random.getstate, random.setstate),
    ]
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        access.append((numpy.random.get_state, numpy.random.set_state))
    before = [read() for read, _ in access]
    if not states:
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        if numpy is not None:
            numpy.random.seed(seed % 2**32)
    for (_, write), state in zip(access, states, strict=False):  # NumPy may have come meanwhile
        write(state)
    try:
        yield
    finally:
        states[:] = [read() for read, _ in access]
        for (_, write), state in zip(access, before, strict=True):
            write(state)
