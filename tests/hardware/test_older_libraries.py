"""What kernels of older libraries take: figures of their sources, and the versions they are of."""

from __future__ import annotations

import pytest

from anyrig.hardware import (
    additions_of,
    coefficients_of,
    older_kernels,
    read_libraries,
    spec_of_key,
    values_of,
)

ROWS, WIDTH, BEFORE, SINCE = 32 * 196, 1024, 180e-6, 49e-6  # by pull request 67977, on Volta


def test_the_rows_of_a_layer_norm_follow_from_their_source() -> None:
    (kernels,) = older_kernels()
    assert f"{1e6 * BEFORE:.0f} us on Volta before, and {1e6 * SINCE:.0f} us" in kernels.source
    volta = spec_of_key("V100-32GB")
    fraction = values_of(coefficients_of(volta))["memory.fraction"][2]  # of a normalization
    moving = 2 * 2 * ROWS * WIDTH / (fraction * volta.memory_bytes_per_second)
    assert moving == pytest.approx(SINCE, rel=0.1)  # today's kernel takes no more
    assert volta.clock_hertz is not None
    each_row = (BEFORE - moving) * volta.multiprocessors * volta.clock_hertz / ROWS
    assert kernels.adds == pytest.approx(each_row, rel=0.01)


@pytest.mark.parametrize(
    ("text", "adds"),
    [("torch=1.7", True), ("torch=1.10.2", True), ("torch=1.11", False), ("torch=2.4.1", False)],
)
def test_a_version_adds_what_changed_after_it(text: str, adds: bool) -> None:
    (kernels,) = older_kernels()
    expected = {kernels.coefficient: kernels.adds} if adds else {}
    assert additions_of(read_libraries(text)) == expected


def test_each_addition_is_of_a_coefficient() -> None:
    known = values_of(coefficients_of(spec_of_key("V100-32GB")))
    assert {one.coefficient for one in older_kernels()} <= known.keys()


@pytest.mark.parametrize(
    "text", ["", "1.7", "torch", "torch=", "torch=new", "jax=0.4", "torch 1.7"]
)
def test_other_texts_name_no_versions(text: str) -> None:
    with pytest.raises(ValueError, match=r"as versions of torch; write for example torch=1\.7\.1"):
        read_libraries(text)
