"""The cost model by hand, on the GPU of `round_gpu.py`."""

from __future__ import annotations

import pytest
from gpu_rates import ACCESSES, PRECISIONS, core
from round_gpu import HALF, TILE, US, exactly, gpu, product, seconds_of


def test_a_hundred_tiles_are_ten_waves() -> None:
    assert product(gpu(), 1280, 1280, 1000) == exactly(10 * TILE)


def test_a_tile_beyond_the_result_costs_as_much_as_a_full_one() -> None:
    assert product(gpu(), 1281, 1280, 1000) == exactly(11 * TILE)
    assert product(gpu(), 1, 1, 500) == exactly(TILE / 2)


def test_a_last_wave_costs_between_its_share_and_a_whole_one() -> None:
    fifteen = {"m": 15 * 128, "n": 128, "k": 500}
    assert product(gpu(), **fifteen) == exactly(1.5 * TILE / 2)
    assert product(gpu(wave_exponent=0.0), **fifteen) == exactly(2 * TILE / 2)


def test_a_block_takes_time_to_start_and_end() -> None:
    assert product(gpu(block_cycles=500), 1280, 1280, 1000) == exactly(10 * (TILE + 0.5 * US))


def test_a_long_k_is_split_and_its_parts_are_added() -> None:
    # 16 parts of 640: 1.6 waves. Each part is written and read: 8 bytes a result.
    parts = 1.6 * 0.64 * TILE + 16 * 8 * 128 * 128 / 1e12
    assert product(gpu(), 128, 128, 10240) == exactly(parts)


def test_a_very_long_k_is_split_until_the_multiprocessors_have_enough_blocks() -> None:
    # Each block takes 100 times as long as one of 100 on a multiprocessor, so 1,024 are best.
    parts = 102.4 * 10 * TILE + 1024 * 8 * 128 * 128 / 1e12
    assert product(gpu(lone_share=0.01), 128, 128, 10_240_000) == exactly(parts)


def test_matrix_units_have_their_rate_and_coefficients() -> None:
    half = product(gpu(), 1280, 1280, 1000, precision=PRECISIONS.index("float16"))
    assert half == exactly(TILE)
    double = product(gpu(), 1280, 1280, 1000, precision=PRECISIONS.index("float64"))
    assert double == exactly(20 * TILE)


def test_a_thin_product_takes_the_time_of_its_bytes() -> None:
    assert product(gpu(), 1280, 1280, 1, bytes_read=1e9, footprint_bytes=1e9) == exactly(1e-3)


def test_a_batch_is_so_many_products() -> None:
    assert product(gpu(), 128, 128, 1000, batch=20) == exactly(2 * TILE)


def test_every_kernel_takes_at_least_the_floor() -> None:
    facts = gpu(kernel_floor_seconds=2 * US)
    assert product(facts, 1280, 1280, 1000) == exactly(10 * TILE + 2 * US)
    assert seconds_of(facts, "memory", bytes_read=4, kernels=5) == pytest.approx(10 * US, rel=1e-5)


@pytest.mark.parametrize("access", range(len(ACCESSES)))
def test_each_kind_of_access_has_its_fraction_of_the_bandwidth(access: int) -> None:
    fractions = [0.5 if i == access else 1.0 for i in range(len(ACCESSES))]
    facts = gpu()
    facts.coefficients = {**facts.coefficients, "memory.fraction": fractions}
    fields = {"bytes_read": 6e8, "bytes_written": 4e8, "footprint_bytes": 1e9}
    assert seconds_of(facts, "memory", access=access, **fields) == exactly(2e-3)


def test_what_fits_the_cache_moves_faster() -> None:
    facts = gpu(cache_speedup=4.0, cache_share=0.5)
    facts.l2_bytes = 40e6
    in_cache = seconds_of(facts, "memory", bytes_read=1e7, footprint_bytes=1e7)
    half_in_cache = seconds_of(facts, "memory", bytes_read=4e7, footprint_bytes=4e7)
    assert in_cache == exactly(1e7 / 1e12 / 4)
    assert half_in_cache == exactly(2e7 / 1e12 + 2e7 / 1e12 / 4)


def test_short_elements_do_not_make_an_access_faster() -> None:
    # A million elements of 20 cycles each on ten multiprocessors.
    facts = gpu(element_cycles=20)
    fields = {"bytes_read": 1e9, "footprint_bytes": 1e9}
    assert seconds_of(facts, "memory", **fields, elements=1e6) == exactly(2e-3)
    assert seconds_of(facts, "memory", **fields, elements=1e5) == exactly(1e-3)


def test_the_parts_of_a_column_are_joined() -> None:
    facts = gpu(join_seconds=3 * US, column_cycles=2)
    reduction = {"access": ACCESSES.index("reduction")}
    assert seconds_of(facts, "memory", **reduction, rows=500) == exactly(3 * US + 1 * US)
    assert seconds_of(facts, "memory", **reduction) == 0


@pytest.mark.parametrize("access", ["softmax", "softmax_backward"])
def test_a_softmax_along_columns_goes_from_row_to_row(access: str) -> None:
    facts = gpu(softmax_column_cycles=2000)
    assert seconds_of(facts, "memory", access=ACCESSES.index(access), rows=7) == exactly(14 * US)


def test_many_columns_of_a_softmax_hinder_each_other() -> None:
    facts = gpu(softmax_column_cycles=2000, softmax_column_element_cycles=[20, 10])
    fields = {"rows": 7, "elements": 1e6}
    forward, backward = (
        seconds_of(facts, "memory", access=ACCESSES.index(access), **fields)
        for access in ("softmax", "softmax_backward")
    )
    assert (forward, backward) == (exactly(2e-3), exactly(1e-3))


def test_the_columns_of_a_factorization_wait_for_each_other() -> None:
    access = ACCESSES.index("factorization")
    facts = gpu(factorization_cycles=1000)
    assert seconds_of(facts, "memory", access=access, rows=500) == exactly(500 * US)


def test_attention_walks_over_the_keys_that_its_mask_leaves() -> None:
    # 20 blocks of 128 queries; each does 4 * 64 FLOPs for each of 512 keys.
    fields = {
        "batch": 2, "heads": 10, "queries": 128, "keys": 512,
        "flops": 4 * 64 * 20 * 128 * 512,
    }  # fmt: skip
    full = 2 * 128 * 512 * 4 * 64 / 1e12
    assert seconds_of(gpu(), "attention", **fields) == exactly(full)
    assert seconds_of(gpu(), "attention", **fields, share=0.5) == exactly(full / 2)


def test_attention_walks_backward_from_the_keys_over_the_queries() -> None:
    # 40 blocks of 128 keys, half of them for the last 2 keys of a head; 10 * 64 FLOPs for a score.
    fields = {
        "batch": 2, "heads": 10, "queries": 512, "keys": 130,
        "flops": 10 * 64 * 20 * 512 * 130, "backward": 1,
    }  # fmt: skip
    assert seconds_of(gpu(), "attention", **fields) == exactly(4 * 128 * 512 * 10 * 64 / 1e12)


def test_memory_efficient_attention_multiplies_floats_on_matrix_units() -> None:
    # Three products of TF32 for each product of floats: a third of 100 TFLOP/s.
    fields = {
        "batch": 2, "heads": 10, "queries": 128, "keys": 512, "element_bytes": 4,
        "flops": 4 * 64 * 20 * 128 * 512,
    }  # fmt: skip
    at_full_rate = 2 * 128 * 512 * 4 * 64 / 10e12
    for precision in ("float32", "tfloat32"):
        work = fields | {"precision": PRECISIONS.index(precision)}
        efficient = seconds_of(gpu(), "attention", **work, kernel=1)
        assert efficient == exactly(3 * at_full_rate)


def test_an_exponential_takes_the_same_time_at_any_rate_of_products() -> None:
    fields = {
        "batch": 2, "heads": 10, "queries": 128, "keys": 512,
        "flops": 4 * 64 * 20 * 128 * 512,
    }  # fmt: skip
    exponentials = [
        seconds_of(gpu(head_overhead=64), "attention", **work)
        - seconds_of(gpu(), "attention", **work)
        for work in (fields, fields | HALF)
    ]
    assert exponentials[0] == exactly(exponentials[1])


def test_coefficients_are_checked() -> None:
    facts = gpu()
    values = facts.coefficients
    with pytest.raises(ValueError, match=r"the coefficients have no memory\.fraction"):
        facts.coefficients = {k: v for k, v in values.items() if k != "memory.fraction"}
    with pytest.raises(ValueError, match="there is no coefficient of_luck"):
        facts.coefficients = {**values, "of_luck": [1.0]}
    with pytest.raises(ValueError, match=r"memory\.fraction has 1 values instead of 19"):
        facts.coefficients = {**values, "memory.fraction": [1.0]}
    with pytest.raises(ValueError, match="a work record has no field colour"):
        core.Works({"colour": [1.0]})
