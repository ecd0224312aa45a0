"""The cost model by hand: a GPU of round numbers, with coefficients of round numbers.

Ten multiprocessors compute 10 TFLOP/s in float32 and 100 on matrix units, and move 1 TB/s. One tile
exists, of 128 x 128 results: for a k of 1000 it takes a multiprocessor 32.768 us.
"""

from __future__ import annotations

from typing import Any

import pytest
from gpu_rates import ACCESSES, FAMILIES, GPU, PRECISIONS, core

US = 1e-6
TILE = 2 * 128 * 128 * 1000 / 1e12  # seconds


def round_values() -> dict[str, list[float]]:
    values = {}
    for name, given in GPU.coefficients.items():
        if name.endswith("tile_efficiency"):
            values[name] = [1.0 if i == 2 else 0.0 for i in range(len(given))]
        elif "winograd" in name or "transformed" in name:
            values[name] = [0.0] * len(given)
        elif name.endswith("grouped_transpose_widths"):
            values[name] = [1e6] * len(given)  # no group is so wide
        else:
            is_factor = name.endswith("transpose_forward") or any(
                word in name for word in ("fraction", "share", "efficiency", "speedup", "exponent")
            )
            values[name] = [1.0 if is_factor else 0.0] * len(given)
    return values


def gpu(**coefficients: float | list[float]) -> Any:
    """Return the GPU; a coefficient is named by its last part, such as ``block_cycles``."""
    facts = core.GpuFacts()
    facts.multiprocessors = 10
    facts.clock_hertz = 1e9
    facts.l2_bytes = 0
    facts.memory_bytes_per_second = 1e12
    facts.flops_per_second = [5e12, 10e12, *[100e12] * 5]
    facts.has_matrix_units = [False, False, *[True] * 5]
    values = round_values()
    for name, value in coefficients.items():
        found = [known for known in values if known.endswith(f".{name}")]
        assert found, name
        for known in found:
            values[known] = value if isinstance(value, list) else [value] * len(values[known])
    facts.coefficients = values
    return facts


def seconds_of(facts: Any, family: str, **fields: float) -> float:
    columns = {"family": FAMILIES.index(family), "precision": PRECISIONS.index("float32"), **fields}
    works = core.Works({name: [float(value)] for name, value in columns.items()})
    return float(core.predict_seconds(facts, works)[0])


def product(facts: Any, m: int, n: int, k: int, **fields: float) -> float:
    return seconds_of(facts, "product", m=m, n=n, k=k, flops=2 * m * n * k, **fields)


def exactly(value: float) -> object:
    return pytest.approx(value, rel=1e-9)


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


# 10 images of 128 channels and 16 x 8 points, a kernel of 1 x 1: 1280 x 128 results, k = 100.
POINTWISE = {
    "batch": 10, "in_channels": 100, "out_channels": 128, "in_h": 16, "in_w": 8, "out_h": 16,
    "out_w": 8, "flops": 2 * 1280 * 128 * 100,
}  # fmt: skip


def test_a_convolution_is_an_implicit_product() -> None:
    assert seconds_of(gpu(), "convolution", **POINTWISE) == exactly(0.1 * TILE)
    # By input: 1280 x 100 results, k = 128. By weight: 128 x 100 results, k = 1280, which is split.
    by_input = seconds_of(gpu(), "convolution", **POINTWISE, **{"pass": 1})
    assert by_input == exactly(0.128 * TILE)
    by_weight = seconds_of(gpu(), "convolution", **POINTWISE, **{"pass": 2})
    assert by_weight == exactly(0.32 * TILE + 4 * 8 * 128 * 100 / 1e12)


def test_a_stride_shortens_the_gradient_by_input() -> None:
    # Each input meets a quarter of the 2 x 2 kernel.
    strided = POINTWISE | {
        "out_h": 8, "out_w": 4, "kernel_h": 2, "kernel_w": 2, "stride_h": 2, "stride_w": 2,
    }  # fmt: skip
    assert seconds_of(gpu(), "convolution", **strided, **{"pass": 1}) == exactly(0.128 * TILE)


def test_the_gaps_that_a_small_kernel_leaves_in_a_gradient_are_zeroed() -> None:
    # A kernel of 1 x 1 and a stride of 2: three of four inputs have no gradient.
    fields = POINTWISE | {"out_h": 8, "out_w": 4, "stride_h": 2, "stride_w": 2, "pass": 1}
    found = seconds_of(gpu(), "convolution", **fields, bytes_written=1e6)
    assert found == exactly(0.032 * TILE + 1e6 / 1e12)


# 16 images of 16 x 8 points: 128 tiles of 4 x 4 points.
TRANSFORMED = {
    "batch": 16, "in_channels": 1000, "out_channels": 128, "in_h": 16, "in_w": 8, "out_h": 16,
    "out_w": 8, "flops": 1e12,
}  # fmt: skip


def transformed_seconds(kernel: int, batch: int = 16, number: int = 0) -> float:
    fields = TRANSFORMED | {"kernel_h": kernel, "kernel_w": kernel, "batch": batch, "pass": number}
    one_tile = [1.0 if i == 2 else 0.0 for i in range(11)]
    facts = gpu(transformed_efficiency=one_tile, filter_fraction=1e9)
    return seconds_of(facts, "convolution", **fields)


@pytest.mark.parametrize(("kernel", "points"), [(3, 36), (5, 64)])
def test_a_transformed_convolution_is_a_product_for_each_point(kernel: int, points: int) -> None:
    moved = 2 * points * 4 * 128 * (1000 + 128)
    expected = points / 10 * TILE + moved / 1e12
    assert transformed_seconds(kernel) == pytest.approx(expected, rel=1e-4)


def test_a_transformed_convolution_pads_the_batch_but_not_the_sum_over_it() -> None:
    assert transformed_seconds(3, batch=9) == exactly(transformed_seconds(3, batch=16))
    full, half = (transformed_seconds(3, batch=batch, number=2) for batch in (16, 8))
    assert half == pytest.approx(full / 2, rel=1e-4)


def test_matrix_units_want_channels_last() -> None:
    fields = POINTWISE | {"precision": PRECISIONS.index("float16"), "bytes_read": 1e6}
    last = seconds_of(gpu(), "convolution", **fields, channels_last=1)
    first = seconds_of(gpu(), "convolution", **fields)
    assert first - last == exactly(2e6 / 1e12)


def test_some_libraries_multiply_points_in_nchw_as_they_are() -> None:
    fields = POINTWISE | HALF | {"bytes_read": 1e6}
    facts = gpu(planar_alignment_bytes=16.0)

    def transforming_seconds(**changed: float) -> float:
        work = fields | changed
        last = seconds_of(facts, "convolution", **work, channels_last=1)
        return seconds_of(facts, "convolution", **work) - last

    assert transforming_seconds() == pytest.approx(0, abs=1e-12)
    odd = {"in_h": 15, "in_w": 7, "out_h": 15, "out_w": 7}  # 210 bytes a row
    assert transforming_seconds(**odd) == exactly(2e6 / 1e12)
    assert transforming_seconds(kernel_h=3, kernel_w=3) == exactly(2e6 / 1e12)
    facts = gpu(planar_alignment_bytes=[2.0, 0.0, 16.0])
    assert transforming_seconds(**odd) == pytest.approx(0, abs=1e-12)
    assert transforming_seconds(**{"pass": 1}) == exactly(2e6 / 1e12)
    assert transforming_seconds(**odd, **{"pass": 2}) == exactly(2e6 / 1e12)


def test_resampling_takes_a_step_a_plane_unless_its_bytes_take_longer() -> None:
    facts = gpu(window_step_seconds=1 * US)
    window = {"access": ACCESSES.index("window"), "bytes_read": 1e9}
    assert seconds_of(facts, "memory", **window, rows=4000) == exactly(4e-3)
    assert seconds_of(facts, "memory", **window, rows=500) == exactly(1e-3)


@pytest.mark.parametrize("number", range(3))
def test_a_first_layer_uses_no_matrix_units(number: int) -> None:
    fields = POINTWISE | HALF | {"in_channels": 3, "flops": 1e9, "pass": number}
    rates = [0.5 if i == number else 0.0 for i in range(3)]
    facts = gpu(few_channels_rate=rates)
    assert seconds_of(facts, "convolution", **fields) == exactly(1e9 / 5e12)
    more = fields | {"in_channels": 4}
    assert seconds_of(facts, "convolution", **more) == exactly(
        seconds_of(gpu(), "convolution", **more)
    )


HALF = {"precision": PRECISIONS.index("float16"), "element_bytes": 2}


def grouped(channels: int, groups: int = 2, **fields: float) -> dict[str, float]:
    """Return the record of groups of `channels`, in halves, of 10 images of 16 x 8 points."""
    total = groups * channels
    sizes = {"in_channels": total, "out_channels": total, "groups": groups}
    return POINTWISE | HALF | sizes | fields


@pytest.mark.parametrize(("channels", "slower"), [(3, 2), (4, 1), (6, 2), (12, 1)])
def test_matrix_units_take_groups_of_a_multiple_of_four_halves(channels: int, slower: int) -> None:
    fields = grouped(channels, channels_last=1)
    found = seconds_of(gpu(grouped_efficiency=0.5), "convolution", **fields)
    assert found == exactly(slower * seconds_of(gpu(), "convolution", **fields))


def transposing_seconds(channels: int, groups: int, **fields: float) -> float:
    """Return the seconds that channels-last tensors take longer than those in NCHW."""
    facts = gpu(grouped_transpose_widths=[16, 48, 64], grouped_transpose_channels=[96, 208])
    work = grouped(channels, groups, **fields)
    first = seconds_of(facts, "convolution", **work)
    return seconds_of(facts, "convolution", **work | {"channels_last": 1}) - first


@pytest.mark.parametrize(
    ("channels", "groups"),
    [(16, 2), (16, 5), (40, 2), (48, 2), (48, 4), (60, 3), (64, 2), (64, 32)],
)
def test_wide_groups_of_channels_last_halves_are_transposed(channels: int, groups: int) -> None:
    # 10 x 128 points in and out, from 2 to 4 bytes each.
    moved = 2 * 1280 * channels * groups * (2 + 4)
    assert transposing_seconds(channels, groups) == exactly(moved / 1e12)


@pytest.mark.parametrize("narrow", ["in_channels", "out_channels"])
def test_the_wider_tensor_decides_whether_groups_are_transposed(narrow: str) -> None:
    moved = 1280 * (4 * 40 + 4 * 64) * (2 + 4)
    assert transposing_seconds(64, 4, **{narrow: 4 * 40}) == exactly(moved / 1e12)


@pytest.mark.parametrize(
    ("channels", "groups"), [(4, 32), (12, 2), (16, 6), (32, 4), (40, 5), (48, 5), (60, 4)]
)
def test_narrow_groups_and_many_of_them_are_not_transposed(channels: int, groups: int) -> None:
    assert transposing_seconds(channels, groups) == pytest.approx(0, abs=1e-12)


def test_newer_libraries_transpose_no_groups_in_forward_passes() -> None:
    facts = gpu(grouped_transpose_widths=[16, 48, 64], grouped_transpose_forward=0.0)
    for number, slower in enumerate((0.0, 2 * 1280 * 128 * 6 / 1e12, 2 * 1280 * 128 * 6 / 1e12)):
        work = grouped(64, 2, **{"pass": number})
        first = seconds_of(facts, "convolution", **work)
        last = seconds_of(facts, "convolution", **work | {"channels_last": 1})
        assert last - first == pytest.approx(slower, abs=1e-12)


def test_groups_of_float32_are_not_transposed() -> None:
    float32 = {"precision": PRECISIONS.index("tfloat32"), "element_bytes": 4}
    assert transposing_seconds(64, 2, **float32) == pytest.approx(0, abs=1e-12)


def test_only_slow_kernels_for_channels_last_groups_do_not_split_the_weights_gradient() -> None:
    # Two tiles of a k of 10 x 128, and of ten times as many.
    def seconds(channels: int, batch: int, channels_last: int = 1) -> float:
        layout = {"channels_last": channels_last, "batch": batch, "pass": 2}
        return seconds_of(gpu(), "convolution", **grouped(channels) | layout)

    assert seconds(30, 10) == exactly(1.28 * TILE / 10)
    assert seconds(30, 100) == exactly(10 * seconds(30, 10))
    assert seconds(30, 100, channels_last=0) < seconds(30, 100) / 3
    assert seconds(32, 100) < seconds(30, 100) / 3


def test_the_columns_of_a_factorization_wait_for_each_other() -> None:
    access = ACCESSES.index("factorization")
    facts = gpu(factorization_cycles=1000)
    assert seconds_of(facts, "memory", access=access, rows=500) == exactly(500 * US)


def test_a_depthwise_convolution_does_not_use_matrix_units() -> None:
    fields = {
        "groups": 100, "in_channels": 100, "out_channels": 100, "flops": 1e9,
        "precision": PRECISIONS.index("float16"),
    }  # fmt: skip
    assert seconds_of(gpu(), "convolution", **fields) == exactly(1e9 / 10e12)
    facts = gpu(depthwise_planar_share=0.25)
    assert seconds_of(facts, "convolution", **fields) == exactly(4e9 / 10e12)
    assert seconds_of(facts, "convolution", **fields, channels_last=1) == exactly(1e9 / 10e12)


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
