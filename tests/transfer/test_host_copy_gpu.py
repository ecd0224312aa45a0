"""Copies from GPUs, real or virtual, to the host."""

from __future__ import annotations

import datetime
import gc

import pytest
import torch

from anyrig.transfer import copy_to_host
from anyrig.transfer.streams import copy_stream


def busy(x: torch.Tensor) -> torch.Tensor:
    """Queue work that leaves a matrix of ones as it is."""
    for _ in range(10):
        x = x @ x / x.shape[0]
    return x


@pytest.mark.gpus(1)
@pytest.mark.parametrize("beside", [False, True])
def test_it_is_a_snapshot_whatever_is_queued_afterwards(gpu: torch.device, beside: bool) -> None:
    x = busy(torch.ones(512, 512, device=gpu))
    copy = copy_to_host({"x": x, "again": x}, beside=beside)
    x.zero_()
    y = torch.full_like(x, 2)  # where a freed clone may have been
    value = copy.value
    assert value["x"].device.type == "cpu"
    assert value["x"].is_pinned()
    assert value["x"] is value["again"]
    assert value["x"].eq(1).all()
    assert copy.done()
    assert y.eq(2).all()


@pytest.mark.gpus(1)
@pytest.mark.parametrize("beside", [False, True])
def test_the_value_comes_after_the_copy_and_the_work_before_it(
    gpu: torch.device, beside: bool
) -> None:
    x = torch.eye(768, device=gpu)
    for _ in range(20):
        x = x @ x  # work that takes longer than the small copy after it
    before = torch.accelerator.current_stream(gpu).record_event()
    value = copy_to_host(x[0, :4], beside=beside).value
    assert before.query()
    assert value.tolist() == [1, 0, 0, 0]
    if beside:
        stream = copy_stream(gpu, "to host")
        assert stream is not None
        assert stream.query()
    else:
        assert torch.accelerator.current_stream(gpu).query()


@pytest.mark.gpus(1)
@pytest.mark.parametrize("beside", [False, True])
def test_waiting_with_a_limit(gpu: torch.device, beside: bool) -> None:
    copy = copy_to_host(busy(torch.ones(512, 512, device=gpu)), beside=beside)
    try:
        value = copy.wait(timeout_seconds=0)
    except TimeoutError:  # unless the device is very fast, or virtual and without a clock
        value = copy.wait()
    assert value.eq(1).all()
    assert repr(copy) == "HostCopy(done)"


@pytest.mark.gpus(1)
@pytest.mark.parametrize("beside", [False, True])
def test_strides_dtypes_and_graph(gpu: torch.device, beside: bool) -> None:
    tensors = [
        torch.arange(6, device=gpu).view(2, 3).t(),
        torch.ones(2, 3, device=gpu, requires_grad=True) * 2,
        torch.tensor(1 + 2j, device=gpu).conj(),
        torch.empty(0, device=gpu),
        torch.ones(3, device=gpu).expand(2, 3),
    ]
    value = copy_to_host(tensors, beside=beside).value
    for host, tensor in zip(value, tensors, strict=True):
        assert not host.requires_grad
        assert torch.equal(host, tensor.detach().cpu())


@pytest.mark.gpus(1)
def test_the_copy_follows_the_stream_it_was_asked_on(gpu: torch.device) -> None:
    x = torch.ones(512, 512, device=gpu)
    stream = torch.Stream(gpu)
    stream.wait_stream(torch.accelerator.current_stream(gpu))
    with stream:
        copies = [copy_to_host(busy(x), beside=beside) for beside in (False, True)]
    assert all(copy.value.eq(1).all() for copy in copies)


@pytest.mark.gpus(2)
def test_a_tree_over_two_devices(gpu: torch.device) -> None:
    tree = [torch.full((2,), index, device=torch.device(gpu.type, index)) for index in range(2)]
    assert [t.tolist() for t in copy_to_host(tree).value] == [[0, 0], [1, 1]]
    assert [t.tolist() for t in copy_to_host(tree, beside=True).value] == [[0, 0], [1, 1]]


@pytest.mark.gpus(1)
@pytest.mark.parametrize("beside", [False, True])
def test_a_copy_is_pending_until_the_device_has_finished(gpu: torch.device, beside: bool) -> None:
    x = torch.ones(4, device=gpu)
    when = datetime.date(2020, 1, 2)
    torch.cuda._sleep(10**10)  # seconds
    copy = copy_to_host({"x": x, "when": when}, beside=beside)
    assert not copy.done()
    assert repr(copy) == "HostCopy(pending)"
    words = (
        "a copy to the host was not done after 0 s; the device has not finished the work that "
        "was queued before the copy. Wait again, or longer"
    )
    with pytest.raises(TimeoutError) as caught:
        copy.wait(timeout_seconds=0)
    assert str(caught.value) == words
    assert not copy.done()
    assert copy.wait(timeout_seconds=60) is copy.value
    assert copy.done()
    assert copy.value["x"].tolist() == [1] * 4
    assert copy.value["when"] is when


@pytest.mark.gpus(1)
def test_tensors_that_are_not_dense_are_waited_for(gpu: torch.device) -> None:
    sparse = torch.eye(3, device=gpu).to_sparse()
    jagged = torch.nested.nested_tensor(
        [torch.ones(1), torch.ones(2)], layout=torch.jagged, device=gpu
    )
    value = copy_to_host([sparse, jagged]).value
    assert value[0].device.type == value[1].device.type == "cpu"
    assert torch.equal(value[0].to_dense(), torch.eye(3))
    assert [part.tolist() for part in value[1].unbind()] == [[1], [1, 1]]


@pytest.mark.gpus(1)
def test_copies_in_the_current_stream_need_no_device_memory(gpu: torch.device) -> None:
    x = torch.ones(2**20, device=gpu)
    torch.cuda.synchronize(gpu)
    gc.collect()  # or it frees what other tests left, between the two figures
    before = torch.cuda.memory_allocated(gpu)
    for beside in (False, True):
        torch.cuda.reset_peak_memory_stats(gpu)
        copy_to_host(x, beside=beside).wait()
        needed = torch.cuda.max_memory_allocated(gpu) - before
        assert needed == (x.nbytes if beside else 0)
