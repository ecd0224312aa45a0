"""Nested tensors and packed sequences are divided by sequences."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from packed_sequences import pack
from torch import Tensor
from torch.nn.utils.rnn import pack_sequence, unpack_sequence

from anyrig.errors import BatchError
from anyrig.parallel.parts.samples import count_samples
from anyrig.parallel.parts.scatter import divide, scatter
from anyrig.parallel.shares.shares import choose_shares

DEVICES = ["cuda:0", "cuda:1", "cuda:2"]
PLACES = [torch.device(device) for device in DEVICES]


@pytest.mark.gpus(3)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors_are_divided_by_their_parts(layout: torch.layout) -> None:
    parts = [torch.randn(length, 2) for length in (3, 1, 2, 5)]
    nested = torch.nested.nested_tensor(parts, layout=layout)
    found = scatter(nested, DEVICES, (3, 0, 1))
    assert [part.size(0) for part in found] == [3, 0, 1]
    assert [part.get_device() for part in found] == [0, 1, 2]
    again = [*found[0].unbind(), *found[2].unbind()]
    assert all(torch.equal(a.cpu(), b) for a, b in zip(again, parts, strict=True))


LENGTHS = st.lists(st.integers(1, 6), min_size=1, max_size=9)


@pytest.mark.gpus(3)
@given(LENGTHS, st.booleans(), st.lists(st.integers(0, 4), min_size=3, max_size=3).filter(any))
@settings(deadline=None, max_examples=60)
def test_packed_sequences_are_divided_by_sequences(
    lengths: list[int], enforce_sorted: bool, shares: list[int]
) -> None:
    if enforce_sorted:
        lengths.sort(reverse=True)
    packed = pack(lengths, enforce_sorted)
    batch = {"packed": packed, "row": torch.arange(len(lengths))}
    split = divide(batch, PLACES, choose_shares(shares, PLACES).split)
    sequences = iter(unpack_sequence(packed))
    assert split.samples is not None
    for index, (value, rows) in enumerate(zip(split.values, split.samples, strict=True)):
        part = value["packed"]
        assert len(value["row"]) == rows
        assert part.data.get_device() == index
        assert part.batch_sizes.device.type == "cpu"
        assert (part.sorted_indices is None) == enforce_sorted
        if rows:
            for found in unpack_sequence(part):
                assert torch.equal(found.cpu(), next(sequences))
        else:
            assert len(part.batch_sizes) == 0
    assert next(sequences, None) is None


@pytest.mark.gpus(3)
def test_a_packed_part_is_as_if_it_had_been_packed_alone() -> None:
    sequences = [torch.randn(length, 2) for length in (2, 4, 1, 4, 3)]
    for source in ("cpu", "cuda:1"):
        packed = pack_sequence(sequences, enforce_sorted=False).to(source)
        for part, alone in zip(
            scatter(packed, DEVICES, (2, 2, 1)),
            (sequences[:2], sequences[2:4], sequences[4:]),
            strict=True,
        ):
            expected = pack_sequence(alone, enforce_sorted=False)
            assert torch.equal(part.data.cpu(), expected.data)
            assert torch.equal(part.batch_sizes, expected.batch_sizes)
            assert torch.equal(part.sorted_indices.cpu(), expected.sorted_indices)
            assert torch.equal(part.unsorted_indices.cpu(), expected.unsorted_indices)


@pytest.mark.gpus(3)
def test_packed_sequences_are_differentiable_twice() -> None:
    packed = pack([2, 4, 1], enforce_sorted=False)

    def function(data: Tensor) -> Tensor:
        parts = scatter(packed._replace(data=data), DEVICES, (2, 0, 1))
        return torch.stack([part.data.pow(3).sum().to("cuda:0") for part in parts]).sum()

    data = packed.data.requires_grad_()
    assert torch.autograd.gradcheck(function, data)
    assert torch.autograd.gradgradcheck(function, data)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_nested_tensors_have_their_samples_in_the_first_dimension() -> None:
    nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)])
    assert count_samples(nested) == count_samples(nested, -3) == 2
    with pytest.raises(
        BatchError, match=r"\[0\] is a nested tensor, which can be divided along dim"
    ):
        count_samples([nested], 2)


@pytest.mark.gpus(2)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_a_nested_part_without_samples_has_the_dtype_and_the_device(layout: torch.layout) -> None:
    nested = torch.nested.nested_tensor(
        [torch.ones(2, 3), torch.ones(4, 3)], dtype=torch.float64, layout=layout
    )
    parts = scatter(nested, ["cuda:0", "cuda:1"], [1, 0])
    assert [part.dtype for part in parts] == [torch.float64] * 2
    assert [part.get_device() for part in parts] == [0, 1]
    assert [part.size(0) for part in parts] == [2, 0]
