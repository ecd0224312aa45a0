#!/usr/bin/env bash
# A warm-up from a learning rate of 0 for FTRL, ASGD and Gravity of pytorch_optimizer, and for
# DAdaptSGD.
#
# Version: pytorch-optimizer 4.1.0, dadaptation 3.2, torch 2.13.0 (CPU build), Python 3.11, seen on
#          2026-11-30.
# Expected: the first step of a linear warm-up, whose factor is 0 (as that of transformers'
#           get_linear_schedule_with_warmup is), changes nothing. The constructors take lr=0, and
#           dadaptation's README says to use the schedule that one would use anyway.
# Seen:     pytorch_optimizer's FTRL makes all parameters NaN, without an error. Its ASGD and
#           Gravity, and DAdaptSGD, raise ZeroDivisionError in step(). AdamW, Lion and Adan of the
#           package, and DAdaptAdam, train.
# The script fails if one of these outcomes changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    pytorch_optimizer==4.1.0 dadaptation==3.2 torch==2.13.0 numpy==2.2.6
cat > "$folder/case.py" <<'PYTHON'
import dadaptation
import torch
from pytorch_optimizer import load_optimizer
from torch import nn

EXPECTED = {
    "ftrl": "NaN", "asgd": "ZeroDivisionError", "gravity": "ZeroDivisionError",
    "DAdaptSGD": "ZeroDivisionError",
    "adamw": "trains", "lion": "trains", "adan": "trains", "DAdaptAdam": "trains",
}
for name, expected in EXPECTED.items():
    make = getattr(dadaptation, name) if name.startswith("DAdapt") else load_optimizer(name)
    torch.manual_seed(0)
    net = nn.Linear(4, 2)
    optimizer = make(net.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 3))
    try:
        for _ in range(5):
            optimizer.zero_grad()
            net(torch.ones(3, 4)).square().mean().backward()
            optimizer.step()
            scheduler.step()
    except ZeroDivisionError as error:
        seen = type(error).__name__
    else:
        seen = "NaN" if net.weight.isnan().all() else "trains"
    print(f"{name}: {seen}")
    assert seen == expected, seen
PYTHON
"$folder/venv/bin/python" "$folder/case.py"
