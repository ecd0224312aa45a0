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
_DRAW_AT_THE_BEGINNING = (
    SequentialSampler,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)


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
    own_state: list[Any] = []
    draws_once = _draws_once(sampler)
    with _random_state(seed, own_state), device:
        iterator = iter(sampler)
        batch = next(iterator, _END)
    while batch is not _END:
        yield batch
        with nullcontext() if draws_once else _random_state(None, own_state), device:
            batch = next(iterator, _END)


_END = object()


def _draws_once(sampler: Any) -> bool:
    inner = sampler.sampler if type(sampler) is BatchSampler else sampler
    return type(inner) in _DRAW_AT_THE_BEGINNING


def _generators_of(sampler: Any) -> list[torch.Generator]:
    """Return the generators that a sampler, and those that it wraps, keep as an attribute."""
    found = []
    for _ in range(8):  # samplers in samplers; none is wrapped so often
        if sampler is None:
            break
        generator = getattr(sampler, "generator", None)
        if isinstance(generator, torch.Generator):
            found.append(generator)
        sampler = getattr(sampler, "sampler", None)
    return found


@contextmanager
def _random_state(seed: int | None, own: list[Any]) -> Iterator[None]:
    """Have the generators of the process in a state of our own: by `seed`, else that in `own`."""
    numpy = sys.modules.get("numpy")
    before = _read(numpy)
    if seed is None:
        _write(own[0], numpy)
    else:
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        if numpy is not None:
            numpy.random.seed(seed % 2**32)
    try:
        yield
    finally:
        own[:] = [_read(numpy)]
        _write(before, numpy)


def _read(numpy: Any) -> tuple[Any, ...]:
    of_numpy = None if numpy is None else numpy.random.get_state()
    return torch.get_rng_state(), random.getstate(), of_numpy


def _write(state: tuple[Any, ...], numpy: Any) -> None:
    torch.set_rng_state(state[0])
    random.setstate(state[1])
    if numpy is not None and state[2] is not None:
        numpy.random.set_state(state[2])
