"""What torch.distributed.checkpoint wrote from two ranks with FSDP2 is read in one process."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as distributed_checkpoint
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.fsdp import fully_shard

from anyrig.checkpoint.foreign.read import read_foreign
from forked_ranks import run_forked


def save_sharded(folder: str, file: str) -> None:
    """Save a model with uneven shards and its optimizer; write the whole tensors to `file`."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Linear(7, 1))
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 5)).sum().backward()
    optimizer.step()
    state, optimizer_state = get_state_dict(model, optimizer)
    content = {"model": state, "optimizer": optimizer_state, "epoch": 3}
    distributed_checkpoint.save(content, checkpoint_id=folder)
    whole = {
        name: (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().clone()
        for name, tensor in {
            **state,
            "moment": optimizer_state["state"]["0.weight"]["exp_avg"],
        }.items()
    }
    if dist.get_rank() == 0:
        torch.save(whole, file)
    dist.destroy_process_group()


def test_shards_of_two_ranks_become_whole_tensors(tmp_path: Path) -> None:
    folder, file = tmp_path / "a", tmp_path / "whole.pt"
    run_forked(__file__, "save_sharded", [str(folder), str(file)], ranks=2)
    expected = torch.load(file)
    assert len([*folder.glob("*.distcp")]) == 2
    state = read_foreign(folder)
    moment = expected.pop("moment")
    assert state.tensors.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(state.tensors[name], tensor, rtol=0, atol=0)
    assert state.extra["epoch"] == 3
    optimizer = state.extra["optimizer"]
    torch.testing.assert_close(optimizer["state"]["0.weight"]["exp_avg"], moment, rtol=0, atol=0)
    assert optimizer["param_groups"][0]["params"][0] == "0.weight"
