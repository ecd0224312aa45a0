"""The sizes of operators to time."""

from __future__ import annotations


def _spread(seed: int, count: int, *ranges: tuple[int, int, int]) -> tuple[tuple[int, ...], ...]:
    """Return sizes spread evenly over ranges of (least, most, multiple of), by ratio.

    Multiples of the golden ratio and its powers fill a range evenly.
    """
    return tuple(
        tuple(
            _between(least, most, multiple, (seed + i) * _STEPS[axis] % 1)
            for axis, (least, most, multiple) in enumerate(ranges)
        )
        for i in range(1, count + 1)
    )


_STEPS = (0.6180339887, 0.7548776662, 0.8191725134, 0.8566748838)


def _between(least: int, most: int, multiple: int, share: float) -> int:
    return max(least, round(least * (most / least) ** share / multiple) * multiple)


# Rows, columns and length of a product.
MATRICES = (
    (512, 512, 512),
    (1024, 1024, 1024),
    (2048, 2048, 2048),
    (4096, 4096, 4096),
    (8192, 2304, 768),
    (8192, 768, 3072),
    (4096, 4096, 1024),
    (2048, 50304, 768),
    (256, 4096, 4096),
    (128, 1000, 2048),
    (16384, 1024, 1024),
    (1000, 3000, 700),
    *_spread(0, 16, (64, 16384, 8), (256, 8192, 64), (256, 8192, 64)),
)
LARGE_MATRICES = (*MATRICES, (8192, 8192, 8192), (16384, 4096, 4096), (32, 8192, 8192))
# Count, rows, columns and length.
BATCHES = (
    (192, 1024, 1024, 64),
    (192, 1024, 64, 1024),
    (64, 512, 512, 64),
    (16, 2048, 2048, 128),
    (512, 128, 128, 64),
    (32, 197, 197, 64),
    *_spread(1, 10, (8, 256, 8), (64, 2048, 8), (64, 2048, 8), (32, 256, 8)),
)
_IMAGE_RANGES = ((16, 128, 16), (32, 512, 32), (32, 512, 32), (7, 112, 7))
# Batch, channels, channels of the result, side, side of the kernel, stride.
IMAGES = (
    (64, 3, 64, 224, 7, 2),
    (64, 64, 64, 56, 3, 1),
    (64, 64, 256, 56, 1, 1),
    (64, 128, 128, 28, 3, 1),
    (64, 256, 1024, 14, 1, 1),
    (64, 256, 256, 14, 3, 1),
    (64, 512, 512, 7, 3, 1),
    (64, 512, 1024, 28, 1, 2),
    (16, 128, 128, 112, 3, 1),
    *((b, c, o, s, 3, 1) for b, c, o, s in _spread(2, 7, *_IMAGE_RANGES)),
    *((b, c, o, s, 1, 1) for b, c, o, s in _spread(3, 7, *_IMAGE_RANGES)),
    *((b, c, o, s, 3, 2) for b, c, o, s in _spread(4, 4, *_IMAGE_RANGES)),
)
# The same, and groups.
GROUPED = (
    (64, 96, 96, 56, 3, 1, 96),
    (64, 384, 384, 14, 5, 1, 384),
    (64, 256, 256, 28, 3, 1, 32),
    (64, 192, 192, 28, 7, 1, 192),
    (64, 144, 144, 56, 3, 2, 144),
    (64, 512, 512, 14, 3, 1, 8),
)
# Batch, heads, length, width of a head.
SEQUENCES = (
    (16, 12, 1024, 64),
    (8, 16, 2048, 64),
    (4, 16, 4096, 128),
    (32, 16, 512, 64),
    (128, 12, 197, 64),
    (1, 32, 8192, 128),
    (64, 12, 128, 64),
    (2, 16, 2048, 128),
    (8, 32, 1024, 128),
    (16, 8, 768, 32),
)
ARRAYS = (
    (8192, 4096),
    (16384, 8192),
    (1024, 1024),
    (16384, 768),
    (98304, 128),
    (2048, 50304),
    *_spread(5, 6, (256, 65536, 8), (64, 8192, 8)),
)
# Batch, channels, side.
NORMED = ((64, 64, 56), (64, 256, 56), (64, 512, 14), (64, 2048, 7), (32, 128, 28), (128, 96, 112))
LOGITS = ((8192, 50304), (2048, 50304), (4096, 32000))
# Words, width, tokens.
WORDS = ((50304, 768, 16384), (32000, 4096, 4096), (30522, 1024, 8192))
# How many parameters, and the side of each.
PARAMETERS = ((100, 1024), (400, 256), (16, 4096))
