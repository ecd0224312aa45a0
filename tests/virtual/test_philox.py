"""The random headers against Random123's known answers and against the kernels' own loops."""

from __future__ import annotations

import ctypes

import numpy as np
import philox_reference as reference
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_kernels import TINY, RandomKernels

# ---- the generator


@pytest.mark.parametrize(
    ("counter", "key", "answer"),
    [  # Random123, tests/kat_vectors, philox4x32 10
        ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        (
            [0xFFFFFFFF] * 4,
            [0xFFFFFFFF] * 2,
            [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD],
        ),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_known_answers_of_random123(
    philox_library: ctypes.CDLL, counter: list[int], key: list[int], answer: list[int]
) -> None:
    out = (ctypes.c_uint32 * 4)()
    philox_library.philox((ctypes.c_uint32 * 4)(*counter), (ctypes.c_uint32 * 2)(*key), out)
    assert list(out) == answer


U64 = st.integers(0, 2**64 - 1)


@settings(max_examples=50, deadline=None)
@given(seed=U64, subsequence=U64, offset=st.integers(0, 2**62))
def test_thread_gives_the_same_words_singly_and_by_four(
    philox_library: ctypes.CDLL, seed: int, subsequence: int, offset: int
) -> None:
    out = (ctypes.c_uint32 * 16)()
    philox_library.thread_words(
        ctypes.c_uint64(seed), ctypes.c_uint64(subsequence), ctypes.c_uint64(offset), out
    )
    state = reference.words(seed, subsequence, offset)
    assert list(out[:8]) == [next(state) for _ in range(8)]
    assert list(out[8:]) == list(out[:8])


# ---- against the kernels' loops


@settings(max_examples=20, deadline=None)
@given(
    elements=st.integers(1, 9000),
    seed=U64,
    offset=st.integers(0, 2**40).map(lambda n: 4 * n),
)
def test_uniform_follows_the_grid(
    kernels: RandomKernels, elements: int, seed: int, offset: int
) -> None:
    values, increment = kernels.fill(
        "uniform_float", np.float32, elements, 0.0, 1.0, seed=seed, offset=offset, gpu=TINY
    )
    expected, step = reference.grid_stride(
        elements, 4, seed, offset, TINY, lambda w: [reference.uniform(x) for x in w]
    )
    wanted = np.array(expected, np.float32)
    wanted[wanted == 1] = 0  # ATen reverses the bounds: [0, 1)
    assert np.array_equal(values, wanted)
    assert increment == step


@pytest.mark.parametrize(
    ("elements", "increment"),
    [(1, 4), (1024, 4), (1025, 4), (4096, 4), (4097, 8), (8192, 8), (8193, 12)],
)
def test_generator_advances_by_four_words_per_round(
    kernels: RandomKernels, elements: int, increment: int
) -> None:
    # 1024 threads draw four values each, so a round has 4096 elements.
    _, moved = kernels.fill("uniform_float", np.float32, elements, 0.0, 1.0, gpu=TINY)
    assert moved == increment


@pytest.mark.parametrize("limit", [10, 2**28 - 1, 2**28, 2**63 - 1])
def test_integers_take_64_bits_from_a_range_of_2_to_the_28(
    kernels: RandomKernels, limit: int
) -> None:
    values, increment = kernels.fill(
        "integer_in_range", np.int64, 5000, limit, -7, seed=3, gpu=TINY
    )

    def draw(w: list[int]) -> list[int]:
        return w if limit < 2**28 else [w[0] << 32 | w[1], w[2] << 32 | w[3]]

    expected, step = reference.grid_stride(5000, 4 if limit < 2**28 else 2, 3, 0, TINY, draw)
    assert [int(v) for v in values] == [word % limit - 7 for word in expected]
    assert increment == step


def test_integers_without_bounds(kernels: RandomKernels) -> None:
    words = [next(reference.words(5, thread, 0)) for thread in range(200)]
    first_two = [reference.words(5, thread, 0) for thread in range(200)]
    long_words = [next(state) << 32 | next(state) for state in first_two]
    whole, _ = kernels.fill("any_integer_64", np.int64, 200, seed=5)
    assert [int(v) for v in whole] == [word % 2**63 for word in long_words]
    byte, _ = kernels.fill("any_integer_8", np.uint8, 200, seed=5)
    assert [int(v) for v in byte] == [word % 256 for word in words]
    floating, _ = kernels.fill("any_integer_float", np.float32, 200, seed=5)
    assert [int(v) for v in floating] == [word % (2**24 + 1) for word in words]


def test_double_takes_two_words_per_number(kernels: RandomKernels) -> None:
    values, increment = kernels.fill("uniform_double", np.float64, 1500, 0.0, 1.0, gpu=TINY)

    def draw(w: list[int]) -> list[float]:
        return [((w[i] ^ (w[i + 1] << 21)) + 0.5) * 2.0**-53 for i in (0, 2)]

    expected, step = reference.grid_stride(1500, 2, 0, 0, TINY, draw)
    assert np.array_equal(values, np.array(expected, np.float64))
    assert increment == step == 4
    normal, _ = kernels.fill("normal_double", np.float64, 100_000, 0.0, 1.0)
    assert abs(normal.mean()) < 0.01
    assert abs(normal.std() - 1) < 0.01


def test_upper_bound_of_uniform_becomes_the_lower(philox_library: ctypes.CDLL) -> None:
    of = philox_library.uniform_of
    of.restype = ctypes.c_float
    bounds = (ctypes.c_double(3.0), ctypes.c_double(5.0))
    values = [of(ctypes.c_float(v), *bounds) for v in (2.0**-33, 0.5, 1.0)]
    assert values == [3, 4, 3]  # cuRAND gives (0, 1], PyTorch [from, to)


def test_transforms_of_uniform_and_normal_numbers(kernels: RandomKernels) -> None:
    uniform = kernels.rand(3000, seed=8).astype(np.float64)
    normal = kernels.randn(3000, seed=8).astype(np.float64)

    def draw(name: str, *arguments: float) -> np.ndarray:
        return kernels.fill(name, np.float32, 3000, *arguments, seed=8)[0]

    def agree(values: np.ndarray, expected: np.ndarray) -> bool:
        return np.allclose(values, expected, rtol=1e-4, atol=1e-5)

    assert np.array_equal(draw("bernoulli_float", 0.3), uniform < np.float32(0.3))
    assert agree(draw("exponential_float", 2.5), -np.log(uniform) / 2.5)
    assert agree(draw("log_normal_float", 0.5, 0.25), np.exp(normal * 0.25 + 0.5))
    cauchy = draw("cauchy_float", 1.0, 2.0)
    middle = np.abs(uniform - 0.5) < 0.49
    assert agree(cauchy[middle], 1 + 2 * np.tan(np.pi * (uniform - 0.5))[middle])
    assert np.array_equal(draw("geometric_float", 0.25), np.ceil(np.log(uniform) / np.log1p(-0.25)))


def test_exponential_is_never_zero(philox_library: ctypes.CDLL) -> None:
    # cuRAND's 1 would give log(1) = 0, so half an epsilon replaces it.
    of = philox_library.exponential_of
    of.restype = ctypes.c_float
    assert of(ctypes.c_float(1.0)) == 2.0**-24
    assert of(ctypes.c_float(1 - 2.0**-24)) == 2.0**-24


# ---- dropout


@pytest.mark.parametrize(
    ("elements", "element_bytes", "address", "dense", "width"),
    [
        (1024, 4, 512, True, 4),  # 16 bytes of floats
        (1024, 2, 512, True, 8),
        (1024, 8, 512, True, 2),
        (1022, 4, 512, True, 2),  # not a multiple of 4
        (1023, 4, 512, True, 1),
        (1020, 2, 512, True, 4),
        (1024, 4, 512 + 4, True, 1),  # a view that starts at its second element
        (1024, 4, 512 + 8, True, 2),
        (1024, 4, 512, False, 1),
    ],
)
def test_dropout_loads_16_bytes_if_possible(
    philox_library: ctypes.CDLL,
    elements: int,
    element_bytes: int,
    address: int,
    dense: bool,
    width: int,
) -> None:
    philox_library.vector_size.restype = ctypes.c_int64
    found = philox_library.vector_size(
        ctypes.c_int64(elements),
        ctypes.c_size_t(element_bytes),
        ctypes.c_uint64(address),
        ctypes.c_bool(dense),
    )
    assert found == width


@pytest.mark.parametrize("width", [2, 4, 8])
@pytest.mark.parametrize("elements", [8, 2048, 9000])
def test_vectorized_dropout_follows_its_loop(
    kernels: RandomKernels, elements: int, width: int
) -> None:
    mask, increment = kernels.fill(
        "dropout", np.uint8, elements, width, 0.7, seed=11, offset=16, gpu=TINY
    )
    expected = reference.vectorized_dropout(elements, width, 11, 16, TINY, 0.7)
    assert [bool(kept) for kept in mask] == expected
    threads = 256 * min(4, -(-elements // 256))
    assert increment == 4 * -(-elements // (threads * 4))


# ---- bernoulli_(tensor), randperm


def test_bernoulli_thread_draws_four_adjacent_elements(philox_library: ctypes.CDLL) -> None:
    out = np.zeros(10, np.float32)
    place = [ctypes.c_uint64(v) for v in (10, 6, 12)]  # elements, seed, offset
    philox_library.bernoulli_probabilities(out.ctypes.data_as(ctypes.c_void_p), *place)
    expected = []
    for thread in range(3):
        state = reference.words(6, thread, 12)
        expected += [reference.uniform(next(state)) for _ in range(4)]
    assert np.array_equal(out, np.array(expected[:10], np.float32))


@pytest.mark.parametrize(("n", "bits"), [(1, 3), (10, 9), (1000, 23), (20_000, 31), (100_000, 36)])
def test_randperm_takes_enough_bits_for_different_keys(
    philox_library: ctypes.CDLL, n: int, bits: int
) -> None:
    # ceil(log2(n - (6 n^2 + 1) / (12 log 0.9))): 10 gives 10 + 601 / 1.264 = 485, so 9 bits.
    assert philox_library.key_bits(ctypes.c_int64(n)) == bits


def test_permutation_sorts_by_the_low_bits_of_the_keys(kernels: RandomKernels) -> None:
    # 4 bits: 17 counts as 1 and -1 as 15.
    assert kernels.permutation([17, -1, 0, 9], 4, seed=0, offset=0) == [2, 0, 3, 1]


def test_permutation_compares_whole_keys_as_signed(kernels: RandomKernels) -> None:
    assert kernels.permutation([5, -1, 0, -(2**31)], 32, seed=0, offset=0) == [3, 1, 2, 0]


def test_elements_with_equal_keys_are_shuffled_by_their_first_thread(
    kernels: RandomKernels,
) -> None:
    order = kernels.permutation([3, 1, 3, 3, 0, 3], 4, seed=9, offset=8)
    island = [0, 2, 3, 5]  # key 3, at positions 2 to 5
    state = reference.words(9, 2, 8)
    for i in (3, 2, 1):
        j = next(state) % (i + 1)
        island[i], island[j] = island[j], island[i]
    assert order == [4, 1, *island]


@settings(max_examples=30, deadline=None)
@given(
    keys=st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=300),
    bits=st.integers(3, 31),
    seed=U64,
)
def test_permutation_follows_its_kernels(
    kernels: RandomKernels, keys: list[int], bits: int, seed: int
) -> None:
    expected = reference.permutation(keys, bits, seed, 12)
    assert kernels.permutation(keys, bits, seed=seed, offset=12) == expected


def test_many_elements_with_equal_keys(kernels: RandomKernels) -> None:
    keys = [i * 7 % 5 for i in range(500)]
    assert kernels.permutation(keys, 8, seed=1, offset=0) == reference.permutation(keys, 8, 1, 0)
