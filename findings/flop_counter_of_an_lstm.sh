#!/usr/bin/env bash
# torch.utils.flop_counter.FlopCounterMode around nn.LSTM on the CPU.
#
# Version: torch 2.13.0 (CPU build), Python 3.11, on the CPU, seen on 2026-11-30.
# Expected: the FLOPs of the matrix products inside, as FlopCounterMode counts them for nn.GRU and
#           nn.RNN on the CPU and for the same nn.LSTM on the meta device; or a warning that an
#           operator with products is not counted.
# Seen:     0 for nn.LSTM, forward and backward, without a warning: on the CPU it is one oneDNN
#           operator that the counter has no formula for. On the meta device the same module counts
#           86016. Also 0: a matrix times a vector (A @ v), v @ w, an eval-mode
#           nn.TransformerEncoderLayer under no_grad, and the forward pass of
#           scaled_dot_product_attention.
# The script fails if one of these outcomes changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.2.6
cat > "$folder/case.py" <<'PYTHON'
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode


def flops(call):
    with FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops()


x = torch.randn(4, 7, 8)
seen = {}
for kind, gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1)):
    products = 2 * 4 * 7 * gates * 16 * (8 + 16)
    for device in ("cpu", "meta"):
        net = getattr(nn, kind)(8, 16, batch_first=True).to(device)
        forward = flops(lambda: net(x.to(device)))
        both = flops(lambda: net(x.to(device))[0].sum().backward())
        print(f"nn.{kind} on {device}: forward {forward}, with backward {both}, products {products}")
        expected = 0 if (kind, device) == ("LSTM", "cpu") else products
        assert forward == expected, forward
        assert (both > forward) == (expected > 0), both

layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0).eval()
matrix, vector, query = torch.randn(8, 8), torch.randn(8), torch.randn(1, 2, 64, 16)
with torch.no_grad():
    zero = {
        "A @ v": flops(lambda: matrix @ vector),
        "v @ w": flops(lambda: vector @ vector),
        "TransformerEncoderLayer": flops(lambda: layer(x)),
        "scaled_dot_product_attention": flops(
            lambda: F.scaled_dot_product_attention(query, query, query)
        ),
    }
print(zero)
assert not any(zero.values()), zero
assert flops(lambda: layer(x)) > 0
PYTHON
"$folder/venv/bin/python" "$folder/case.py"
