"""A module spread over a group of ranks, and a copy of it on one device."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import anyrig
from anyrig.parallel.plans import Replicas

UNUSED: dict[str, Any] = {"plan": Replicas(ddp={"find_unused_parameters": True})}


class Pair:
    """A module spread over the group, and a copy on one device; both get global batches."""

    def __init__(self, module: nn.Module, **options: Any) -> None:
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.device = anyrig.Rig.detect().lead.torch_device
        self.module = module.double().to(self.device)
        self.one = copy.deepcopy(self.module)
        if self.rank:  # only rank 0's parameters count
            with torch.no_grad():
                for parameter in self.module.parameters():
                    parameter.zero_()
        self.model = anyrig.spread(self.module, **options)

    def mine(self, rows: list[int], *batch: Tensor) -> tuple[Tensor, ...]:
        """Return this rank's samples of tensors that have the samples of all ranks."""
        start = sum(rows[: self.rank])
        return tuple(tensor[start : start + rows[self.rank]] for tensor in batch)

    def assert_same(self, what: str = "state") -> None:
        """Require that parameters and buffers, or gradients, agree to 1e-9."""
        here, there = self.model.state_dict(), self.one.state_dict()
        if what == "gradients":
            here = {name: p.grad for name, p in self.model.named_parameters()}
            there = {name: p.grad for name, p in self.one.named_parameters()}
        assert list(here) == list(there)
        for name, value in there.items():
            error = (full(here[name]) - value).abs().max()
            assert error <= 1e-9 * value.abs().max(), f"{name} is off by {float(error):.2e}"


def full(tensor: Tensor) -> Tensor:
    """Return the whole tensor, from all its shards."""
    whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return whole.detach()
