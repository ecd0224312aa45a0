#!/usr/bin/env bash
# Integer buffers of a model under ema_pytorch.EMA.
#
# Version: ema-pytorch 0.8.3, torch 2.13.0 (CPU build), Python 3.11, seen on 2026-11-30.
# Expected: EMA.update() averages floating buffers and copies the others, as torch's AveragedModel
#           copies buffers. Names in param_or_buffer_names_no_ema are copied;
#           copy_params_from_model_to_ema() copies all.
# Seen:     integer and boolean buffers of ema.ema_model stay as they were when EMA was made:
#           BatchNorm's num_batches_tracked is 0 after 5 steps, and so are a codebook's usage counts
#           or a step counter in a buffer. This is so with their names in
#           param_or_buffer_names_no_ema, and after copy_params_from_model_to_ema(). No warning.
# The script fails if one of these outcomes changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    ema-pytorch==0.8.3 torch==2.13.0 numpy==2.2.6
cat > "$folder/case.py" <<'PYTHON'
import torch
from ema_pytorch import EMA
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(2)
        self.register_buffer("steps", torch.tensor(0))
        self.register_buffer("used", torch.zeros(3, dtype=torch.bool))
        self.register_buffer("scale", torch.tensor(0.0))

    def forward(self, x):
        self.steps += 1
        self.used[1] = True
        self.scale += 1.0
        return self.norm(x)


for names in (set(), {"steps", "used", "scale"}):
    net = Net()
    ema = EMA(
        net, beta=0.9, update_after_step=0, update_every=1, param_or_buffer_names_no_ema=names
    )
    for _ in range(5):
        net(torch.randn(4, 2))
        ema.update()
    for when in ("update", "copy_params_from_model_to_ema"):
        if when != "update":
            ema.copy_params_from_model_to_ema()
        copy = ema.ema_model
        print(
            f"{when}, not averaged {sorted(names)}: steps {copy.steps.item()} of {net.steps.item()}, "
            f"used {copy.used.tolist()}, num_batches_tracked {copy.norm.num_batches_tracked.item()}"
        )
        assert copy.steps == 0 and net.steps == 5
        assert copy.norm.num_batches_tracked == 0 and net.norm.num_batches_tracked == 5
        assert not copy.used.any() and net.used.any()
        assert copy.scale > 0
PYTHON
"$folder/venv/bin/python" "$folder/case.py"
