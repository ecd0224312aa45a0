"""For random batches of any structure and any shares, a spread module equals the module."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from nested_trees import Box, Opaque, Pair, fill, trees_of
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from trained_models import first_devices

import anyrig
from anyrig.parallel.parts.find_listed import lists_records
from anyrig.transfer.tree import map_leaves

pytestmark = pytest.mark.gpus(4)


OPAQUE = Opaque()


class Leaf(NamedTuple):
    """Stands for a tensor until the number of samples is known."""

    shape: tuple[int, ...]
    device: str


WHERE = st.sampled_from(["cpu", "cuda:0", "cuda:1", "cuda:3"])
LEAVES = st.one_of(
    st.builds(Leaf, st.lists(st.integers(0, 3), max_size=2).map(tuple), WHERE),
    st.just(OPAQUE),
    st.none(),
    st.integers(-3, 3),
    st.text(max_size=2),
)
TREES = trees_of(LEAVES, max_leaves=8)
SHARES = st.one_of(
    st.just("auto"),
    st.lists(st.sampled_from([0, 0, 1, 2, 3.5]), min_size=1, max_size=4).filter(any),
)


def grow(tree: Any, rows: int, seed: int, kept: list[Tensor]) -> Any:
    """Return `tree` with a tensor of `rows` samples for each `Leaf`, and add it to `kept`."""
    generator = torch.Generator().manual_seed(seed)

    def draw(leaf: Leaf) -> Tensor:
        drawn = torch.randn((rows, *leaf.shape), dtype=torch.float64, generator=generator)
        kept.append(drawn.to(leaf.device).requires_grad_())
        return kept[-1]

    return fill(tree, draw, Leaf)


class Curved(nn.Module):
    """Maps every tensor in its arguments by a curve with two parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.tensor(0.7, dtype=torch.float64))
        self.bend = nn.Parameter(torch.tensor([0.3, -1.1], dtype=torch.float64))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        def bend(leaf: Any, path: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            curve = self.slope * leaf + (self.bend[0] * leaf + self.bend[1]).sin()
            return curve.to(self.slope.device)

        return map_leaves((args, kwargs), bend)


def tensors_of(tree: Any) -> list[Tensor]:
    found: list[Tensor] = []
    map_leaves(tree, lambda leaf, _: found.append(leaf) if isinstance(leaf, Tensor) else None)
    return found


def gradients(model: Any, module: nn.Module, arguments: Any, leaves: list[Tensor]) -> Any:
    """Return the output, and the gradients of a function of all its tensors."""
    args, kwargs = arguments
    output = model(*args, **kwargs)
    tensors = tensors_of(output)
    for tensor in (*module.parameters(), *leaves):
        tensor.grad = None
    if tensors:
        torch.stack([tensor.square().sum() for tensor in tensors]).sum().backward()
    return output, [tensor.grad for tensor in (*module.parameters(), *leaves)]


@pytest.mark.filterwarnings("ignore:.*The first device computes this batch alone:UserWarning")
# PyTorch 2.11 and 2.12 warn of leaves on other devices, even where one device computes.
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream does not match:UserWarning")
@given(
    trees=st.tuples(
        st.lists(TREES, max_size=2).map(tuple),
        st.dictionaries(st.sampled_from(["a", "b"]), TREES, max_size=2),
    ),
    rows=st.integers(0, 9),
    shares=SHARES,
    seed=st.integers(0, 99),
)
@settings(deadline=None, max_examples=100)
def test_any_batch_and_any_shares(trees: Any, rows: int, shares: Any, seed: int) -> None:
    leaves: list[Tensor] = []
    arguments = grow(trees, rows, seed, leaves)
    module = Curved().to("cuda:0")
    moved = anyrig.move(arguments, "cuda:0") if leaves else arguments
    expected, expected_gradients = gradients(module, module, moved, leaves)
    devices = 3 if shares == "auto" else len(shares)
    model = anyrig.spread(module, first_devices(devices), plan=anyrig.Replicas(shares=shares))
    try:
        found, found_gradients = gradients(model, module, arguments, leaves)
    except anyrig.errors.BatchError as error:
        if not is_refused(arguments, rows, str(error)):
            raise
        return
    assert_same_form(found, expected)
    torch.testing.assert_close(tensors_of(found), tensors_of(expected), rtol=1e-9, atol=1e-12)
    for here, there in zip(found_gradients, expected_gradients, strict=True):
        if rows and there is not None:
            torch.testing.assert_close(here, there, rtol=1e-9, atol=1e-12)


def lists_of_dicts(tree: Any) -> list[list[Any]]:
    """Return the lists of dicts with a key in common, or of one class, which could be samples."""
    if isinstance(tree, Box):
        return lists_of_dicts(tree.content)
    if isinstance(tree, dict):
        return [found for each in tree.values() for found in lists_of_dicts(each)]
    if not isinstance(tree, (list, tuple)):
        return []
    if type(tree) is not Pair and lists_records(tree):
        return [tree]
    return [found for each in tree for found in lists_of_dicts(each)]


def is_refused(arguments: Any, rows: int, message: str) -> bool:
    """Return whether `message` is the right refusal of a list of records among the arguments."""
    lengths = {len(found) for found in lists_of_dicts(arguments)}
    if "nothing outside shows whether each entry is a sample" in message:
        return bool(lengths)
    if "but another list of dicts has a different length" in message:
        return len(lengths) > 1
    if "so either could be its samples" in message:
        return rows in lengths
    return "Settings belong in the module" in message and bool(lengths - {rows})


def assert_same_form(found: Any, expected: Any) -> None:
    """Require equal types, keys and values other than tensors, and identical objects."""
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        found, expected = list(found.values()), list(expected.values())
    if isinstance(expected, Box):
        assert found.label == expected.label
        found, expected = [found.content], [expected.content]
    if isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for here, there in zip(found, expected, strict=True):
            assert_same_form(here, there)
    elif isinstance(expected, Tensor):
        assert found.device == expected.device
    elif isinstance(expected, Opaque):
        assert found is expected
    else:
        assert found == expected


@given(
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=8),
    shares=SHARES,
    sorted_first=st.booleans(),
)
@settings(deadline=None, max_examples=40)
def test_packed_sequences(lengths: list[int], shares: Any, sorted_first: bool) -> None:
    if sorted_first:
        lengths = sorted(lengths, reverse=True)
    sequences = [torch.randn(n, 2, dtype=torch.float64, device="cuda:0") for n in lengths]
    packed = pack_sequence(sequences, enforce_sorted=sorted_first)
    module = Curved().to("cuda:0")

    class OfPacked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.curve = module

        def forward(self, given: PackedSequence) -> PackedSequence:
            (((data,), _)) = self.curve(given.data)
            return PackedSequence(
                data, given.batch_sizes, given.sorted_indices, given.unsorted_indices
            )

    one = OfPacked()
    devices = 3 if shares == "auto" else len(shares)
    found = anyrig.spread(one, first_devices(devices), plan=anyrig.Replicas(shares=shares))(packed)
    expected = one(packed)
    pad = nn.utils.rnn.pad_packed_sequence
    for here, there in zip(pad(found), pad(expected), strict=True):
        torch.testing.assert_close(here, there)


@given(
    rows=st.integers(0, 6),
    columns=st.integers(0, 6),
    dim=st.integers(-2, 1),
    shares=SHARES,
)
@settings(deadline=None, max_examples=40)
def test_any_dimension(rows: int, columns: int, dim: int, shares: Any) -> None:
    module = Curved().to("cuda:0")
    x = torch.randn(rows, columns, dtype=torch.float64, device="cuda:0")
    devices = 3 if shares == "auto" else len(shares)
    found = anyrig.spread(
        module, first_devices(devices), plan=anyrig.Replicas(shares=shares), dim=dim
    )(x)
    torch.testing.assert_close(found, module(x))
