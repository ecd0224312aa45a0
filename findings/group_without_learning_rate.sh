#!/usr/bin/env bash
# A parameter group whose learning rate is set to 0 under prodigyopt and dadaptation.
#
# Version: prodigyopt 1.1.2, dadaptation 3.2, torch 2.13.0 (CPU build), Python 3.11, seen on
#          2026-11-30.
# Expected: the group stays as it is, as under AdamW. A rate of 0 for some groups is supported: the
#           errors of both packages for other rates say that different rates in different groups
#           are only supported for values of 0, and the code skips such a group's statistics.
# Seen:     the group goes on. The step uses the rate of the other groups and the group's last
#           momentum, which no longer decays. With the optimum at 3, a weight that is frozen at 3.46
#           is at 40.6 after 50 more steps of Prodigy; DAdaptAdam takes one from 3.16 to -10.7.
#           DAdaptSGD leaves it where it is. With weight_decay, Prodigy shrinks a group that has had
#           lr=0 from the start, from 1 to 0.00; with betas=(0, 0.999), such a group becomes NaN.
# The script fails if one of these outcomes changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    prodigyopt==1.1.2 dadaptation==3.2 torch==2.13.0 numpy==2.2.6
cat > "$folder/case.py" <<'PYTHON'
import math

import torch
from dadaptation import DAdaptAdam, DAdaptSGD
from prodigyopt import Prodigy
from torch import nn

ADAMW = torch.optim.AdamW


def train(kind, frozen_from, **options):
    """The weight of the group when its rate becomes 0, and after 80 steps."""
    trained, frozen = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    groups = [{"params": [trained]}, {"params": [frozen]}]
    optimizer = kind(groups, lr=0.1 if kind is ADAMW else 1.0, **options)
    for step in range(80):
        if step == frozen_from:
            optimizer.param_groups[1]["lr"] = 0.0
            before = frozen[0].item()
        optimizer.zero_grad()
        ((trained - 3).square() + (frozen - 3).square()).sum().backward()
        optimizer.step()
    after = frozen[0].item()
    print(f"{kind.__name__} {options}, lr=0 from step {frozen_from}: {before:.2f}, then {after:.2f}")
    return before, after


before, after = train(ADAMW, 30)
assert before == after
for kind in (Prodigy, DAdaptAdam):
    before, after = train(kind, 30)
    assert abs(after - before) > 1, (before, after)
before, after = train(DAdaptSGD, 30)
assert before == after

before, after = train(Prodigy, 0)
assert before == after
before, after = train(Prodigy, 0, weight_decay=0.1)
assert abs(after) < 0.005, after
before, after = train(Prodigy, 0, betas=(0.0, 0.999))
assert math.isnan(after), after
optimizer = Prodigy([{"params": [nn.Parameter(torch.ones(1))], "lr": lr} for lr in (1.0, 0.5)])
for group in optimizer.param_groups:
    group["params"][0].grad = torch.ones(1)
try:
    optimizer.step()
except RuntimeError as error:
    assert "only supported for values of 0" in str(error), error
else:
    raise AssertionError("two rates are accepted")
PYTHON
OMP_NUM_THREADS=1 "$folder/venv/bin/python" "$folder/case.py" 2>&1
