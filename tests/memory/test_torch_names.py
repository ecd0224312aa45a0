"""The private names of PyTorch that `memory` uses. If a name changes, its test fails."""

from __future__ import annotations

import inspect
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState
from torch.nn.modules.batchnorm import _BatchNorm
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from anyrig.memory.rank_agreement import _COLLECTIVES, _POINT_TO_POINT
from anyrig.memory.torch_versions import fsdp_undoes_failed_steps, newer_collectives


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
    torch.cuda.init()  # before, PyTorch looks up an allocator that is not there, and crashes
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


def test_kernels_of_collectives_can_be_wrapped_for_a_while() -> None:
    """What `rank_agreement` does: a kernel at "Autograd", which calls the operator below it."""
    seen = []

    def agree(*args: Any, **kwargs: Any) -> Any:
        seen.append(len(args) + len(kwargs))
        with torch._C._AutoDispatchBelowAutograd():
            return torch.ops.c10d.allreduce_(*args, **kwargs)

    wrapped = (*_COLLECTIVES, *newer_collectives(), *_POINT_TO_POINT)
    for name in wrapped:
        assert hasattr(torch.ops.c10d, name), name
    ones = torch.ones(2)
    library = torch.library.Library("c10d", "IMPL")
    library.impl("allreduce_", agree, "Autograd")
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    try:
        dist.all_reduce(ones)
        library._destroy()
        dist.all_reduce(ones)
    finally:
        dist.destroy_process_group()
    assert len(seen) == 1
    # Every collective is wrapped; the rest of the namespace is no communication.
    others = {name for name in torch._C._dispatch_get_all_op_names() if name.startswith("c10d::")}
    known = {f"c10d::{name}" for name in wrapped}
    assert {name.partition(".")[0] for name in others} - {"c10d::check_for_nan"} == known


def test_wrapped_models_have_what_survive_resets() -> None:
    reducer: Any = dist.Reducer
    for name in ("_reset_state", "_push_all_rebuilt_params"):
        assert hasattr(reducer, name)
    if not fsdp_undoes_failed_steps():
        pytest.skip(f"FSDP2 of PyTorch {torch.__version__} cannot undo a failed step: from 2.13 on")
    for owner, names in {
        FSDPState: ("_reset_iter_state", "_state_ctx", "_fsdp_param_groups", "all_states"),
        FSDPParamGroup: ("reduce_grads", "all_reduce_grads", "fsdp_params"),
        FSDPParam: ("free_unsharded_param", "_unsharded_param"),
    }.items():
        source = inspect.getsource(sys.modules[owner.__module__])
        assert all(name in source for name in names)


def test_containers_are_flattened() -> None:
    leaves, structure = _pytree.tree_flatten(((1, [2]), {"a": None}))
    assert leaves == [1, 2, None]
    assert _pytree.tree_unflatten(leaves, structure) == ((1, [2]), {"a": None})
    found, _ = _pytree.tree_flatten_with_path(([5],))
    assert _pytree.keystr(found[0][0]) == "[0][0]"
    assert issubclass(nn.SyncBatchNorm, _BatchNorm)
