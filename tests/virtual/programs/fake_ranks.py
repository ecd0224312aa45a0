"""Runs each kind of distributed training on 8 ranks, with this process as rank 0.

PyTorch's `fake` process group simulates the other ranks. Prints, for each kind, the requested bytes
of its tensors and the GPU's peak.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.distributed.tensor as dtensor
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
)
from torch.distributed.checkpoint import default_planner
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing._internal.distributed.fake_pg import FakeStore

import anyrig
from anyrig.virtual import install

RANKS, WIDTH, HEADS, WORDS, LENGTH = 8, 64, 8, 128, 16


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.before(x)
        heads = (
            project(y).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        attended = functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.dropout(self.out(attended.transpose(1, 2).flatten(2)))
        return x + self.down(functional.gelu(self.up(self.between(x))))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embedding(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def clip_to_one(model: nn.Module) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def train(
    model: nn.Module,
    *,
    clip: Callable[[nn.Module], object] = lambda model: None,
    fused: bool = False,
) -> torch.optim.Optimizer:
    kind = {"fused": True} if fused else {"foreach": True}
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, **kind)
    words = torch.zeros(4, LENGTH, dtype=torch.long, device="cuda")
    for _ in range(2):
        logits = model(words)
        functional.cross_entropy(logits.flatten(0, 1), words.flatten()).backward()
        clip(model)
        optimizer.step()
        optimizer.zero_grad()
    return optimizer


def fsdp2() -> None:
    with torch.device("meta"):
        model = Model()
    apply_activation_checkpointing(model, check_fn=lambda module: isinstance(module, Layer))
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    for layer in model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    model.to_empty(device="cuda")
    sharded = torch.cuda.memory_stats()["requested_bytes.all.current"] - before
    computed = sum(4 * parameter.numel() for parameter in model.parameters()) // RANKS
    print(f"sharded bytes -> {sharded} {computed}")
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    train(model, clip=clip_to_one, fused=True)


def spread_in_shards() -> None:
    with torch.device("meta"):
        model = Model()
    net = anyrig.spread(model, plan=anyrig.Shards())
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    model.to_empty(device="cuda")
    sharded = torch.cuda.memory_stats()["requested_bytes.all.current"] - before
    computed = sum(4 * parameter.numel() for parameter in model.parameters()) // RANKS
    print(f"spread bytes -> {sharded} {computed}")
    train(net, fused=True)


def fsdp2_on_two_axes() -> None:
    mesh = init_device_mesh("cuda", (2, 4), mesh_dim_names=("replicas", "shards"))
    model = Model().cuda()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, reshard_after_forward=False)
    train(fully_shard(model, mesh=mesh), clip=clip_to_one)


def fsdp1() -> None:
    model = FullyShardedDataParallel(
        Model(), auto_wrap_policy=ModuleWrapPolicy({Layer}), device_id=0, use_orig_params=True
    )
    train(model, clip=lambda model: model.clip_grad_norm_(1.0))


def tensor_parallel_layers(model: Model, mesh: dist.DeviceMesh) -> None:
    column, row = ColwiseParallel(), RowwiseParallel()
    plan = dict.fromkeys(("query", "key", "value", "up"), column)
    plan |= dict.fromkeys(("out", "down"), row)
    for layer in model.layers:
        parallelize_module(layer, mesh, plan)


def tensor_parallel_in_shards() -> None:
    mesh = init_device_mesh("cuda", (2, 4), mesh_dim_names=("shards", "tensors"))
    model = Model().cuda()
    tensor_parallel_layers(model, mesh["tensors"])
    for layer in model.layers:
        fully_shard(layer, mesh=mesh["shards"])
    train(fully_shard(model, mesh=mesh["shards"]))


def sequence_parallel() -> None:
    mesh = init_device_mesh("cuda", (RANKS,))
    model = Model().cuda()
    of_model = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(
            input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False
        ),
    }
    column, row = ColwiseParallel(input_layouts=Shard(1)), RowwiseParallel(output_layouts=Shard(1))
    of_layer = dict.fromkeys(("query", "key", "value", "up"), column)
    of_layer |= dict.fromkeys(("out", "down"), row)
    of_layer |= dict.fromkeys(("before", "between"), SequenceParallel())
    of_layer["dropout"] = SequenceParallel(use_local_output=True)
    parallelize_module(model, mesh, of_model)
    for layer in model.layers:
        parallelize_module(layer, mesh, of_layer)
    with loss_parallel():
        train(model)


def context_parallel_attention() -> None:
    mesh = init_device_mesh("cuda", (RANKS,))
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION):
        whole = [torch.randn(2, 8, 1024, 16, device="cuda").bfloat16() for _ in range(3)]
        with (
            sdpa_kernel(backend),
            context_parallel(
                mesh, buffers=whole, buffer_seq_dims=[2] * 3, no_restore_buffers=set(whole)
            ),
        ):
            local = [tensor.detach().requires_grad_() for tensor in whole]
            functional.scaled_dot_product_attention(*local, is_causal=True).sum().backward()


def random_dtensors() -> None:
    mesh = init_device_mesh("cuda", (RANKS,))
    torch.manual_seed(1)
    sharded = dtensor.randn(64, 8, device_mesh=mesh, placements=[Shard(0)])
    assert sharded.to_local().shape == (8, 8)
    functional.dropout(sharded, 0.5).redistribute(placements=[Replicate()]).sum()
    # Every rank's generator advances by the numbers of the whole tensor.
    state = torch.cuda.get_rng_state()
    print(f"offset -> {int.from_bytes(bytes(state[8:].tolist()), 'little')}")


def states() -> None:
    model = fully_shard(Model().cuda())
    optimizer = train(model)
    of_model, of_optimizer = get_state_dict(model, optimizer)
    set_state_dict(model, optimizer, model_state_dict=of_model, optim_state_dict=of_optimizer)
    saving, loading = default_planner.DefaultSavePlanner(), default_planner.DefaultLoadPlanner()
    saving.set_up_planner({"model": of_model, "optimizer": of_optimizer}, None, True)
    plans, metadata = saving.create_global_plan([saving.create_local_plan()])
    print(f"planned -> {sum(len(plan.items) for plan in plans)}")
    loading.set_up_planner({"model": of_model, "optimizer": of_optimizer}, metadata, True)
    loading.create_global_plan([loading.create_local_plan()])


def objects() -> None:
    gathered: list[object] = [None] * RANKS
    dist.all_gather_object(gathered, {"rank": 0})
    print(f"gathered -> {gathered[0]}")


WAYS: tuple[Callable[[], None], ...] = (
    fsdp2,
    spread_in_shards,
    fsdp2_on_two_axes,
    fsdp1,
    tensor_parallel_in_shards,
    sequence_parallel,
    context_parallel_attention,
    random_dtensors,
    states,
    objects,
)

if __name__ == "__main__":
    install("1xA100-80GB", shape_only="--shape-only" in sys.argv)
    dist.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    for way in WAYS:
        gc.collect()
        torch.cuda.reset_peak_memory_stats()
        way()
        print(f"{way.__name__} -> {torch.cuda.max_memory_allocated()}")
    dist.destroy_process_group()
