#!/usr/bin/env bash
# A parameter group that is added to a schedulefree optimizer during training.
#
# Version: schedulefree 1.4.1, torch 2.13.0 (CPU build), Python 3.11, seen on 2026-11-30.
# Expected: add_param_group, which torch's documentation recommends for layers that become trainable
#           during training, gives a group that trains and evaluates like the others: eval() sets
#           its weights to the averages, train() sets them back.
# Seen:     each group has its own flag for train mode, which add_param_group leaves at False, and
#           step() checks only the first group's. The new group trains, but eval() leaves it at its
#           weights for training, and the next train() moves it away from them: of two weights with
#           the same gradients, the one that was added is evaluated at 2.367 instead of 2.297, and
#           goes on from 2.429 instead of 2.367. AdamWScheduleFree does the same. No error; calling
#           train() again right after add_param_group avoids it.
# The script fails if one of these outcomes changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    schedulefree==1.4.1 torch==2.13.0 numpy==2.2.6
cat > "$folder/case.py" <<'PYTHON'
import schedulefree
import torch
from torch import nn


def train(kind, *, added, again=False):
    """The weight of the second group during training, after eval() and after train()."""
    first, second = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    groups = [{"params": [first]}] if added else [{"params": [first]}, {"params": [second]}]
    optimizer = kind(groups, lr=0.1)
    optimizer.train()
    if added:
        optimizer.add_param_group({"params": [second]})
    if again:
        optimizer.train()
    for _ in range(8):
        optimizer.zero_grad()
        ((first - 3).square() + (second - 3).square()).sum().backward()
        optimizer.step()
    seen = [round(second.item(), 3)]
    for switch in (optimizer.eval, optimizer.train):
        switch()
        seen.append(round(second.item(), 3))
    return seen


for name in ("SGDScheduleFree", "AdamWScheduleFree"):
    kind = getattr(schedulefree, name)
    given, added = train(kind, added=False), train(kind, added=True)
    print(f"{name}, training, eval, train: {given} given at the start, {added} added")
    assert given[2] == given[0] and given[1] < given[0]
    assert added[0] == given[0] == added[1] and added[2] > added[0]
    assert train(kind, added=True, again=True) == given
PYTHON
OMP_NUM_THREADS=1 "$folder/venv/bin/python" "$folder/case.py"
