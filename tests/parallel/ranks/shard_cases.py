"""What ranks do in `test_distributed.py`: parameters in shards."""

from __future__ import annotations

import copy
import io
import re
import shutil
import tempfile

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from learning_cases import learn_like_one
from pair_of_models import Pair, full
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import _common_utils
from torch.distributed.tensor import DTensor
from trained_models import EXAMPLES, WIDTH, perceptron

import anyrig
from anyrig.errors import ShardSaveError, SpreadError
from anyrig.parallel.plans import Shards


class _Rooted(nn.Module):
    """Has a parameter of its own, which FSDP2 keeps gathered after a forward."""

    def __init__(self) -> None:
        super().__init__()
        self.body = perceptron()
        self.scale = nn.Parameter(torch.tensor([1.0, 2.0, 3.0, 4.0]))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x * self.scale.repeat(WIDTH)[:WIDTH])


def case_shards_are_gathered_anew_after_a_step() -> None:
    """A forward without a backward pass comes between the backward pass and the step."""
    for always in (None, False):
        pair = Pair(_Rooted(), plan=Shards(reshard_after_forward=always))
        optimizers = [torch.optim.SGD(each.parameters(), 0.1) for each in (pair.model, pair.one)]
        rows = [1 + rank for rank in range(pair.ranks)]
        x = torch.randn(sum(rows), WIDTH, device=pair.device)
        for grad_mode in (torch.no_grad, torch.enable_grad):
            pair.one(x).square().mean().backward()
            (mine,) = pair.mine(rows, x)
            pair.model(mine).square().mean().backward()
            with grad_mode():
                pair.model(mine)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            with torch.no_grad():
                (expected,) = pair.mine(rows, pair.one(x))
                torch.testing.assert_close(pair.model(mine), expected, rtol=1e-9, atol=1e-12)


def case_shards_that_are_loaded_anew_still_learn() -> None:
    device = anyrig.Rig.detect().lead.torch_device
    model = anyrig.spread(perceptron().to(device), plan=Shards())
    for _ in range(2):
        state = {name: value.clone() for name, value in model.state_dict().items()}
        model.load_state_dict(state, assign=True)
        model.to(torch.float64)
        x = torch.full((1, WIDTH), 1.0 + dist.get_rank(), device=device)
        model(x).square().sum().backward()
        assert all(parameter.grad is not None for parameter in model.parameters())
        model.zero_grad()


def case_shards_in_two_replicas_learn_like_one() -> None:
    """Two of four ranks share the parameters, and the other two have the same shards."""
    for optimizer, fused in (("sgd", False), ("adam", True)):
        learn_like_one("transformer", Shards(replicas=2), fused, optimizer)
    pair = Pair(perceptron(), plan=Shards(replicas=2))
    explained = str(anyrig.explain(pair.model))
    assert f"; 2 replicas of {pair.ranks // 2} shards each" in explained
    state = get_model_state_dict(pair.model, options=StateDictOptions(full_state_dict=True))
    for name, whole in pair.one.state_dict().items():
        assert torch.equal(state[name], whole)
    for parameter, whole in zip(pair.model.parameters(), pair.one.parameters(), strict=True):
        assert parameter.device_mesh.shape == (2, pair.ranks // 2)
        assert parameter.to_local().shape[0] <= -(-whole.shape[0] // (pair.ranks // 2))
    with pytest.raises(ShardSaveError, match=f"among {pair.ranks // 2} ranks"):
        torch.save(pair.model.state_dict(), io.BytesIO())


def case_shards_are_explained() -> None:
    device = anyrig.Rig.detect().lead.torch_device
    net = EXAMPLES["transformer"].build().to(device)
    model = anyrig.spread(net, plan=Shards())
    text = str(anyrig.explain(model))
    assert text.startswith(f"shards over {dist.get_world_size()} ranks, this one on {device}")
    assert "blocks: layers.layers.0, layers.layers.1" in text
    net = EXAMPLES["transformer"].build().to(device)
    chosen = anyrig.spread(net, plan=Shards(blocks=[nn.LayerNorm]))
    assert "blocks: layers.layers.0.norm1, " in str(anyrig.explain(chosen))
    assert all(hasattr(value, "full_tensor") for value in model.state_dict().values())
    assert not any(name.startswith("module.") for name in model.state_dict())
    with pytest.raises(SpreadError, match="updates its own shard"):
        model.join()


def case_shards_with_options() -> None:
    device = anyrig.Rig.detect().lead.torch_device
    from torch.distributed.fsdp import MixedPrecisionPolicy

    seen = []
    for plan in (
        Shards(
            blocks=[nn.Linear],
            mixed_precision=MixedPrecisionPolicy(param_dtype=torch.bfloat16),
        ),
        Shards(offload=device.type != "cpu", reshard_after_forward=False),
        # All parameters outside of blocks.
        Shards(blocks=[], mixed_precision=MixedPrecisionPolicy(param_dtype=torch.bfloat16)),
    ):
        net = perceptron()
        net[0].register_forward_hook(lambda layer, given, output: seen.append(output.dtype))
        model = anyrig.spread(net, plan=plan)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        model(torch.ones(2 + dist.get_rank(), WIDTH)).sum().backward()
        optimizer.step()
        kept = {full(p).device.type for p in model.parameters()}
        local = {p.to_local().device.type for p in model.parameters()}
        assert local == ({"cpu"} if plan.offload else {device.type}), (local, kept)
    assert seen == [torch.bfloat16, torch.float64, torch.bfloat16]


def case_shards_are_not_saved_as_if_they_were_the_whole() -> None:
    module = perceptron()
    alone = copy.deepcopy(module)
    model = anyrig.spread(module, plan=Shards())
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, WIDTH)).sum().backward()
    optimizer.step()
    state = model.state_dict()
    weight = state["0.weight"]
    for lost in (
        state,
        {"epoch": 3, "model": copy.deepcopy(state)},
        {"weights": [weight.cpu() * 2, weight.grad]},
        optimizer.state_dict(),
        model,
    ):
        with pytest.raises(ShardSaveError, match="lose the others'") as error:
            torch.save(lost, io.BytesIO())
    with pytest.raises(SpreadError, match="cannot be copied"):
        copy.deepcopy(model)
    # The code in the message.
    names = {"model": model, "optimizer": optimizer}
    steps = re.findall(
        r"(from torch.* StateDictOptions|state = .*?\)\))", str(error.value), re.DOTALL
    )
    exec("\n".join(steps), names)
    assert "get_optimizer_state_dict(model, optimizer, options=" in str(error.value)
    options = names["StateDictOptions"](full_state_dict=True, cpu_offload=True)
    whole = names["get_optimizer_state_dict"](model, optimizer, options=options)
    if dist.get_rank() == 0:
        saved = io.BytesIO()
        torch.save({"model": names["state"], "optimizer": whole}, saved)
        saved.seek(0)
        alone.load_state_dict(torch.load(saved)["model"])
    for mine, other in zip(model.parameters(), alone.parameters(), strict=True):
        found = full(mine)
        if dist.get_rank() == 0:
            assert torch.equal(found.cpu(), other)
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    own = names["get_model_state_dict"](model)
    expected = full(own["0.weight"]).clone()
    checkpoint.save({"model": own}, checkpoint_id=folder[0])
    with torch.no_grad():
        own["0.weight"].zero_()
    checkpoint.load({"model": own}, checkpoint_id=folder[0])
    assert torch.equal(full(own["0.weight"]), expected)
    dist.barrier()
    shutil.rmtree(folder[0], ignore_errors=True)


class _Named(dict[str, Tensor]):
    """A dict that is not made of a dict alone."""

    def __init__(self, values: dict[str, Tensor], kind: str) -> None:
        super().__init__(values)
        self.kind = kind


class _ReadsX(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(WIDTH, 3)  # no block, so that the module itself has parameters

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return self.body(batch["x"])


def case_a_container_that_fsdp_cannot_make_is_refused() -> None:
    device = anyrig.Rig.detect().lead.torch_device
    if device.type == "cpu" and not hasattr(_common_utils, "replace_grad_tensors"):
        return  # an older FSDP2, which leaves it as it is
    model = anyrig.spread(_ReadsX().to(device), plan=Shards())
    x = torch.randn(2, WIDTH, device=device, requires_grad=True)
    with pytest.raises(SpreadError, match=r"FSDP2 makes containers anew.*'kind'.*Replicas"):
        model(_Named({"x": x}, "images"))


def case_gradients_of_gathered_parameters_are_refused() -> None:
    model = anyrig.spread(_Rooted(), plan=Shards())
    loss = model(torch.randn(2, WIDTH)).square().mean()
    # The module's own parameter is still gathered.
    own = [each for each in model.parameters() if not isinstance(each, DTensor)]
    assert len(own) == 1
    with pytest.raises(SpreadError, match=r"FSDP2 would not reduce.*loss\.backward\(\)"):
        torch.autograd.grad(loss, own)


def case_a_step_without_gradients_is_refused_if_the_model_was_called() -> None:
    model = anyrig.spread(perceptron(), plan=Shards())
    shards = [*model.parameters()]
    optimizer = torch.optim.SGD(shards, 0.1)
    loss = model(torch.randn(2, WIDTH)).square().mean()
    loss.backward(inputs=shards)  # reaches none of them
    with pytest.raises(SpreadError, match=r"no parameter of this SGD has a gradient.*inputs="):
        optimizer.step()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    optimizer.step()  # as on one device, where some do this to please a scheduler
