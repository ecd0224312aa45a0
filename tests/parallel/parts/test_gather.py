"""Gathering the results of the parts of a batch."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.utils.rnn import (
    PackedSequence,
    pack_padded_sequence,
    pack_sequence,
    pad_packed_sequence,
)

from anyrig.errors import BatchError
from anyrig.parallel.parts.gather import gather
from anyrig.parallel.parts.scatter import scatter
from anyrig.parallel.shares.shares import choose_shares

DEVICES = ["cuda:0", "cuda:1", "cuda:2"]


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass
class Box:
    content: Any
    label: str


@pytest.mark.gpus(3)
@pytest.mark.parametrize("device", ["cpu", "cuda:0", "cuda:2"])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_the_inverse_of_scattering(device: str, dim: int) -> None:
    x = torch.randn(6, 5, 4)
    whole = gather(scatter(x, DEVICES, (1, 0, 4), dim), device, dim)
    assert whole.device == torch.device(device)
    assert torch.equal(whole.cpu(), x)


@pytest.mark.gpus(3)
def test_structures_are_rebuilt() -> None:
    parts = [
        {
            "pair": Pair(torch.full((2, 3), index, device=device), [index]),
            "box": Box((torch.tensor([float(index)], device=device),), "label"),
            "ordered": OrderedDict(b=None, a="text"),
        }
        for index, device in enumerate(DEVICES)
    ]
    shared = parts[0]["pair"].left
    for part in parts:
        part["again"] = part["pair"].left
    whole = gather(parts, "cuda:1")
    assert whole["pair"].left[:, 0].tolist() == [0, 0, 1, 1, 2, 2]
    assert whole["pair"].left.get_device() == 1
    assert type(whole["pair"]) is Pair
    assert whole["pair"].right == [[0, 1, 2]]
    assert whole["again"] is whole["pair"].left
    assert whole["box"].label == "label"
    assert whole["box"].content[0].tolist() == [0, 1, 2]
    assert whole["ordered"] == OrderedDict(b=None, a="text")
    assert type(whole["ordered"]) is OrderedDict
    assert parts[0]["pair"].left is shared


@pytest.mark.gpus(3)
def test_tensors_without_dimensions_become_a_vector() -> None:
    losses = [torch.tensor(float(i), device=device) for i, device in enumerate(DEVICES)]
    for dim in (0, 1):
        assert gather(losses, "cuda:0", dim).tolist() == [0, 1, 2]
    assert gather(losses[:1], "cuda:0").tolist() == [0]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([3, 3, 3], 3),
        ([3, 4, 3], [3, 4, 3]),
        ([0.5, 0.5], 0.5),
        ([float("nan"), float("nan")], None),
        (["a", "b"], ["a", "b"]),
        ([True, True], True),
        ([1, True], [1, True]),
        ([None, None], None),
        ([None, 3], [None, 3]),
        ([torch.Size([2, 3])] * 2, torch.Size([2, 3])),
        ([torch.Size([2, 3]), torch.Size([1, 3])], [torch.Size([2, 3]), torch.Size([1, 3])]),
        ([(1, "x"), (2, "x")], ([1, 2], "x")),
        ([[], []], []),
        ([{}, {}], {}),
    ],
)
def test_what_is_no_tensor(values: list[Any], expected: Any) -> None:
    found = gather(values, "cpu")
    if isinstance(values[0], float) and values[0] != values[0]:
        assert found != found
    else:
        assert found == expected
        assert type(found) is type(expected)


def test_objects_that_are_no_one_value_come_as_a_list() -> None:
    arrays = [numpy.zeros(2), numpy.zeros(2)]
    assert gather(arrays, "cpu") == arrays
    assert gather([arrays[0], arrays[0]], "cpu") is arrays[0]


@pytest.mark.gpus(3)
def test_outputs_of_different_padded_lengths_are_padded_where_asked() -> None:
    parts = [
        torch.ones(2, length, 3, device=device)
        for length, device in zip((4, 2, 5), DEVICES, strict=True)
    ]
    words = r"other dimensions differ \(\(2, 4, 3\), .*total_length=.*gather\(..., padding=0\.0\)"
    with pytest.raises(BatchError, match=words):
        gather(parts, "cuda:0")
    whole = gather(parts, "cuda:0", padding=0.0)
    assert whole.shape == (6, 5, 3)
    assert whole.sum((1, 2)).tolist() == [12, 12, 6, 6, 15, 15]
    assert whole[2:4, 2:].eq(0).all()
    assert gather(parts, "cuda:0", padding=-7)[2:4, 2:].eq(-7).all()
    by_columns = gather([part.transpose(0, 1) for part in parts], "cuda:0", 1, padding=0.0)
    assert torch.equal(by_columns.transpose(0, 1), whole)


LENGTHS = st.lists(st.integers(1, 6), min_size=2, max_size=9)


@pytest.mark.gpus(3)
@given(
    LENGTHS,
    st.booleans(),
    st.booleans(),
    st.lists(st.integers(0, 4), min_size=3, max_size=3).filter(any),
)
@settings(deadline=None, max_examples=60)
def test_padded_sequences_filled_up(
    lengths: list[int], enforce_sorted: bool, batch_first: bool, shares: list[int]
) -> None:
    """Padded outputs of packed sequences are those of the whole batch."""
    if enforce_sorted:
        lengths.sort(reverse=True)
    packed = pack_sequence([torch.randn(length, 2) for length in lengths], enforce_sorted)
    parts = [part for part in scatter(packed, DEVICES, shares) if len(part.batch_sizes)]
    outputs = [pad_packed_sequence(part, batch_first)[0] for part in parts]
    expected, expected_lengths = pad_packed_sequence(packed, batch_first)
    whole = gather(outputs, "cuda:0", 0 if batch_first else 1, padding=0.0)
    assert torch.equal(whole.cpu(), expected)
    counts = [pad_packed_sequence(part)[1] for part in parts]
    assert torch.equal(gather(counts, "cpu"), expected_lengths)


@pytest.mark.gpus(3)
@given(LENGTHS, st.booleans(), st.lists(st.integers(0, 4), min_size=3, max_size=3).filter(any))
@settings(deadline=None, max_examples=60)
def test_packed_outputs_are_laid_out_as_if_packed_together(
    lengths: list[int], enforce_sorted: bool, shares: list[int]
) -> None:
    if enforce_sorted:
        lengths.sort(reverse=True)
    packed = pack_sequence([torch.randn(length, 2) for length in lengths], enforce_sorted)
    whole = gather(scatter(packed, DEVICES, shares), "cuda:0")
    assert type(whole) is PackedSequence
    assert torch.equal(whole.data.cpu(), packed.data)
    assert torch.equal(whole.batch_sizes, packed.batch_sizes)
    assert (whole.sorted_indices is None) == enforce_sorted
    if not enforce_sorted:
        assert torch.equal(whole.sorted_indices.cpu(), packed.sorted_indices)
        assert torch.equal(whole.unsorted_indices.cpu(), packed.unsorted_indices)


@pytest.mark.gpus(2)
def test_packed_parts_that_are_sorted_only_by_themselves() -> None:
    sequences = [torch.randn(length, 2) for length in (2, 1, 4, 3)]
    parts = [
        pack_sequence(sequences[:2]).to("cuda:0"),
        pack_sequence(sequences[2:]).to("cuda:1"),
    ]
    padded, lengths = pad_packed_sequence(gather(parts, "cuda:0"), batch_first=True)
    assert lengths.tolist() == [2, 1, 4, 3]
    for row, sequence in zip(padded, sequences, strict=True):
        assert torch.equal(row[: len(sequence)].cpu(), sequence)


def test_equal_lengths_may_be_sorted_in_any_order() -> None:
    order = torch.tensor([1, 0])
    packed = PackedSequence(torch.tensor([10.0, 0.0]), torch.tensor([2]), order, order)
    for parts, expected in (([packed], [0, 10]), ([packed, packed], [0, 10, 0, 10])):
        padded, lengths = pad_packed_sequence(gather(parts, "cpu"))
        assert padded.tolist() == [expected]
        assert lengths.tolist() == [1] * len(expected)
    for part, row in zip(scatter(packed, ["cpu"], [1]), [[0, 10]], strict=True):
        assert pad_packed_sequence(part)[0].tolist() == [row]


@pytest.mark.gpus(3)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors(layout: torch.layout) -> None:
    parts = [torch.randn(length, 2) for length in (3, 1, 2, 5)]
    nested = torch.nested.nested_tensor(parts, layout=layout)
    whole = gather(scatter(nested, DEVICES, (3, 0, 1)), "cuda:2")
    assert whole.get_device() == 2
    assert all(torch.equal(a.cpu(), b) for a, b in zip(whole.unbind(), parts, strict=True))


@pytest.mark.gpus(3)
# PyTorch 2.11 and 2.12 warn of every function over several devices, even of torch.nn.parallel's.
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream does not match:UserWarning")
@pytest.mark.parametrize("device", ["cpu", "cuda:1"])
def test_differentiable_twice(device: str) -> None:
    x = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)

    def function(x: Tensor) -> Tensor:
        first, _, last = scatter(x, DEVICES, (3, 0, 1))
        return gather([first.sin(), last[:, :4].pow(2)], device, padding=0.5)

    assert torch.autograd.gradcheck(function, x)
    assert torch.autograd.gradgradcheck(function, x)


@pytest.mark.gpus(3)
def test_packed_outputs_are_differentiable_twice() -> None:
    data = torch.randn(6, 2, dtype=torch.float64, requires_grad=True)
    padded = torch.nn.utils.rnn.pad_sequence(list(data.split([1, 3, 2])), batch_first=True)
    lengths = torch.tensor([1, 3, 2])

    def function(padded: Tensor) -> Tensor:
        packed = pack_padded_sequence(padded, lengths, batch_first=True, enforce_sorted=False)
        parts = scatter(packed, DEVICES)
        return gather([part._replace(data=part.data.pow(3)) for part in parts], "cuda:0").data

    assert torch.autograd.gradcheck(function, padded.detach().requires_grad_())
    assert torch.autograd.gradgradcheck(function, padded.detach().requires_grad_())


@pytest.mark.gpus(2)
def test_only_what_requires_grad_is_in_the_graph() -> None:
    a = torch.ones(2, 1, device="cuda:0", requires_grad=True)
    b = torch.ones(2, 1, device="cuda:1")
    whole = gather([a, b], "cuda:0")
    (whole * torch.arange(4.0, device="cuda:0")[:, None]).sum().backward()
    assert a.grad is not None
    assert a.grad.tolist() == [[0], [1]]
    assert not gather([b, b.to("cuda:0")], "cuda:0").requires_grad


@pytest.mark.gpus(2)
def test_strides_and_dtypes() -> None:
    parts = [
        torch.randn(2, 3, 4, 4, device=device).to(memory_format=torch.channels_last)
        for device in ("cuda:0", "cuda:1")
    ]
    whole = gather(parts, "cuda:0")
    assert whole.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(whole.cpu(), torch.cat([part.cpu() for part in parts]))
    mixed = gather([parts[0].half(), parts[1]], "cuda:0")
    assert mixed.dtype == torch.float32
    for dtype in (torch.complex64, torch.bool, torch.int8, torch.bfloat16):
        parts = [torch.ones(2, device=device).to(dtype) for device in ("cuda:0", "cuda:1")]
        assert gather(parts, "cuda:1").dtype == dtype
    conjugated = [torch.tensor([1j], device=d).conj() for d in ("cuda:0", "cuda:1")]
    assert gather(conjugated, "cuda:0").tolist() == [-1j, -1j]


@pytest.mark.gpus(2)
@pytest.mark.parametrize(
    ("shape", "formats", "expected"),
    [
        ((2, 3, 4, 4), [torch.channels_last] * 2, torch.channels_last),
        ((2, 3, 4, 4), [torch.channels_last, torch.contiguous_format], torch.contiguous_format),
        ((2, 3, 2, 4, 4), [torch.channels_last_3d] * 2, torch.channels_last_3d),
        ((2, 3, 2, 4, 4), [torch.contiguous_format] * 2, torch.contiguous_format),
        ((2, 1, 4, 4), [torch.contiguous_format] * 2, torch.contiguous_format),
    ],
)
def test_the_memory_format_is_that_of_all_parts(
    shape: tuple[int, ...], formats: list[Any], expected: Any
) -> None:
    """A tensor of one channel has both formats; joined, it has the strides of torch.cat."""
    parts = [
        torch.randn(shape, device=f"cuda:{i}").to(memory_format=one)
        for i, one in enumerate(formats)
    ]
    whole = gather(parts, "cuda:0")
    assert whole.is_contiguous(memory_format=expected)
    like = torch.empty(2 * shape[0], *shape[1:]).contiguous(memory_format=expected)
    assert whole.stride() == like.stride()
    assert torch.equal(whole.cpu(), torch.cat([part.cpu() for part in parts]))


def test_a_number_is_not_equal_to_nan() -> None:
    nan = float("nan")
    for values in ([nan, 1.0], [1.0, nan]):
        found = gather(values, "cpu")
        assert list(map(repr, found)) == list(map(repr, values))


@pytest.mark.gpus(2)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_sparse_tensors_are_divided_and_joined_along_any_dimension(dim: int) -> None:
    whole = torch.arange(15.0).view(3, 5).to_sparse()
    size = whole.size(dim)
    parts = scatter(whole, ["cuda:0", "cuda:1"], [2, 1], dim)
    counts = choose_shares([2, 1], ["cuda:0", "cuda:1"]).split(size)
    for part, dense in zip(parts, whole.to_dense().split(counts, dim), strict=True):
        assert torch.equal(part.to_dense().cpu(), dense)
    joined = gather(parts, "cuda:0", dim)
    assert torch.equal(joined.to_dense().cpu(), whole.to_dense())


@pytest.mark.gpus(2)
def test_sparse_outputs() -> None:
    parts = [torch.eye(3, device=device).to_sparse() for device in ("cuda:0", "cuda:1")]
    whole = gather(parts, "cuda:0")
    assert whole.is_sparse
    assert torch.equal(whole.to_dense().cpu(), torch.eye(3).repeat(2, 1))


@pytest.mark.gpus(2)
def test_nothing_of_the_lead_is_copied_twice() -> None:
    parts = [torch.zeros(1024, 1024, device=device) for device in ("cuda:0", "cuda:1")]
    bytes_of_one = parts[0].numel() * 4
    before = torch.cuda.memory_allocated("cuda:0")
    torch.cuda.reset_peak_memory_stats("cuda:0")
    whole = gather(parts, "cuda:0")
    assert torch.cuda.max_memory_allocated("cuda:0") - before == 2 * bytes_of_one
    assert gather([whole], "cuda:0") is whole


def test_nothing_to_gather() -> None:
    with pytest.raises(BatchError, match="give the values of at least one device"):
        gather([], "cpu")


@pytest.mark.parametrize(
    ("values", "dim", "message"),
    [
        (
            [{"a": torch.ones(1)}, {"a": torch.ones(1), "b": torch.ones(1)}],
            0,
            r"cannot gather dict at the value: the devices returned different keys or lengths "
            r"\(\['a'\]; \['a', 'b'\]\)",
        ),
        ([{"x": [1, 2]}, {"x": [1]}], 0, r"cannot gather list at \['x'\]: .*an entry for each"),
        (
            [[torch.ones(2)], [None]],
            0,
            r"cannot gather \[0\]: the devices returned .* things there \(Tensor, NoneType\)",
        ),
        ([[1], (1,)], 0, r"different things there \(list, tuple\)"),
        (
            [torch.ones(2), torch.ones(2, 2)],
            0,
            r"cannot gather the value: the numbers of dimensions differ \(\(2,\), \(2, 2\)\)",
        ),
        ([torch.ones(2), torch.ones(3)], 1, r"along dimension 1: the tensors have no such dim"),
    ],
)
def test_what_cannot_be_gathered(values: list[Any], dim: int, message: str) -> None:
    with pytest.raises(BatchError, match=message):
        gather(values, "cpu", dim)
