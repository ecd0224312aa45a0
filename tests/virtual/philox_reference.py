"""A reference implementation of Philox and of CUDA's launches, thread by thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

MASK = 0xFFFFFFFF


def philox(counter: list[int], key: list[int]) -> list[int]:
    c, k = list(counter), list(key)
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & MASK, (a >> 32) ^ c[3] ^ k[1], a & MASK]
        k = [(k[0] + 0x9E3779B9) & MASK, (k[1] + 0xBB67AE85) & MASK]
    return c


def words(seed: int, subsequence: int, offset: int) -> Iterator[int]:
    """Yield the results of curand() after curand_init(seed, subsequence, offset)."""
    key = [seed & MASK, seed >> 32]
    while True:
        block = offset // 4
        counter = [block & MASK, block >> 32, subsequence & MASK, subsequence >> 32]
        yield philox(counter, key)[offset % 4]
        offset += 1


def uniform(word: int) -> np.float32:
    return np.float32(word) * np.float32(2**-32) + np.float32(2**-33)


def grid_stride(
    elements: int,
    per_draw: int,
    seed: int,
    offset: int,
    gpu: tuple[int, int],
    draw: Callable[[list[int]], list[Any]],
) -> tuple[list[Any], int]:
    """Return (values, increment of the offset) of distribution_elementwise_grid_stride_kernel."""
    blocks = min(gpu[0] * (gpu[1] // 256), -(-elements // 256))
    threads = 256 * blocks
    increment = ((elements - 1) // (threads * per_draw) + 1) * 4
    out: list[Any] = [None] * elements
    rounded = ((elements - 1) // (threads * per_draw) + 1) * threads * per_draw
    for thread in range(threads):
        state = words(seed, thread, offset)
        for linear in range(thread, rounded, threads * per_draw):
            values = draw([next(state) for _ in range(4)])
            for i in range(per_draw):
                if linear + threads * i < elements:
                    out[linear + threads * i] = values[i]
    return out, increment


def vectorized_dropout(
    elements: int, width: int, seed: int, offset: int, gpu: tuple[int, int], keep: float
) -> list[bool]:
    """Return the mask of the kept elements of fused_dropout_kernel_vec."""
    threads = 256 * min(gpu[0] * (gpu[1] // 256), -(-elements // 256))
    out = [False] * elements
    for thread in range(threads):
        state = words(seed, thread, offset)
        for linear in range(thread * width, elements, threads * width):
            drawn = [uniform(next(state)) for _ in range(4 * -(-width // 4))]
            for i in range(width):
                out[linear + i] = bool(drawn[i] < np.float32(keep))
    return out


def permutation(keys: list[int], bits: int, seed: int, offset: int) -> list[int]:
    """Sort stably by the low `bits` < 32 of the keys, then shuffle equal keys (Fisher, Yates)."""
    masked = [key & ((1 << bits) - 1) for key in keys]
    order = sorted(range(len(keys)), key=lambda i: masked[i])
    first = 0
    while first < len(order):
        size = sum(masked[i] == masked[order[first]] for i in order)
        state = words(seed, first, offset)
        for i in range(size - 1, 0, -1):
            j = next(state) % (i + 1)
            order[first + i], order[first + j] = order[first + j], order[first + i]
        first += size
    return order
