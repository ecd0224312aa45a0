"""Moving tensors between host and GPUs: pinned memory, loaders, files, deep copies."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

DEVICE = "cuda:1"


def test_pinned_memory() -> None:
    pinned = torch.arange(5.0).pin_memory()
    assert pinned.is_pinned()
    assert not torch.ones(1).is_pinned()
    assert pinned[2:].is_pinned()
    assert torch.empty(3, pin_memory=True).is_pinned()
    assert pinned.cuda(DEVICE, non_blocking=True).tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(RuntimeError, match="Only dense CPU tensors can be pinned"):
        torch.empty(3, device="cuda", pin_memory=True)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_memory_that_is_not_of_a_gpu_is_not_sent_as_such(device: str) -> None:
    storage = torch.empty(3, device=device).untyped_storage()
    with pytest.raises(RuntimeError, match="_share_cuda_: only available on CUDA"):
        storage._share_cuda_()


def test_a_loader_with_workers_pins() -> None:
    loader = DataLoader(
        TensorDataset(torch.arange(12.0), torch.arange(12)),
        batch_size=4,
        num_workers=2,
        pin_memory=True,
    )
    batches = list(loader)
    assert len(batches) == 3
    for values, labels in batches:
        assert values.is_pinned()
        assert torch.equal(values.cuda(non_blocking=True).long(), labels.cuda())


@pytest.mark.parametrize(
    ("map_location", "device"),
    [
        (None, "cuda:1"),
        ("cpu", "cpu"),
        ("cuda:2", "cuda:2"),
        (torch.device("cuda", 3), "cuda:3"),
        ({"cuda:1": "cuda:0"}, "cuda:0"),
        (lambda storage, location: storage, "cpu"),
        (lambda storage, location: storage.cuda(2), "cuda:2"),
    ],
)
def test_saving_and_loading(map_location: Any, device: str) -> None:
    file = io.BytesIO()
    saved = torch.arange(6.0, device=DEVICE)[1:].view(5, 1)
    torch.save({"x": saved}, file)
    file.seek(0)
    loaded = torch.load(file, map_location=map_location)["x"]
    assert loaded.device == torch.device(DEVICE if device == "cuda:1" else device)
    assert torch.equal(loaded.cpu(), saved.cpu())


def test_a_file_of_a_gpu_that_is_not_here() -> None:
    file = io.BytesIO()
    torch.save(torch.ones(1, device=DEVICE), file)
    data = file.getvalue().replace(DEVICE.encode(), b"cuda:9")
    with pytest.raises(RuntimeError, match="Attempting to deserialize object on CUDA device 9"):
        torch.load(io.BytesIO(data))


def test_copies_of_objects() -> None:
    module = nn.Linear(3, 2).to(DEVICE)
    twin = copy.deepcopy(module)
    assert twin.weight.device == module.weight.device
    assert twin.weight.data_ptr() != module.weight.data_ptr()
    again = pickle.loads(pickle.dumps(module))
    assert again.weight.device == module.weight.device
    assert torch.equal(again.weight, module.weight)
    optimizer = torch.optim.AdamW(module.parameters())
    module(torch.ones(1, 3, device=DEVICE)).sum().backward()
    optimizer.step()
    restored = torch.optim.AdamW(module.parameters())
    restored.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    state = restored.state[module.weight]
    assert state["exp_avg"].device == module.weight.device


def test_views_share_memory() -> None:
    base = torch.zeros(4, 4, device="cuda")
    base[1, 1:3] = 7
    base.t()[0].add_(1)
    base.view(-1).as_strided((2,), (5,)).mul_(3)
    expected = torch.zeros(4, 4)
    expected[1, 1:3] = 7
    expected.t()[0].add_(1)
    expected.view(-1).as_strided((2,), (5,)).mul_(3)
    assert torch.equal(base.cpu(), expected)
    assert base[1].data_ptr() == base.data_ptr() + 16
    assert torch.view_as_complex(base.view(8, 2)).real.untyped_storage().data_ptr() == (
        base.untyped_storage().data_ptr()
    )


def test_between_gpus_and_types() -> None:
    x = torch.arange(6.0).view(2, 3)
    there = x.t().to("cuda:1", dtype=torch.float64)
    back = there.to("cuda:2").half().to("cpu", non_blocking=True)
    assert torch.equal(back.float(), x.t())
    complex_ = torch.tensor([1 + 2j]).cuda().conj()
    assert torch.equal(complex_.cpu(), torch.tensor([1 - 2j]))


@pytest.mark.parametrize("place", ["to the host", "to a device", "between devices"])
def test_a_conjugate_is_copied_as_what_it_stands_for(place: str) -> None:
    """PyTorch loses the conjugation where it converts the dtype before it copies.

    A copy between host and device converts on the device if it is asynchronous, else on the host.
    """
    numbers = torch.tensor([[1 + 2j, 3 - 4j], [5j, 6]])
    source, target = {
        "to the host": (DEVICE, "cpu"),
        "to a device": ("cpu", DEVICE),
        "between devices": ("cuda:0", "cuda:1"),
    }[place]
    for dtype in (torch.complex64, torch.complex128):
        for non_blocking in (False, True):
            for columns_first in (False, True):
                to = torch.zeros(2, 2, dtype=dtype, device=target)
                to = to.t() if columns_first else to
                to.copy_(numbers.to(source).conj(), non_blocking)
                torch.cuda.synchronize(DEVICE)
                converts_first = place == ("to the host" if non_blocking else "to a device")
                is_lost = dtype == torch.complex128 and converts_first
                expected = numbers if is_lost else numbers.conj()
                assert to.tolist() == expected.resolve_conj().tolist()


def test_a_negated_view_is_copied_as_what_it_stands_for() -> None:
    negated = torch._neg_view(torch.tensor([[1.0, -3.0], [5.0, 6.0]]))
    for dtype, non_blocking in ((torch.float32, False), (torch.float64, True)):
        there = torch.zeros(2, 2, dtype=dtype, device=DEVICE)
        assert there.copy_(negated, non_blocking).tolist() == [[-1, 3], [-5, -6]]
    # PyTorch loses the sign where it converts the dtype, or makes the source contiguous, first.
    there = torch.zeros(2, 2, dtype=torch.float64, device=DEVICE)
    assert there.copy_(negated).tolist() == [[1, -3], [5, 6]]
    assert torch.zeros(2, 1, device=DEVICE).copy_(negated[:, :1]).tolist() == [[1], [5]]


def test_memory_of_a_device_is_not_pinned() -> None:
    with pytest.raises(RuntimeError, match="Only dense CPU tensors can be pinned"):
        torch.empty(2, device="cuda", pin_memory=True)


def test_set_to_the_same_place_sizes_and_strides() -> None:
    x = torch.zeros(4, 4, device="cuda")
    assert x[:2].is_set_to(x[:2])
    for other in (x[1:3], x[:1], x[:2, :2], x.t()[:2], x.clone()[:2]):
        assert not x[:2].is_set_to(other)
