#!/usr/bin/env bash
# torch.optim on parameters that fully_shard has divided among ranks (DTensor).
#
# Version: torch 2.13.0 (CPU build), Python 3.11, two ranks over gloo, seen on 2026-11-28.
# Expected: each optimizer of torch.optim either steps, or the documentation of fully_shard or of the
#           optimizer names it as unsupported.
# Seen:     SGD, Adam, AdamW, Adagrad, RMSprop and ten others step. Adafactor and Rprop raise
#           RuntimeError in step(), after the backward pass: "in-place operations that require placement
#           changes are not supported". LBFGS raises "Cannot flatten unevenly sharded tensor" where a
#           parameter's size is not a multiple of the number of ranks.
# The script fails if one of these outcomes changes.
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

EXPECTED = {
    "SGD": "steps", "Adam": "steps", "AdamW": "steps", "Adagrad": "steps", "RMSprop": "steps",
    "Adafactor": "in-place operations that require placement changes are not supported",
    "Rprop": "in-place operations that require placement changes are not supported",
    "LBFGS": "Cannot flatten unevenly sharded tensor",
}
dist.init_process_group("gloo")
for name, expected in EXPECTED.items():
    torch.manual_seed(0)
    net = nn.Linear(6, 3)
    fully_shard(net)
    optimizer = getattr(torch.optim, name)(net.parameters(), lr=0.01)

    def closure():
        optimizer.zero_grad()
        loss = net(torch.ones(4, 6)).square().mean()
        loss.backward()
        return loss

    try:
        if name == "LBFGS":
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
        seen = "steps"
    except RuntimeError as error:
        seen = str(error)
    assert expected in seen, f"{name}: {seen}"
    if dist.get_rank() == 0:
        print(f"{name}: {seen.splitlines()[0][:110]}")
dist.destroy_process_group()
PYTHON
"$folder/venv/bin/torchrun" --standalone --nproc-per-node 2 "$folder/step.py"
