"""The random headers against numbers that were printed on real GPUs; each test names its source.

Printed tensors have four decimals. Beyond one wave of threads, the numbers depend on the GPU.
"""

from __future__ import annotations

import numpy as np
import pytest
from random_kernels import A100, H100_SXM, K80, P100, RTX_3060, RTX_A4000, RandomKernels


def shown(values: np.ndarray) -> list[float]:
    return [round(float(v), 4) for v in values]


def corners(matrix: np.ndarray) -> list[list[float]]:
    """Return the entries that torch prints of a large matrix."""
    ends = [0, 1, 2, -3, -2, -1]
    return [shown(row) for row in matrix[np.ix_(ends, ends)]]


def test_rand_with_seed_0(kernels: RandomKernels) -> None:
    # TensorRT-LLM, tests of ReDrafter: 12 numbers; the first five are in pytorch issue 47347 too.
    assert shown(kernels.rand(12)) == [
        *(0.3990, 0.5167, 0.0249, 0.9401, 0.9459, 0.7967),
        *(0.4150, 0.8203, 0.2290, 0.9096, 0.1183, 0.0752),
    ]


def test_second_rand_starts_where_the_first_ended(kernels: RandomKernels) -> None:
    # Storch's documentation (9 numbers after 9), and a Triton exercise (10 after 10).
    _, increment = kernels.fill("uniform_float", np.float32, 10, 0.0, 1.0)
    assert shown(kernels.rand(10, offset=increment)) == [
        *(0.9722, 0.7910, 0.4690, 0.3300, 0.3345, 0.3783, 0.7640, 0.6405, 0.1103, 0.3594)
    ]


@pytest.mark.parametrize(
    ("seed", "printed"),
    [
        # FlashInfer's documentation.
        (42, [0.1940, 2.1614, -0.1721, 0.8491, -1.9244, 0.6530, -0.6494, -0.8175, 0.5280, -1.2753]),
        # pytorch issue 79496.
        (10, [-0.1029, 1.6810, -0.2708]),
        # A LoRA exercise's readme.
        (0, [-0.9247, -0.4253, -2.6438, 0.1452, -0.1209, -0.5797, -0.6229, -0.3284, -1.0745]),
    ],
)
def test_randn(kernels: RandomKernels, seed: int, printed: list[float]) -> None:
    assert shown(kernels.randn(len(printed), seed=seed)) == printed


def test_linear_layer_initialised_on_the_gpu(kernels: RandomKernels) -> None:
    # mrdbourke/pytorch-deep-learning issue 759: Linear(1, 1) after manual_seed(42) draws its
    # weight and its bias from uniform_(-1, 1).
    for offset, printed in ((0, 0.2259), (4, 0.9754)):
        values, _ = kernels.fill("uniform_float", np.float32, 1, -1.0, 1.0, seed=42, offset=offset)
        assert shown(values) == [printed]


def test_large_tensor_wraps_around_the_threads_of_a_3060(kernels: RandomKernels) -> None:
    # pytorch issue 158398: randn([1, 64, 2048]) with seed 42 on an RTX 3060.
    matrix = kernels.randn(64 * 2048, seed=42, gpu=RTX_3060).reshape(64, 2048)
    assert corners(matrix) == [
        [0.1940, 2.1614, -0.1721, 1.4540, -2.7733, -0.8932],
        [-0.4574, 0.8063, 0.1580, 0.1124, 0.2769, -1.2535],
        [1.1346, -0.6329, -0.9147, -1.0001, -1.1552, -0.6955],
        [-0.4861, 0.3358, 1.0578, -0.7282, 0.5087, 0.1318],
        [0.7881, 0.8339, -1.1424, -0.6297, -1.1112, -0.4091],
        [-1.2356, -0.4083, -0.4695, -0.4841, 1.2850, -0.0282],
    ]


def test_normal_with_mean_and_deviation_on_an_a4000(kernels: RandomKernels) -> None:
    # pytorch issue 97097: FloatTensor(1000, 100).normal_(5, 5 ** 0.5) with seed 14.
    values, _ = kernels.fill(
        "normal_float", np.float32, 100_000, 5.0, 5**0.5, seed=14, gpu=RTX_A4000
    )
    assert corners(values.reshape(1000, 100)) == [
        [2.8731, 5.2727, 2.9889, 1.6853, 9.6331, 6.6319],
        [3.9968, 3.8097, 5.7328, 4.4029, 3.9804, 7.4698],
        [6.5552, 4.0857, 4.2315, 2.7704, 3.5479, 3.3063],
        [8.6297, 2.3137, 6.2596, 7.9358, 4.4697, 2.7475],
        [7.0551, 7.8583, 3.9990, 4.1139, 8.9315, 4.2042],
        [2.7337, 2.2106, 7.7815, 8.2207, 6.5395, 4.2604],
    ]


@pytest.mark.parametrize(
    ("gpu", "last"),
    [(H100_SXM, [-0.6970, -0.7780, 0.3267]), (A100, [0.1549, -0.6797, -0.1656])],
)
def test_many_rounds_on_large_gpus(
    kernels: RandomKernels, gpu: tuple[int, int], last: list[float]
) -> None:
    # pytorch issue 143086: randn(1, 49 * 12 * 112 * 144) with seed 1.
    values = kernels.randn(49 * 12 * 112 * 144, seed=1, gpu=gpu)
    assert shown(values[:3]) == [-0.2963, 2.6764, -0.1408]
    assert shown(values[-3:]) == last


@pytest.mark.parametrize(("gpu", "total"), [(P100, 999826), (K80, 999100)])
def test_dropout_of_a_million_ones_element_by_element(
    kernels: RandomKernels, gpu: tuple[int, int], total: int
) -> None:
    # pytorch issue 25690: the sum of Dropout(0.5) over ones(1000, 1000), seed 0, in 2019, when
    # the kernel was not vectorized yet; what stays is doubled.
    mask, increment = kernels.fill("dropout", np.uint8, 1_000_000, 1, 0.5, gpu=gpu)
    assert 2 * int(mask.sum()) == total
    threads = gpu[0] * gpu[1]
    assert increment == 4 * -(-1_000_000 // (threads * 4))
