"""What ranks do in `test_distributed.py`: modules with buffers, frozen modules, and refusals."""

from __future__ import annotations

import copy
import os
from typing import Any

import pytest
import torch
import torch.distributed as dist
from pair_of_models import Pair
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from trained_models import WIDTH, perceptron

import anyrig
from anyrig.errors import SpreadError
from anyrig.parallel.plans import Pipeline, Replicas, Shards
from anyrig.processes.nccl_class import SECOND, class_of_nccl


def case_no_rows_leave_statistics_alone() -> None:
    """All ranks get the running statistics of the first rank with samples; none becomes NaN."""
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 2))
    net.register_buffer("marks", torch.tensor([True, False, True]))  # 3 bytes, not 8
    pair = Pair(net)
    for rows in ([0] + [3] * (pair.ranks - 1), [3] * (pair.ranks - 1) + [0], [0] * pair.ranks):
        x = torch.randn(sum(rows), 3, 4, 4, device=pair.device)
        first = next((rank for rank, count in enumerate(rows) if count), None)
        if first is not None:
            start = sum(rows[:first])
            pair.one(x[start : start + rows[first]])
        pair.model(*pair.mine(rows, x)).sum().backward()
        found = dict(pair.module.named_buffers())
        for name, expected in pair.one.named_buffers():
            torch.testing.assert_close(found[name], expected, rtol=1e-9, atol=0)
        for parameter in pair.model.parameters():
            assert parameter.grad.isfinite().all()
            parameter.grad = None


class ScaledByData(nn.Module):
    """Multiplies by a buffer that its first call sets, as some normalizations do."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.register_buffer("scale", torch.zeros(()))
        self.is_set = False

    def forward(self, x: Tensor) -> Tensor:
        if not self.is_set:
            self.is_set = True
            with torch.no_grad():
                self.scale.copy_(x.abs().max())
        return self.linear(x) * self.scale


def case_buffers_that_a_graph_has_saved() -> None:
    """Rank 0's buffers arrive as by an in-place write, which the graph of another rank reports."""
    pair = Pair(ScaledByData())
    x = torch.full((2, 4), 1.0 + pair.rank, device=pair.device, requires_grad=True)
    first, *outputs = [pair.model(x) for _ in range(4)]
    first.sum().backward()
    told = []
    for output in outputs:
        try:
            torch.autograd.grad(output.sum(), x)
            told.append("")
        except RuntimeError as error:
            told.append(str(error))
    # Rank 0's buffers arrive at the end of the first backward pass.
    assert ["modified by an inplace operation" in text for text in told] == [pair.rank > 0] * 3
    assert pair.module.scale == 1


def case_the_module_shows_through() -> None:
    device = anyrig.Rig.detect().lead.torch_device
    assert anyrig.current_device() == device
    net = perceptron().to(device)
    net.colour = "red"
    model = anyrig.spread(net, loss=nn.CrossEntropyLoss())
    assert (
        [*model.state_dict()] == [*net.state_dict()] == ["0.weight", "0.bias", "2.weight", "2.bias"]
    )
    assert model.colour == "red"
    model.eval()
    assert not net.training
    seen = []
    net[0].register_forward_hook(lambda *_: seen.append("inner"))
    model.register_forward_hook(lambda *_: seen.append("outer"))
    model(torch.ones(1, WIDTH))
    assert seen == ["inner", "outer"]
    text = str(anyrig.explain(model))
    backend = "nccl" if anyrig.Rig.detect().kind == "cuda" else "gloo"
    assert f"replicas over {dist.get_world_size()} ranks" in text
    assert f"collectives by {backend}: " in text
    assert "CrossEntropyLoss: summed over all parts" in text


def case_a_module_on_another_gpu_stays_there() -> None:
    own = anyrig.Rig.detect().lead.torch_device
    if own.type == "cpu":
        return
    other = torch.device("cuda", (own.index + 1) % torch.cuda.device_count())
    if class_of_nccl(torch.__version__, os.environ) == SECOND:
        with pytest.raises(SpreadError, match=f"on {other}, but .* takes tensors on {own} only"):
            anyrig.spread(nn.Linear(2, 2).to(other))
    else:
        model = anyrig.spread(nn.Linear(2, 2).to(other))
        assert {parameter.device for parameter in model.parameters()} == {other}
    with pytest.raises(SpreadError, match=f"parameter weight is on {other}"):
        anyrig.spread(nn.Linear(2, 2).to(other), own)


def case_a_copy_is_a_model_of_its_own() -> None:
    pair = Pair(perceptron())
    rows = [1 + rank for rank in range(pair.ranks)]
    x = torch.randn(sum(rows), WIDTH, device=pair.device)
    pair.model(*pair.mine(rows, x)).sum().backward()
    pair.model.zero_grad()
    original, pair.model = pair.model, copy.deepcopy(pair.model)
    pair.one(x).mean().backward()
    pair.model(*pair.mine(rows, x)).mean().backward()
    pair.assert_same("gradients")
    assert all(parameter.grad is None for parameter in original.parameters())


def case_what_cannot_be_is_refused() -> None:
    lead = anyrig.Rig.detect().lead.torch_device
    net = nn.Linear(2, 2).to(lead)
    model = anyrig.spread(net)
    refused: list[tuple[str, dict[str, Any], nn.Module]] = [
        ("is spread already", {}, model),
        ("only the module's are averaged", {"loss": Learned()}, net),
        ("output_device= is for one process", {"output_device": lead}, net),
        ("1 block that can be on different ranks", {"plan": Pipeline()}, net),
    ]
    if lead.type == "cpu":
        plan = Replicas(sync_batch_norm=True)
        refused.append(("SyncBatchNorm, which computes on GPUs", {"plan": plan}, net))
    else:
        refused.append(("uses one device", {"rig": anyrig.Rig.parse("cuda:0,1")}, net))
    for message, options, module in refused:
        with pytest.raises(SpreadError, match=message):
            anyrig.spread(module, **options)
    assert anyrig.current_device() == lead
    assert anyrig.explain(anyrig.spread(nn.Linear(2, 2).to(lead))).lead == lead
    with pytest.raises(TypeError, match="takes no argument 'target'"):
        model(torch.ones(1, 2), target=1)


class Learned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))


def case_a_frozen_module_is_only_called() -> None:
    device = anyrig.Rig.detect().lead.torch_device
    net = nn.Linear(2, 2).to(device).requires_grad_(False)
    net.weight.fill_(float(dist.get_rank()))
    model = anyrig.spread(net)
    assert model(torch.ones(1, 2)).sum() == 2 * float(net.bias.sum()) / 2
    assert (net.weight == 0).all()


def case_what_ddp_and_fsdp_do_not_take_is_refused() -> None:
    device = anyrig.Rig.detect().lead.torch_device
    for name, why in (
        ("device_ids", "spread decides it: the module is on the rank's device"),
        ("process_group", "spread decides it: all ranks"),
        ("mixed_precision", "it is not supported. It takes bucket_cap_mb, find_unused"),
    ):
        with pytest.raises(SpreadError, match=f"ddp= does not take {name!r}: {why}"):
            anyrig.spread(perceptron(), plan=Replicas(ddp={name: None}))
    frozen = anyrig.spread(perceptron().to(device).requires_grad_(False))
    with pytest.raises(SpreadError, match="so a hook has nothing to reduce"):
        frozen.register_comm_hook(None, fp16_compress_hook)
    shards = anyrig.spread(perceptron().to(device), plan=Shards())
    with pytest.raises(SpreadError, match="hooks are for replicas"):
        shards.register_comm_hook(None, fp16_compress_hook)
    for replicas in (0, True, 1.5, dist.get_world_size(), 3 * dist.get_world_size()):
        with pytest.raises(SpreadError, match=rf"Shards\(replicas={replicas}\)"):
            anyrig.spread(perceptron(), plan=Shards(replicas=replicas))
