"""The batches of a sampler, in the same order on every rank.

A sampler may draw from the shared generators of PyTorch, Python or NumPy, from which each rank's
program draws other numbers. While the sampler runs, these generators have another state, which
follows from a seed. The program's state is restored afterwards.
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

# Samplers that draw from shared generators only before the first batch, or never.
_DRAW_ONCE = (SequentialSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
_END = object()


def mix_seed(*numbers: int) -> int:
    """Return a hash of `numbers` with 63 bits."""
    text = ",".join(map(str, numbers)).encode()
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big") >> 1


def draw_alike(sampler: Iterable[Any], seed: int) -> Iterator[Any]:
    """Yield the batches of `sampler` in the order that follows from `seed`."""
    generators = _generators_of(sampler)
    for generator in generators:
        generator.manual_seed(seed)
    # Samplers draw on the default device, which the program may have changed.
    device = generators[0].device if generators else torch.device("cpu")
    inner = sampler.sampler if type(sampler) is BatchSampler else sampler
    draws_once = type(inner) in _DRAW_ONCE
    states: list[Any] = []
    iterator: Iterator[Any] | None = None
    while True:
        # Exchanging the states takes 0.1 ms.
        with nullcontext() if draws_once and iterator else _own_random_state(states, seed), device:
            if iterator is None:
                iterator = iter(sampler)
            batch = next(iterator, _END)
        if batch is _END:
            return
        yield batch


def _generators_of(sampler: Any) -> list[torch.Generator]:
    """Return the attributes `generator` of a sampler and of the samplers that it wraps."""
    found = []
    for _ in range(8):  # a limit for a sampler that wraps itself
        generator = getattr(sampler, "generator", None)
        if isinstance(generator, torch.Generator):
            found.append(generator)
        sampler = getattr(sampler, "sampler", None)
    return found


@contextmanager
def _own_random_state(states: list[Any], seed: int) -> Iterator[None]:
    """Give the shared generators the `states` of the block before, or begin from `seed`.

    At the end, store their new states in `states`, and restore the program's.
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
    for (_, write), state in zip(access, states, strict=False):  # NumPy may be new
        write(state)
    try:
        yield
    finally:
        states[:] = [read() for read, _ in access]
        for (_, write), state in zip(access, before, strict=True):
            write(state)
