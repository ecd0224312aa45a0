"""Features that need a real GPU raise an error; queries whether they are in use do not."""

from __future__ import annotations

import importlib

import pytest
import torch

from anyrig.errors import VirtualRigError
from anyrig.virtual import install
from anyrig.virtual.installed import hand_down_before_install, installation


@pytest.mark.virtual_only("only virtual GPUs refuse these")
def test_allocators_are_refused() -> None:
    torch.cuda.init()
    with pytest.raises(RuntimeError, match="virtual GPUs do not support"):
        torch._C._cuda_getAllocator()
    with pytest.raises(RuntimeError, match="cannot be turned off"):
        torch.cuda.memory.caching_allocator_enable(False)


@pytest.mark.virtual_only("only virtual GPUs refuse these")
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("_cuda_changeCurrentAllocator", "a custom allocator needs"),
        ("_cuda_customAllocator", "a custom allocator needs"),
        ("_cuda_cudaHostAllocator", "a custom allocator needs"),
        ("_cuda_getAllocator", "a custom allocator needs"),
        ("_nccl_init_rank", "an NCCL communicator needs real GPUs"),
        ("_CUDAPluggableAllocator", "a custom allocator needs"),
        ("_CUDAGreenContext", "a partition of multiprocessors needs a real GPU"),
    ],
)
def test_what_needs_a_gpu_says_why(name: str, reason: str) -> None:
    words = f"CUDA error: virtual GPUs do not support {name}: {reason}"
    with pytest.raises(RuntimeError, match=words):
        getattr(torch._C, name)(1, key=2)


def test_settings_start_as_pytorchs_and_are_kept() -> None:
    tunable = torch.cuda.tunable
    settings = [
        (tunable.is_enabled, tunable.enable, False, True),
        (tunable.record_untuned_is_enabled, tunable.record_untuned_enable, False, True),
        (tunable.tuning_is_enabled, tunable.tuning_enable, True, False),
        (tunable.get_max_tuning_duration, tunable.set_max_tuning_duration, 30, 7),
        (tunable.get_max_tuning_iterations, tunable.set_max_tuning_iterations, 100, 8),
        (tunable.get_filename, tunable.set_filename, "", "other.csv"),
    ]
    for read, write, first, other in settings:
        assert read() == first
        write(other)
        assert read() == other
        write(first)
    l2_bytes = tunable.get_rotating_buffer_size()
    assert l2_bytes % 2**20 == 0 < l2_bytes
    tunable.set_rotating_buffer_size(9)
    assert tunable.get_rotating_buffer_size() == 9 * 2**20
    tunable.set_rotating_buffer_size(-1)
    assert tunable.get_rotating_buffer_size() == l2_bytes
    switches = ("_cuda_get_cudnn_benchmark_limit", "_cuda_get_conv_benchmark_empty_cache")
    assert [getattr(torch._C, name)() for name in switches] == [10, True]
    assert torch._C._get_cublaslt_prefer_grouped_gemm() is False
    if installation() is not None:  # a real GPU's name the versions of its libraries
        assert tunable.get_validators() == ()
    assert tunable.read_file("absent.csv") is False
    core = torch._C
    before = core._cuda_getCublasWorkspaceSize()
    core._cuda_setCublasWorkspaceSize(2**20)
    assert core._cuda_getCublasWorkspaceSize() == core._cuda_getCublasLtWorkspaceSize() == 2**20
    core._cuda_resetCublasWorkspaceSize()
    assert core._cuda_getCublasWorkspaceSize() == before


@pytest.mark.virtual_only("no second rig is installed on real GPUs")
def test_a_second_rig_is_refused_by_its_modes() -> None:
    with pytest.raises(VirtualRigError) as refused:
        install("T4", shape_only=True, assume_values=True, clock=False)
    assert "has the virtual rig 8xA100-80GB, and" in str(refused.value)
    assert "process for T4, shape-only, assuming values, without a clock, without ANYRIG" in str(
        refused.value
    )
    installed = installation()
    assert installed is not None
    assert hand_down_before_install(installed) is None


@pytest.mark.virtual_only("only virtual GPUs refuse these")
def test_other_backends_of_symmetric_memory_are_refused_in_the_words_of_pytorch() -> None:
    symmetric = importlib.import_module("torch.distributed._symmetric_memory")
    assert not symmetric.is_nvshmem_available()
    with pytest.raises(RuntimeError, match="does not find allocation backend NVSHMEM"):
        symmetric.set_backend("NVSHMEM")
    with pytest.raises(RuntimeError, match="MemPool did not find backend for device type cuda"):
        symmetric.get_mem_pool(torch.device("cuda:0"))


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
def test_the_part_of_inductor_about_graphs_can_be_imported() -> None:
    assert importlib.import_module("torch._inductor.cudagraph_trees")


def test_tuning_can_be_asked_about() -> None:
    assert not torch.cuda.tunable.is_enabled()
    torch.cuda.tunable.enable(True)
    assert torch.cuda.tunable.is_enabled()
    torch.cuda.tunable.enable(False)
    assert torch.cuda.tunable.get_results() == ()
