#!/usr/bin/env bash
# torch.distributed.checkpoint.state_dict.get_optimizer_state_dict before an optimizer's first
# step.
#
# Version: torch 2.13.0 (CPU build), Python 3.11, on the CPU, seen on 2026-11-30.
# Expected: a function that returns the state leaves the optimizer as it is. A run that saves a
#           checkpoint at step 0 trains as one that does not.
# Seen:     the training differs: to make the state that it returns, the function calls
#           optimizer.step() with zero gradients and a learning rate of 0, and leaves that state in
#           place. Adam's first real step counts as its second, and moves the parameters by 0.074
#           instead of 0.1. AdamW, NAdam, RAdam, Adamax, Adafactor, ASGD, Rprop and SGD with
#           dampening change too; Adagrad, Adadelta and RMSprop do not. Reported to the project in
#           2025, and open.
# The script fails if one of these outcomes changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.2.6
cat > "$folder/case.py" <<'PYTHON'
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

CHANGED = "Adam AdamW NAdam RAdam Adamax Adafactor ASGD Rprop".split()
SAME = "Adagrad Adadelta RMSprop".split()


def train(name, saves_first, steps, **options):
    torch.manual_seed(0)
    net = nn.Linear(4, 3)
    optimizer = getattr(torch.optim, name)(net.parameters(), lr=0.1, **options)
    start = net.weight.detach().clone()
    if saves_first:
        get_optimizer_state_dict(net, optimizer)
        assert torch.equal(net.weight, start)
    for step in range(steps):
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()
    return (net.weight - start).detach()


for name in CHANGED + SAME:
    difference = (train(name, False, 3) - train(name, True, 3)).abs().max().item()
    print(f"{name}: after three steps, the weights differ by {difference:.2g}")
    assert (difference > 1e-6) == (name in CHANGED), difference
sgd = [train("SGD", saves, 3, momentum=0.9, dampening=0.5) for saves in (False, True)]
assert (sgd[0] - sgd[1]).abs().max() > 1e-3
plain, saved = (train("Adam", saves, 1).abs().max().item() for saves in (False, True))
print(f"Adam's first step, lr 0.1: {plain:.3f}, after get_optimizer_state_dict {saved:.3f}")
assert abs(plain - 0.1) < 1e-3 and abs(saved - 0.0744) < 1e-3
PYTHON
"$folder/venv/bin/python" "$folder/case.py"
