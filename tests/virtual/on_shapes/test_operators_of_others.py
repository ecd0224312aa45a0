"""Operators of other libraries in shape-only mode, including some with unknown result sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from anyrig.errors import ValueNeededError


@pytest.fixture
def library() -> Iterator[torch.library.Library]:
    with torch.library._scoped_library("anyrig_others", "DEF") as operators:
        yield operators


def refused(operator: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(ValueNeededError) as raised:
        operator(torch.empty(3, device="cuda"))
    text = str(raised.value)
    assert text.startswith("anyrig_others::kept needs values to compute the sizes of its results")
    assert f"in {__file__}, line " in text
    assert "torch.library.register_fake" in text


def test_a_kernel_for_the_cpu_alone(library: torch.library.Library) -> None:
    library.define("kept(Tensor x) -> Tensor")
    library.impl("kept", lambda x: x[x > 0], "CPU")
    refused(torch.ops.anyrig_others.kept)


def test_sizes_that_depend_on_values(library: torch.library.Library) -> None:
    library.define("kept(Tensor x) -> Tensor")
    library.impl("kept", lambda x: x[x > 0], "CPU")

    @torch.library.register_fake("anyrig_others::kept", lib=library)
    def kept(x: Tensor) -> Tensor:
        return x.new_empty(torch.library.get_ctx().new_dynamic_size())

    refused(torch.ops.anyrig_others.kept)


def test_a_custom_operator_without_a_fake_kernel() -> None:
    @torch.library.custom_op("anyrig_others::kept", mutates_args=(), device_types=("cpu", "cuda"))
    def kept(x: Tensor) -> Tensor:
        return x + 1

    assert kept(torch.empty(3, device="cuda")).shape == (3,)  # its own Python code runs


def test_a_fake_kernel_determines_sizes(library: torch.library.Library) -> None:
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: torch.cat([x, x]), "CPU")
    torch.library.register_fake("anyrig_others::twice", lambda x: torch.cat([x, x]), lib=library)
    assert torch.ops.anyrig_others.twice(torch.empty(3, device="cuda")).shape == (6,)
