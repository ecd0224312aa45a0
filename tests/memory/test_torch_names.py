"""The private names of PyTorch that `memory` uses. If a name changes, its test fails."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack


def test_the_node_of_a_backward_pass_has_the_number_of_its_forward_pass() -> None:
    numbers = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            if torch._C._current_graph_task_id() != -1:
                node = torch._C._current_autograd_node()
                numbers.append((func.name(), node._sequence_nr()))
            return func(*args, **(kwargs or {}))

    x = torch.ones(3, requires_grad=True)
    y = x.exp()
    number = torch._C._autograd._get_sequence_nr() - 1
    assert y.grad_fn is not None
    assert y.grad_fn._sequence_nr() == number
    assert torch._C._current_graph_task_id() == -1
    with Watch():
        assert [type(mode) for mode in _get_current_dispatch_mode_stack()] == [Watch]
        y.backward(torch.ones(3))
    assert ("aten::mul.Tensor", number) in numbers


def test_a_storage_lives_as_long_as_its_python_object() -> None:
    import weakref

    ended = []

    class Keep(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
            ctx.save_for_backward(x.clone())
            return x.clone()

        @staticmethod
        def backward(ctx, gradient: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
            return gradient

    y = torch.ones(3, requires_grad=True).exp()
    reference = weakref.ref(y.untyped_storage(), lambda _: ended.append(True))
    z = y.sin()
    del y
    assert not ended  # the graph holds it
    assert reference() is not None
    del z
    assert ended


@pytest.mark.gpus(1)
def test_the_allocator_records_labels() -> None:
    assert not torch._C._cuda_isHistoryEnabled()
    torch.cuda.memory._record_memory_history("all", context=None, clear_history=True)
    try:
        torch._C._cuda_setMemoryMetadata("7")
        x = torch.ones(1000, device="cuda:0")
        trace = torch.cuda.memory._snapshot()["device_traces"][0]
        (entry,) = [entry for entry in trace if entry["action"] == "alloc"]
        assert entry["user_metadata"] == "7"
        assert entry["size"] == x.nbytes
        assert entry["addr"] == x.data_ptr()
    finally:
        torch._C._cuda_setMemoryMetadata("")
        torch.cuda.memory._record_memory_history(None)


@pytest.mark.gpus(2)
def test_labels_belong_to_a_thread() -> None:
    def allocate(label: str) -> Tensor:
        torch._C._cuda_setMemoryMetadata(label)
        meeting.wait(60)
        return torch.ones(1000, device="cuda:1")

    meeting = threading.Barrier(2)
    torch.ones(1, device="cuda:0")
    torch.cuda.memory._record_memory_history("all", context=None, clear_history=True)
    try:
        with ThreadPoolExecutor(2) as threads:
            tensors = list(threads.map(allocate, ("7", "8")))
        trace = torch.cuda.memory._snapshot()["device_traces"][1]
        labels = {e["addr"]: e["user_metadata"] for e in trace if e["action"] == "alloc"}
        assert [labels[tensor.data_ptr()] for tensor in tensors] == ["7", "8"]
        assert torch._C._cuda_getMemoryMetadata() == ""
    finally:
        torch.cuda.memory._record_memory_history(None)


@pytest.mark.gpus(2)
def test_a_device_without_a_context_is_known() -> None:
    torch.ones(1, device="cuda:0")
    assert torch._C._cuda_hasPrimaryContext(0) is True


def test_a_function_waits_for_cuda() -> None:
    waiting = torch.cuda._queued_calls
    if torch.cuda.is_initialized():
        called = []
        torch.cuda._lazy_call(lambda: called.append(True))
        assert called
    else:
        before = len(waiting)
        torch.cuda._lazy_call(lambda: None)
        assert len(waiting) == before + 1
        waiting.pop()


def test_replicas_share_the_hooks_of_their_module() -> None:
    module = torch.nn.Linear(2, 2)
    replica = module._replicate_for_data_parallel()
    assert vars(replica)["_forward_hooks"] is vars(module)["_forward_hooks"]
