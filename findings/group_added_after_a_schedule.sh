#!/usr/bin/env bash
# A parameter group that is added to an optimizer while a torch.optim.lr_scheduler runs.
#
# Version: torch 2.13.0 (CPU build), Python 3.11, seen on 2026-11-30.
# Expected: add_param_group, which the documentation recommends for layers that become trainable
#           during training, takes the group's lr; the scheduler either leaves it alone, or scales
#           it as it scales the others, or raises an error.
# Seen:     ConstantLR and LinearLR drive it above what was asked. A group that is added with lr=0.1
#           during a warm-up ends at 0.3 under ConstantLR(factor=1/3) and 0.217 under LinearLR(0.1,
#           1), where the first group ends at 0.1: each step multiplies the present lr by the rest
#           of the warm-up. StepLR and ExponentialLR scale it like the others. LambdaLR and
#           OneCycleLR raise ValueError and KeyError at the next step, CosineAnnealingLR raises
#           ValueError only once it has passed T_max.
# The script fails if one of these outcomes changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.2.6
cat > "$folder/case.py" <<'PYTHON'
import torch
from torch import nn
from torch.optim import lr_scheduler as schedules

MADE = {
    "ConstantLR": (lambda o: schedules.ConstantLR(o, 1 / 3, 5), 0.3),
    "LinearLR": (lambda o: schedules.LinearLR(o, 0.1, 1.0, 5), 0.217),
    "StepLR": (lambda o: schedules.StepLR(o, 100), 0.1),
    "ExponentialLR": (lambda o: schedules.ExponentialLR(o, 1.0), 0.1),
    "CosineAnnealingLR": (lambda o: schedules.CosineAnnealingLR(o, 8), ValueError),
    "LambdaLR": (lambda o: schedules.LambdaLR(o, lambda epoch: 1.0), ValueError),
    "OneCycleLR": (lambda o: schedules.OneCycleLR(o, 0.1, total_steps=20), KeyError),
}
for name, (make, expected) in MADE.items():
    first, second = (nn.Parameter(torch.zeros(1)) for _ in range(2))
    optimizer = torch.optim.SGD([first], lr=0.1, momentum=0.9)
    scheduler = make(optimizer)
    try:
        for step in range(12):
            if step == 2:
                optimizer.add_param_group({"params": [second], "lr": 0.1, "momentum": 0.9})
            optimizer.step()
            scheduler.step()
    except (KeyError, ValueError) as error:
        seen = type(error)
    else:
        seen = round(optimizer.param_groups[1]["lr"], 3)
        assert round(optimizer.param_groups[0]["lr"], 3) == 0.1
    print(f"{name}: the group that was added with lr 0.1 ends at {seen}")
    assert seen == expected, seen
PYTHON
"$folder/venv/bin/python" "$folder/case.py"
