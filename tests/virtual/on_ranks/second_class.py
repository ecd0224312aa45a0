"""ProcessGroupNCCL2, its lazy variant, and the backends that choose a class.

Each case initializes its own world, in one store. Versions before 2.14 have ProcessGroupNCCL only.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from initializing import check_works, initialize
from nccl_classes import HAS_BOTH, backend_of, version_of_torch

BINDS_AT_ONCE = version_of_torch() >= (2, 15)


@contextmanager
def variable(name: str, value: str) -> Iterator[None]:
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]


def bound_device(group: Any = None) -> Any:
    return (group or dist.group.WORLD).bound_device_id


def case_classes_of_backends(world: Any) -> None:
    of_nccl = ("ProcessGroupNCCL2", "nccl2") if BINDS_AT_ONCE else ("ProcessGroupNCCL", "nccl")
    expected = {"nccl": of_nccl}
    if HAS_BOTH:
        expected["nccl-legacy"] = ("ProcessGroupNCCL", "nccl")
        expected["nccl2"] = ("ProcessGroupNCCL2", "nccl2")
        expected["nccl-lazy"] = ("ProcessGroupNCCLLazy", "nccl-lazy")
    for number, (name, (of_class, own_name)) in enumerate(expected.items()):
        for text in (name, f"cpu:gloo,cuda:{name}"):
            initialize(world, f"classes {number} {text}", text)
            backend = backend_of()
            assert type(backend).__name__ == of_class
            assert isinstance(backend, getattr(dist, of_class))
            assert isinstance(backend, dist.ProcessGroupNCCL) is (of_class == "ProcessGroupNCCL")
            assert type(backend).__module__ == "torch.distributed.distributed_c10d"
            assert backend.name() == own_name
            assert isinstance(backend.options, dist.ProcessGroupNCCL.Options)
            check_works(world)
            if "cpu" not in text:
                assert dist.get_backend() == name
            pair = dist.new_group([0, 1])
            if world.rank < 2:
                check_works(world, group=pair, size=2)


def case_the_variable_of_the_first_use(world: Any) -> None:
    # PyTorch reads the variable when a program first asks for "nccl", so a registration is undone.
    if not HAS_BOTH:
        return
    c10d: Any = dist.distributed_c10d
    kept = c10d.Backend._plugins.pop("NCCL")
    try:
        other = "0" if BINDS_AT_ONCE else "1"
        with variable("TORCH_DIST_USE_NCCL2", other):
            initialize(world, "variable", "nccl")
        expected = "ProcessGroupNCCL" if BINDS_AT_ONCE else "ProcessGroupNCCL2"
        assert type(backend_of()).__name__ == expected
        check_works(world)
    finally:
        c10d.Backend._plugins["NCCL"] = kept
        if BINDS_AT_ONCE:
            c10d._FR_SELF_RECORDING_BACKENDS.discard("nccl")


def case_the_device_of_a_group(world: Any) -> None:
    if not BINDS_AT_ONCE:
        return
    initialize(world, "of the rank", "nccl")
    assert bound_device() == torch.device(world.device)
    # A program may take another GPU as its current one, or none: it does not matter.
    turned = (world.rank + 1) % world.size
    with variable("LOCAL_RANK", str(turned + world.size)):
        initialize(world, "of the local rank", "nccl")
    assert bound_device() == torch.device("cuda", turned)
    check_works(world, f"cuda:{turned}")
    dist.barrier()
    subgroup = dist.new_group()
    assert bound_device(subgroup) == torch.device("cuda", turned)
    check_works(world, f"cuda:{turned}", group=subgroup)
    with pytest.raises(RuntimeError, match=rf"bound to device cuda:{turned} but an operation"):
        backend_of().eager_connect_single_device(torch.device(world.device))
    initialize(world, "legacy", "nccl-legacy")
    assert bound_device() is None


def case_a_tensor_on_another_device(world: Any) -> None:
    if not HAS_BOTH:
        return
    initialize(world, "other device", "nccl2")
    check_works(world)
    own, other = torch.device(world.device), f"cuda:{(world.rank + 1) % world.size}"
    text = (
        f"Expected tensor on {own} but found tensor on {other}"
        if BINDS_AT_ONCE
        else f"ProcessGroupNCCL is bound to device {own} but an operation was issued on {other}"
    )
    tensor = torch.ones(2, device=other)
    for call in (
        lambda: dist.all_reduce(tensor),
        lambda: dist.broadcast(tensor, 0),
        lambda: dist.send(tensor, (world.rank + 1) % world.size),
    ):
        with pytest.raises(RuntimeError, match=text):
            call()
    check_works(world)


def case_a_script_that_selects_no_gpu(world: Any) -> None:
    # `cuda` is GPU 0 on every rank, whereas each rank's group belongs to a GPU of its own.
    if not BINDS_AT_ONCE:
        return
    initialize(world, "no gpu", "nccl")
    torch.cuda.set_device(0)
    try:
        if world.rank > 0:
            with pytest.raises(RuntimeError, match=f"Expected tensor on cuda:{world.rank} but fo"):
                dist.all_reduce(torch.ones(2, device="cuda"))
    finally:
        torch.cuda.set_device(world.rank)
    check_works(world)


def case_split_groups(world: Any) -> None:
    if not HAS_BOTH:
        return
    initialize(world, "split", "nccl2", device_id=torch.device(world.device))
    group = dist.split_group(split_ranks=[[1, 0], [2]])
    check_works(world, group=group, size=2 if world.rank < 2 else 1)
    assert dist.get_rank(group) == (1 - world.rank if world.rank < 2 else 0)
    backend = backend_of(group)
    assert isinstance(backend, dist.ProcessGroupNCCL2)  # type: ignore[attr-defined]
    assert not hasattr(backend, "comm_split_count")
    parent, store = backend_of(), dist.HashStore()
    options = dist.ProcessGroupNCCL.Options()
    with pytest.raises(RuntimeError, match=f"invalid rank {world.size}; valid ranks are 0 to"):
        parent.split(store, [world.size], options)
    with pytest.raises(RuntimeError, match="rank 0 appears multiple times in ranks"):
        parent.split(store, [0, 0], options)


def case_calls_that_this_class_does_not_have(world: Any) -> None:
    if not HAS_BOTH:
        return
    initialize(world, "refused", "nccl2")
    check_works(world)
    backend = backend_of()
    with pytest.raises(RuntimeError, match="nccl2 does not support recvAnysource"):
        dist.recv(torch.zeros(2, device="cuda"))
    with pytest.raises(RuntimeError, match="onCompletion hook, but got nccl2 backend"):
        dist.group.WORLD._register_on_completion_hook(print)
    with pytest.raises(RuntimeError, match="Unsupported tensor data type for NCCL"):
        dist.all_reduce(torch.ones(2, dtype=torch.int16, device="cuda"))
    for name in ("uid", "_set_enable_nan_check", "_is_initialized", "_verify_work_timeout"):
        assert not hasattr(backend, name)


def case_lists_in_one_call(world: Any) -> None:
    if not HAS_BOTH:
        return
    initialize(world, "lists", "nccl2")
    rows = [torch.full((n,), float(world.rank), device="cuda") for n in (1, 2)]
    gathered = [[torch.empty(n, device="cuda") for _ in range(world.size)] for n in (1, 2)]
    backend_of().allgather_coalesced(gathered, rows).wait()
    for n, outputs in zip((1, 2), gathered, strict=True):
        assert [each.tolist() for each in outputs] == [[float(r)] * n for r in range(world.size)]


def case_channels_of_the_lazy_class(world: Any) -> None:
    if not HAS_BOTH:
        return
    initialize(world, "lazy", "nccl-lazy")
    assert backend_of()._num_active_channels() == 0
    if world.rank < 2:
        received = torch.zeros(2, device="cuda")
        if world.rank == 0:
            dist.send(received + 5, 1)
        else:
            dist.recv(received, 0)
            assert received.tolist() == [5.0, 5.0]
    assert backend_of()._num_active_channels() == (1 if world.rank < 2 else 0)
