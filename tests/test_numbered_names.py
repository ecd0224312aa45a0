"""Names of equal layers become one."""

from __future__ import annotations

import pytest

from anyrig.numbered_names import join_numbered


@pytest.mark.parametrize(
    ("names", "joined"),
    [
        (["1.layers.0.up", "1.layers.11.up", "1.head"], ["1.layers.*.up"] * 2 + ["1.head"]),
        (["layers.0.up", "layers.1.down"], ["layers.0.up", "layers.1.down"]),
        (["0.layers.0", "1.layers.3"], ["*.layers.*"] * 2),
        (["0", "2", "", "a"], ["*", "*", "", "a"]),
        (["conv1", "conv2", "block.7x", "block.8x"], ["conv1", "conv2", "block.7x", "block.8x"]),
        (["layers.4.up", "layers.4.up"], ["layers.4.up"] * 2),
    ],
)
def test_numbers_that_differ_become_stars(names: list[str], joined: list[str]) -> None:
    found = join_numbered(iter(names))
    assert [found[name] for name in names] == joined
