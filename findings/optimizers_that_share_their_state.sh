#!/usr/bin/env bash
# torch.optim: load_state_dict of the state_dict of another optimizer in the same process.
#
# Version: torch 2.13.0 (CPU build), Python 3.11, on the CPU, seen on 2026-11-30.
# Expected: the optimizer gets a copy of the state, as a module gets a copy of another module's
#           state_dict: training a copy of the model leaves the first run as it is.
# Seen:     the two optimizers share the tensors of their state from then on. A step of the copy
#           moves the momentum and the step counter of the first: after 5 steps of the copy, Adam's
#           `step` of the first is 10, and its next step is another one. No warning. copy.deepcopy
#           of the state_dict avoids it; the documentation of load_state_dict does not mention it.
#           Reported to the project in September 2026, and open.
# The script fails if one of these outcomes changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.2.6
cat > "$folder/case.py" <<'PYTHON'
import copy

import torch
from torch import nn


def train(net, optimizer, steps):
    for step in range(steps):
        x = torch.randn(16, 8, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        (net(x) - 1).square().mean().backward()
        optimizer.step()


def after_a_copy_has_trained(duplicate, trains):
    torch.manual_seed(0)
    net, other = nn.Linear(8, 8), nn.Linear(8, 8)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    train(net, optimizer, 5)
    other.load_state_dict(net.state_dict())
    copied = torch.optim.Adam(other.parameters(), lr=0.01)
    copied.load_state_dict(duplicate(optimizer.state_dict()))
    if trains:
        train(other, copied, 5)
    state = optimizer.state[net.weight]
    counted = int(state["step"])
    is_shared = state["exp_avg"] is copied.state[other.weight]["exp_avg"]
    train(net, optimizer, 5)
    return counted, is_shared, net.weight.detach()


_, _, expected = after_a_copy_has_trained(copy.deepcopy, trains=False)
for duplicate in (lambda state: state, copy.deepcopy):
    steps, is_shared, weight = after_a_copy_has_trained(duplicate, trains=True)
    is_deep = duplicate is copy.deepcopy
    difference = (weight - expected).abs().max().item()
    print(f"deepcopy {is_deep}: the first optimizer counts {steps} steps, weights off by {difference:.2g}")
    assert steps == (5 if is_deep else 10), steps
    assert is_shared != is_deep
    assert (difference > 1e-4) != is_deep, difference
PYTHON
"$folder/venv/bin/python" "$folder/case.py"
