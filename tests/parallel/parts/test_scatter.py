"""Scattering nested batches."""

from __future__ import annotations

from collections import OrderedDict, UserDict, deque
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from nested_trees import Box, Opaque, Pair, fill, trees_of
from packed_sequences import pack
from torch import Tensor

from anyrig.devices import Rig
from anyrig.errors import BatchError, SharesError, SpreadError
from anyrig.parallel.parts.find_listed import lists_records
from anyrig.parallel.parts.samples import count_samples, name_argument
from anyrig.parallel.parts.scatter import divide, scatter, scatter_samples
from anyrig.parallel.shares.shares import Shares

DEVICES = ["cuda:0", "cuda:1", "cuda:2"]
PLACES = [torch.device(device) for device in DEVICES]
SOURCES = pytest.mark.parametrize("source", ["cpu", "cuda:0", "cuda:2"])


@pytest.mark.gpus(3)
@SOURCES
@pytest.mark.parametrize("dim", [0, 1, -1, -2])
def test_each_device_gets_its_samples(source: str, dim: int) -> None:
    x = torch.randn(7, 6, 5, device=source)
    sizes = {0: [3, 3, 1], 1: [2, 2, 2], 2: [2, 2, 1]}[dim % 3]
    parts = scatter(x, DEVICES, dim=dim)
    assert [part.device for part in parts] == [torch.device(device) for device in DEVICES]
    for part, expected in zip(parts, x.split(sizes, dim), strict=True):
        assert torch.equal(part.cpu(), expected.cpu())


@pytest.mark.gpus(3)
@SOURCES
def test_shares_may_be_uneven_and_empty(source: str) -> None:
    x = torch.randn(5, 2, device=source)
    parts = scatter(x, DEVICES, (3, 0, 2))
    assert [tuple(part.shape) for part in parts] == [(3, 2), (0, 2), (2, 2)]
    assert [part.get_device() for part in parts] == [0, 1, 2]
    assert torch.equal(torch.cat([part.cpu() for part in parts]), x.cpu())


@pytest.mark.gpus(3)
@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.complex64, torch.bool, torch.int64]
)
def test_any_dtype(dtype: torch.dtype) -> None:
    x = torch.arange(10).reshape(5, 2).to(dtype)
    parts = scatter(x, DEVICES)
    assert torch.equal(torch.cat([part.cpu() for part in parts]), x)
    assert all(part.dtype == dtype for part in parts)


@pytest.mark.gpus(3)
def test_structure_types_and_sharing_are_kept() -> None:
    x, mask = torch.randn(6, 2), torch.ones(6, dtype=torch.bool)
    opaque, parameters = Opaque(), {"lr": 0.1}
    batch = {
        "pair": Pair(x, [mask, x]),
        "box": Box((x,), "label"),
        "ordered": OrderedDict(b=x, a=3),
        "user": UserDict(x=x),
        "deque": deque([x, "text"], maxlen=3),
        "size": x.shape,
        "scale": torch.tensor(0.5),
        "nothing": [None, True, 2, 1.5, "text", b"bytes", opaque, [], {}],
        "kept": parameters,
    }
    for index, part in enumerate(scatter(batch, DEVICES)):
        rows = slice(2 * index, 2 * index + 2)
        here = part["pair"].left
        assert here.get_device() == index
        assert torch.equal(here.cpu(), x[rows])
        assert type(part["pair"]) is Pair
        assert torch.equal(part["pair"].right[0].cpu(), mask[rows])
        assert part["pair"].right[1] is here
        assert part["box"] == Box((here,), "label")
        assert list(part["ordered"]) == ["b", "a"]
        assert part["ordered"]["b"] is here
        assert type(part["user"]) is UserDict
        assert part["user"]["x"] is here
        assert part["deque"].maxlen == 3
        assert part["size"] is batch["size"]
        assert part["scale"].get_device() == index
        assert part["scale"].item() == 0.5
        assert part["nothing"] == batch["nothing"]
        assert part["nothing"][6] is opaque
        assert part["kept"] is parameters


LEAVES = st.sampled_from(["split", "again", "scalar", "number", "none", "text"])
TREES = trees_of(LEAVES, max_leaves=12)


def equal(found: Any, expected: Any) -> bool:
    if isinstance(expected, Tensor):
        return isinstance(found, Tensor) and torch.equal(found.cpu(), expected.cpu())
    if type(found) is not type(expected):
        return False
    if isinstance(expected, dict):
        return list(found) == list(expected) and all(equal(found[k], expected[k]) for k in found)
    if isinstance(expected, Box):
        return found.label == expected.label and equal(found.content, expected.content)
    if isinstance(expected, (list, tuple)):
        return len(found) == len(expected) and all(map(equal, found, expected))
    return bool(found == expected)


def may_list_samples(tree: Any, samples: int) -> bool:
    if isinstance(tree, Box):
        return may_list_samples(tree.content, samples)
    if not isinstance(tree, (dict, list, tuple)):
        return False
    if not isinstance(tree, dict) and (lists_records(tree) or len(tree) == samples):
        return True
    children = tree.values() if isinstance(tree, dict) else tree
    return any(may_list_samples(child, samples) for child in children)


@pytest.mark.gpus(3)
@given(TREES, st.lists(st.integers(0, 4), min_size=3, max_size=3).filter(any), st.integers(0, 1))
@settings(deadline=None, max_examples=60)
def test_every_tree_is_divided_by_samples(tree: Any, rows: list[int], dim: int) -> None:
    total = sum(rows)
    assume(not may_list_samples(tree, total))
    shape = (total, 3) if dim == 0 else (3, total)
    whole = {
        "split": torch.arange(3 * total).reshape(shape),
        "again": torch.randn(*shape, 2),
        "scalar": torch.tensor(2.5),
        "number": 7,
        "none": None,
        "text": "text",
    }
    divided = {
        name: leaf.split(rows, dim) if name in ("split", "again") else [leaf] * 3
        for name, leaf in whole.items()
    }
    expected = [
        fill(tree, {name: parts[index] for name, parts in divided.items()}.__getitem__)
        for index in range(3)
    ]
    found = scatter(fill(tree, whole.__getitem__), DEVICES, rows, dim)
    assert all(map(equal, found, expected))


@pytest.mark.gpus(3)
@SOURCES
def test_differentiable_twice(source: str) -> None:
    x = torch.randn(5, 4, dtype=torch.float64, device=source, requires_grad=True)

    def function(x: Tensor) -> Tensor:
        parts = scatter({"x": x.sin()}, DEVICES, (1, 0, 3), dim=-1)
        return torch.stack([part["x"].pow(3).sum().to("cuda:1") for part in parts]).sum()

    assert torch.autograd.gradcheck(function, x)
    assert torch.autograd.gradgradcheck(function, x)


@pytest.mark.gpus(3)
def test_a_leaf_on_the_host_gets_its_gradient_there() -> None:
    x = torch.randn(5, 2, requires_grad=True)
    parts = scatter(x, DEVICES)
    (parts[0].sum() + 2 * parts[2].sum().to("cuda:0")).backward()
    assert x.grad is not None
    assert x.grad.device.type == "cpu"
    assert x.grad[:, 0].tolist() == [1, 1, 0, 0, 2]


@pytest.mark.gpus(2)
def test_a_module_may_write_into_its_part() -> None:
    x = torch.randn(4, 2, device="cuda:0", requires_grad=True)
    for part in scatter(2 * x, ["cuda:0", "cuda:1"]):
        part.relu_().sum().backward(retain_graph=True)
    assert x.grad is not None
    assert torch.equal(x.grad, 2.0 * (x > 0))


@pytest.mark.gpus(2)
def test_the_part_of_the_tensors_own_device_is_no_copy() -> None:
    x = torch.randn(4, 2, device="cuda:0")
    parts = scatter(x, ["cuda:0", "cuda:1"])
    assert parts[0].data_ptr() == x.data_ptr()
    assert scatter(x, ["cuda:0"])[0] is x
    assert scatter([x.requires_grad_(), 1], ["cuda:0"])[0][0] is x


@pytest.mark.gpus(3)
def test_no_grad_and_inference_mode() -> None:
    x = torch.randn(4, 2, requires_grad=True)
    with torch.no_grad():
        assert not scatter(x, DEVICES)[0].requires_grad
    with torch.inference_mode():
        assert scatter(x, DEVICES)[1].is_inference()


@pytest.mark.gpus(3)
def test_strides_are_kept() -> None:
    x = torch.randn(6, 3, 4, 4).to(memory_format=torch.channels_last)
    for source in (x, x.to("cuda:0")):
        for part in scatter(source, DEVICES):
            assert part.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.gpus(3)
def test_sparse_tensors_are_divided() -> None:
    x = torch.eye(6).to_sparse()
    parts = scatter(x, DEVICES, (1, 3, 2))
    assert torch.equal(torch.cat([part.to_dense().cpu() for part in parts]), torch.eye(6))
    assert all(part.is_sparse for part in parts)


@pytest.mark.gpus(3)
def test_a_rig_and_shares_with_limits() -> None:
    rig = Rig.parse("cuda:1,cuda:0")
    shares = Shares((3.0, 1.0), "given", (2, None))
    parts = scatter(torch.arange(8), rig, shares)
    assert [part.tolist() for part in parts] == [[0, 1], [2, 3, 4, 5, 6, 7]]
    assert [part.get_device() for part in parts] == [1, 0]


@pytest.mark.gpus(3)
def test_a_call_has_one_number_of_samples() -> None:
    x, y = torch.randn(7, 2), torch.arange(7)
    split = divide(((x, 3), {"target": y}), PLACES, Shares((2, 1, 0), "given").split)
    assert split.samples == (5, 2, 0)
    (args, kwargs), (_, second), _ = split.values
    assert args[1] == 3
    assert torch.equal(args[0].cpu(), x[:5])
    assert kwargs["target"].tolist() == [0, 1, 2, 3, 4]
    assert second["target"].tolist() == [5, 6]


@pytest.mark.gpus(3)
def test_without_samples_each_device_gets_the_whole() -> None:
    split = divide({"scale": torch.tensor(2.0), "text": "x"}, PLACES, lambda _: [1, 1, 1])
    assert split.samples is None
    assert [part["scale"].get_device() for part in split.values] == [0, 1, 2]
    assert scatter((), DEVICES) == [(), (), ()]


@pytest.mark.gpus(2)
@pytest.mark.parametrize(
    ("value", "dim", "message"),
    [
        (
            {"x": torch.ones(8, 2), "mask": torch.ones(1, 8)},
            0,
            r"the batch has 8 samples along dimension 0 in \['x'\] \(shape \(8, 2\)\), but 1 in "
            r"\['mask'\] \(shape \(1, 8\)\).*tensor\.expand\(\)",
        ),
        (
            [torch.ones(8, 2), torch.ones(8)],
            1,
            r"\[1\] \(shape \(8,\)\) cannot be divided along dimension 1, which it does not have",
        ),
        (
            torch.ones(8, 2),
            -3,
            r"the value \(shape \(8, 2\)\) cannot be divided along dimension -3",
        ),
        (
            [torch.ones(3), pack([2, 1], enforce_sorted=True)],
            0,
            r"has 3 samples .* but 2 in \[1\] \(a packed sequence\)",
        ),
    ],
)
def test_what_cannot_be_split(value: Any, dim: int, message: str) -> None:
    with pytest.raises(BatchError, match=message):
        scatter(value, ["cuda:0", "cuda:1"], dim=dim)


@pytest.mark.gpus(2)
def test_errors_name_the_arguments_of_a_call() -> None:
    call = ({"x": torch.ones(2)},), {"target": torch.ones(3)}
    with pytest.raises(BatchError, match=r"in argument 0\['x'\] \(.*, but 3 in argument 'target'"):
        divide(call, PLACES[:2], lambda _: [1, 1], name=name_argument, is_call=True)


@pytest.mark.gpus(2)
def test_devices_and_shares_that_do_not_fit() -> None:
    with pytest.raises(SpreadError, match="a device is named twice among cuda:1, cuda:1"):
        scatter(torch.ones(2), ["cuda:1", 1])
    with pytest.raises(SpreadError, match="the list of devices is empty"):
        scatter(torch.ones(2), [])
    with pytest.raises(SharesError, match="3 shares for 2 devices"):
        scatter(torch.ones(2), ["cuda:0", "cuda:1"], (1, 2, 3))
    devices = [torch.device("cuda:0"), torch.device("cuda:1")]
    with pytest.raises(BatchError, match=r"5 samples to divide, but the parts have 2 \+ 2 = 4"):
        scatter_samples(torch.ones(5), devices, [2, 2])


def test_samples_are_counted() -> None:
    assert count_samples({"x": torch.ones(3, 2), "n": torch.tensor(1)}) == 3
    assert count_samples([torch.ones(3, 2), torch.ones(5, 2)], dim=-1) == 2
    assert count_samples([1, None, torch.tensor(1.0)]) is None
    assert count_samples(pack([3, 2, 2], enforce_sorted=True)) == 3


@pytest.mark.gpus(2)
def test_devices_of_several_kinds_and_objects_that_cannot_be_built_again() -> None:
    kinds = "of several kinds: cuda:0, cpu; use devices of one kind"
    with pytest.raises(SpreadError, match=kinds):
        scatter(torch.ones(2), ["cuda:0", "cpu"])

    class Checked(dict[str, Any]):
        def __copy__(self) -> Any:
            raise ValueError("not again")

    words = r"Checked cannot be rebuilt .*\(ValueError: not again\); pass its contents"
    with pytest.raises(BatchError, match=words):
        scatter(Checked(x=torch.ones(2)), ["cuda:0", "cuda:1"])
