"""The batches of a sampler, in the same order on every rank.

A sampler may draw from the shared generators of PyTorch, Python or NumPy, from which each rank's
program draws different numbers. While the sampler draws a batch, these generators have a state
derived from a seed and the batch. The program's state is restored afterwards.
"""

from __future__ import annotations

import itertools
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
    """Yield the batches of `sampler` in an order derived from `seed`."""
    generators = _generators_of(sampler)
    for generator in generators:
        generator.manual_seed(seed)
    # Samplers draw on the default device, which the program may have changed.
    device = generators[0].device if generators else torch.device("cpu")
    inner = sampler.sampler if type(sampler) is BatchSampler else sampler
    draws_once = type(inner) in _DRAW_ONCE
    iterator: Iterator[Any] | None = None
    for index in itertools.count():
        # Exchanging the states takes 0.1 ms.
        keeps_state = draws_once and index > 0
        with nullcontext() if keeps_state else random_state(mix_seed(seed, index)), device:
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
def random_state(seed: int) -> Iterator[None]:
    """Seed the shared generators, and restore the program's state at the end."""
    with same_random_state():
        seed_generators(seed)
        yield


@contextmanager
def same_random_state() -> Iterator[None]:
    """Restore the state of the shared generators at the end."""
    numpy = sys.modules.get("numpy")
    before = torch.get_rng_state(), random.getstate(), numpy and numpy.random.get_state()
    try:
        yield
    finally:
        torch.set_rng_state(before[0])
        random.setstate(before[1])
        if numpy is not None:
            numpy.random.set_state(before[2])


def seed_generators(seed: int) -> None:
    """Seed the shared generators of PyTorch on the CPU, of Python and of NumPy."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)
