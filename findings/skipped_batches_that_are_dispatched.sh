#!/usr/bin/env bash
# Accelerate's skip_first_batches on a loader with dispatch_batches=True.
#
# Version: accelerate 1.15.0, torch 2.13.0 (CPU build), Python 3.11, two processes over gloo, seen
#          on 2026-11-30.
# Expected: a process that has seen k of its batches resumes after skip_first_batches(loader, k)
#           where it stopped, as it does without dispatch_batches. The documentation has no
#           exception for it.
# Seen:     k batches of the underlying loader are skipped, of which each step of two processes
#           takes two. With 12 samples, a batch size of 2 and k=1, samples 2 and 3 are seen again,
#           each later batch goes to the other process, and the last step has one batch for both.
# The script fails if one of these outcomes changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    accelerate==1.15.0 torch==2.13.0 numpy==2.2.6
cat > "$folder/case.py" <<'PYTHON'
import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import DataLoader

SAMPLES, STEPS = 12, 1
seen = {}
for dispatch in (False, True):
    accelerator = Accelerator(
        cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=dispatch)
    )
    loader = accelerator.prepare(DataLoader(torch.arange(SAMPLES), batch_size=2))
    whole = [batch.tolist() for batch in loader]
    rest = [batch.tolist() for batch in accelerator.skip_first_batches(loader, STEPS)]
    both = [None, None]
    dist.all_gather_object(both, (whole, rest))
    before = sorted(sum((sum(whole[:STEPS], []) for whole, _ in both), []))
    after = sorted(sum((sum(rest, []) for _, rest in both), []))
    seen[dispatch] = (before, after)
    if accelerator.is_main_process:
        print(f"dispatch_batches={dispatch}: first step {before}, after the skip {after}")
        print(f"  by process: {[rest for _, rest in both]}, without the skip {[w for w, _ in both]}")
assert seen[False] == ([0, 1, 2, 3], [4, 5, 6, 7, 8, 9, 10, 11]), seen[False]
assert seen[True][0] == [0, 1, 2, 3], seen[True]
assert set(seen[True][1]) == set(range(2, 12)), seen[True]
dist.destroy_process_group()
PYTHON
OMP_NUM_THREADS=1 "$folder/venv/bin/python" -m torch.distributed.run \
    --standalone --nproc-per-node 2 "$folder/case.py"
