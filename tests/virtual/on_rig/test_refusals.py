"""What needs a real card says so; asking whether it is in use does not."""

from __future__ import annotations

import importlib

import pytest
import torch


def test_allocators_are_refused() -> None:
    torch.cuda.init()
    with pytest.raises(RuntimeError, match="on a virtual GPU"):
        torch._C._cuda_getAllocator()
    with pytest.raises(RuntimeError, match="cannot be turned off"):
        torch.cuda.memory.caching_allocator_enable(False)


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
