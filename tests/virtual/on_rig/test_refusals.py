"""What needs a real card says so; asking whether it is in use does not."""

from __future__ import annotations

import importlib

import pytest
import torch


def test_graphs_are_refused_as_what_they_are() -> None:
    with pytest.raises(RuntimeError, match=r"CUDA error: CUDAGraph is not there on a virtual GPU"):
        torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="a virtual GPU runs none"):
        torch.cuda.graph_pool_handle()
    assert not torch.cuda.is_current_stream_capturing()


def test_pools_and_allocators_are_refused() -> None:
    with pytest.raises(RuntimeError, match="MemPool is not there on a virtual GPU"):
        torch.cuda.MemPool()
    with pytest.raises(RuntimeError, match="on a virtual GPU"):
        torch._C._cuda_getAllocator()


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
def test_the_part_of_inductor_about_graphs_can_be_imported() -> None:
    assert importlib.import_module("torch._inductor.cudagraph_trees")


def test_tuning_can_be_asked_about() -> None:
    assert not torch.cuda.tunable.is_enabled()
    torch.cuda.tunable.enable(True)
    assert torch.cuda.tunable.is_enabled()
    torch.cuda.tunable.enable(False)
    assert torch.cuda.tunable.get_results() == ()
