"""The transformer of `virtual_shape_only.py`, sharded with FSDP2 layer by layer."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
)
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional

from virtual_shape_only import BATCH, LENGTH, Layer, Transformer

POLICY = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


def on_meta() -> Transformer:
    """Return the transformer on meta, with activation checkpointing of each layer."""
    with torch.device("meta"):
        model = Transformer()
    apply_activation_checkpointing(model, check_fn=lambda module: isinstance(module, Layer))
    return model


def shard_layers(model: Transformer) -> None:
    """Shard the layers and the rest over the default group, by hand."""
    for layer in model.layers:
        fully_shard(layer, mp_policy=POLICY)
    fully_shard(model, mp_policy=POLICY)


def training_step(net: nn.Module, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Train `net` for a step; `model` has the parameters."""
    words = torch.zeros(BATCH, LENGTH, dtype=torch.long, device="cuda")
    logits = net(words)
    functional.cross_entropy(logits.flatten(0, 1), words.flatten()).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
