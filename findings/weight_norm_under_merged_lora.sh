#!/usr/bin/env bash
# PEFT's merge_and_unload of a LoRA adapter on a layer with weight_norm or spectral_norm.
#
# Version: peft 0.21.2, transformers 5.24.0, torch 2.13.0 (CPU build), Python 3.11, seen on
#          2026-11-30.
# Expected: the merged model computes what the adapter computed, as it does for a plain nn.Linear;
#           or merging raises an error.
# Seen:     the adapter's work is lost without an error or a warning. The layer's weight is computed
#           from other parameters at each access, so PEFT adds its update to a temporary tensor.
#           With torch.nn.utils.parametrizations.weight_norm and the older
#           torch.nn.utils.weight_norm, the merged model computes what the model without the adapter
#           does; with spectral_norm its outputs are off by as much.
# The script fails if one of these outcomes changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    peft==0.21.2 transformers==5.24.0 torch==2.13.0 numpy==2.2.6
cat > "$folder/case.py" <<'PYTHON'
import copy

import peft
import torch
from torch import nn
from torch.nn.utils import parametrizations, weight_norm

WRAPPERS = {
    "plain": lambda layer: layer,
    "parametrizations.weight_norm": parametrizations.weight_norm,
    "weight_norm": weight_norm,
    "spectral_norm": parametrizations.spectral_norm,
}


class Net(nn.Module):
    def __init__(self, wrap):
        super().__init__()
        self.first = wrap(nn.Linear(4, 4))
        self.last = nn.Linear(4, 2)

    def forward(self, x):
        return self.last(self.first(x))


for name, wrap in WRAPPERS.items():
    torch.manual_seed(0)
    net = Net(wrap).eval()
    x = torch.randn(3, 4)
    config = peft.LoraConfig(target_modules=["first"], r=2, init_lora_weights=False)
    with torch.no_grad():
        without = net(x)
        adapted = peft.get_peft_model(net, config).eval()
        expected = adapted(x)
        merged = adapted.merge_and_unload()(x)
    effect = (expected - without).abs().max().item()
    error = (merged - expected).abs().max().item()
    print(f"{name}: the adapter moves outputs by {effect:.3g}, after the merge {error:.3g} is missing")
    assert effect > 0.1
    assert (error < 1e-5) == (name == "plain"), error
    if "weight_norm" in name:
        assert torch.allclose(merged, without, atol=1e-6)
PYTHON
"$folder/venv/bin/python" "$folder/case.py"
