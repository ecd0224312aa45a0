#!/usr/bin/env bash
# Losses with reduction="mean" of a DTensor whose shards differ in size.
#
# Version: torch 2.13.0 (CPU build), Python 3.11, two ranks over gloo, seen on 2026-11-30.
# Expected: a DTensor computes as its full tensor does, whatever its placements: the documentation
#           promises a single-device program with the same convergence, and distribute_tensor takes
#           sizes that are no multiple of the number of ranks. Tensor.mean() of uneven shards is
#           right.
# Seen:     mse_loss of 5 samples on 2 ranks is 2.71, not 3.1: each rank averages its 3 or 2
#           samples, and the result is the mean of the two averages. So do smooth_l1_loss,
#           huber_loss, binary_cross_entropy, binary_cross_entropy_with_logits and soft_margin_loss.
#           No warning. l1_loss and cross_entropy are right, and so are all of them with even
#           shards.
# The script fails if one of these outcomes changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.2.6
cat > "$folder/case.py" <<'PYTHON'
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn import functional as F

WRONG = {
    "mse_loss": F.mse_loss,
    "smooth_l1_loss": F.smooth_l1_loss,
    "huber_loss": F.huber_loss,
    "binary_cross_entropy": lambda x, y: F.binary_cross_entropy(x.sigmoid(), y.sigmoid()),
    "binary_cross_entropy_with_logits": lambda x, y: F.binary_cross_entropy_with_logits(
        x, y.sigmoid()
    ),
    "soft_margin_loss": lambda x, y: F.soft_margin_loss(x, y.sign()),
}
RIGHT = {
    "mean": lambda x, y: (x - y).square().mean(),
    "l1_loss": F.l1_loss,
    "cross_entropy": lambda x, y: F.cross_entropy(x, y.softmax(1)),
}
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))
for samples in (4, 5):
    x = torch.tensor([[1.0, 2.0], [2.0, 1.0], [3.0, 2.0], [1.0, 2.0], [0.0, 1.0]])[:samples]
    y = torch.tensor([[3.0, 1.0], [-1.0, 2.0], [1.0, -1.0], [1.0, 1.0], [1.0, 2.0]])[:samples]
    shards = [distribute_tensor(one, mesh, [Shard(0)]) for one in (x, y)]
    for name, loss in (WRONG | RIGHT).items():
        expected, seen = loss(x, y), loss(*shards).full_tensor()
        if dist.get_rank() == 0:
            print(f"{samples} samples, {name}: {seen.item():.4f}, not sharded {expected.item():.4f}")
        is_right = torch.allclose(seen, expected, rtol=1e-4)
        assert is_right == (samples == 4 or name in RIGHT), f"{name}: {seen}, {expected}"
dist.destroy_process_group()
PYTHON
OMP_NUM_THREADS=1 "$folder/venv/bin/python" -m torch.distributed.run \
    --standalone --nproc-per-node 2 "$folder/case.py"
