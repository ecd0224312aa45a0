"""The cost model of convolutions by hand, on the GPU of `round_gpu.py`."""

from __future__ import annotations

import pytest
from gpu_rates import ACCESSES, PRECISIONS
from round_gpu import HALF, TILE, US, exactly, gpu, seconds_of

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


@pytest.mark.parametrize(
    ("channels", "copied"), [((104, 128), 0), ((100, 128), 100), ((104, 130), 130), ((3, 128), 0)]
)
def test_matrix_units_want_channels_in_multiples_of_16_bytes(
    channels: tuple[int, int], copied: int
) -> None:
    fields = POINTWISE | HALF | dict(zip(("in_channels", "out_channels"), channels, strict=True))
    slow = seconds_of(gpu(layout_fraction=0.5), "convolution", **fields, channels_last=1)
    fast = seconds_of(gpu(layout_fraction=1e9), "convolution", **fields, channels_last=1)
    assert slow - fast == pytest.approx(2 * 2 * 10 * 16 * 8 * copied / 0.5e12, abs=1e-15)


def test_some_libraries_multiply_points_in_nchw_as_they_are() -> None:
    fields = POINTWISE | HALF | {"in_channels": 104, "bytes_read": 1e6}
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


def test_a_depthwise_convolution_does_not_use_matrix_units() -> None:
    fields = {
        "groups": 100, "in_channels": 100, "out_channels": 100, "flops": 1e9,
        "precision": PRECISIONS.index("float16"),
    }  # fmt: skip
    assert seconds_of(gpu(), "convolution", **fields) == exactly(1e9 / 10e12)
    facts = gpu(depthwise_planar_share=0.25)
    assert seconds_of(facts, "convolution", **fields) == exactly(4e9 / 10e12)
    assert seconds_of(facts, "convolution", **fields, channels_last=1) == exactly(1e9 / 10e12)
