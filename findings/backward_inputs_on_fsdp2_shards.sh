#!/usr/bin/env bash
# loss.backward(inputs=...) with the parameters of a module that fully_shard has divided.
#
# Version: torch 2.13.0 (CPU build), Python 3.11, two ranks over gloo, seen on 2026-11-30.
# Expected: backward(inputs=list(module.parameters())) gives each parameter its gradient, as it does
#           without fully_shard and with DistributedDataParallel; or an error.
# Seen:     no error, and no gradient for the parameters of a block within the module: .grad stays None on
#           every rank, and an optimizer's step leaves them as they are. The module's own parameters, which
#           are still gathered after the forward, get theirs. A plain backward() gives all gradients.
# The script fails if this changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.2.6
cat > "$folder/step.py" <<'PYTHON'
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


def with_gradients(module, chosen):
    loss = module(torch.ones(4, 6)).square().mean()
    loss.backward(inputs=list(module.parameters())) if chosen else loss.backward()
    found = [name for name, each in module.named_parameters() if each.grad is not None]
    module.zero_grad()
    return found


dist.init_process_group("gloo")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.block, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.block(x))


alone, replicas, shards = Net(), nn.parallel.DistributedDataParallel(Net()), Net()
fully_shard(shards.block)
fully_shard(shards)
for name, module, expected in (("alone", alone, 4), ("DDP", replicas, 4), ("fully_shard", shards, 2)):
    plain, chosen = with_gradients(module, False), with_gradients(module, True)
    if dist.get_rank() == 0:
        print(f"{name}: backward() {len(plain)} gradients, backward(inputs=...) {len(chosen)}")
    assert (len(plain), len(chosen)) == (4, expected), (name, plain, chosen)
dist.destroy_process_group()
PYTHON
"$folder/venv/bin/torchrun" --standalone --nproc-per-node 2 "$folder/step.py"
