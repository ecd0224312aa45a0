#!/usr/bin/env bash
# item(), float() and bool() of a DTensor that a reduction of shards has made.
#
# Version: torch 2.13.0 (CPU build), Python 3.11, two ranks over gloo, seen on 2026-11-30.
# Expected: x.sum().item() is the sum of the whole tensor, and `if (x > 2).any():` goes the same way
#           on every rank, as a DTensor's other operations compute what its full tensor does.
# Seen:     each rank gets the number of its own shard, without an error or a warning: 3.0 and 7.0
#           instead of 10.0, and bool() is False on one rank and True on the other, so that the
#           ranks part ways. The pending reduction (the placement Partial) is skipped; full_tensor()
#           does it. Reported to the project in 2025, and open.
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

dist.init_process_group("gloo")
rank = dist.get_rank()
x = distribute_tensor(
    torch.tensor([1.0, 2.0, 3.0, 4.0]), init_device_mesh("cpu", (2,)), [Shard(0)]
)
seen = {
    "sum": x.sum().item(),
    "max": x.max().item(),
    "float(norm)": float(x.norm()),
    "bool(any)": bool((x > 2).any()),
}
print(f"rank {rank}: {seen}; full_tensor: {x.sum().full_tensor().item()}")
assert seen["sum"] == (3.0, 7.0)[rank], seen
assert seen["max"] == (2.0, 4.0)[rank], seen
assert abs(seen["float(norm)"] - (5**0.5, 5.0)[rank]) < 1e-5, seen
assert seen["bool(any)"] is (False, True)[rank], seen
assert x.sum().full_tensor().item() == 10.0
dist.destroy_process_group()
PYTHON
OMP_NUM_THREADS=1 "$folder/venv/bin/python" -m torch.distributed.run \
    --standalone --nproc-per-node 2 "$folder/case.py"
