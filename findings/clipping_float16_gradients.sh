#!/usr/bin/env bash
# torch.nn.utils.clip_grad_norm_ of finite float16 gradients.
#
# Version: torch 2.13.0 (CPU build), Python 3.11, on the CPU, seen on 2026-11-30.
# Expected: gradients that are finite are scaled to max_norm, and left as they are where their norm
#           is below max_norm, as the documentation says.
# Seen:     all gradients become 0, without a warning, once their norm is above 65504: the norm is
#           kept in float16, is infinite there, and max_norm / inf is 0. So it is with a max_norm
#           above the true norm. The optimizer then steps with zeros, so that training stands still.
#           The same gradients in bfloat16 are scaled as they should be.
# The script fails if one of these outcomes changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.2.6
cat > "$folder/case.py" <<'PYTHON'
import torch
from torch import nn


def clip(dtype, max_norm):
    parameter = nn.Parameter(torch.zeros(2000, dtype=dtype))
    parameter.grad = torch.full_like(parameter, 2000.0)
    norm = torch.nn.utils.clip_grad_norm_([parameter], max_norm)
    print(f"{dtype}, max_norm {max_norm}: norm {norm.item():.6g}, gradient {parameter.grad[0]:.4g}")
    return parameter.grad


true_norm = 2000 * 2000**0.5
for max_norm in (1.0, 1e6):
    assert (clip(torch.float16, max_norm) == 0).all()
    for dtype in (torch.bfloat16, torch.float32):
        expected = 2000 * min(1.0, max_norm / true_norm)
        assert torch.allclose(clip(dtype, max_norm).float(), torch.tensor(expected), rtol=0.02)
PYTHON
"$folder/venv/bin/python" "$folder/case.py"
