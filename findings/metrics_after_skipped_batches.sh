#!/usr/bin/env bash
# Accelerate's gather_for_metrics on a loader from skip_first_batches.
#
# Version: accelerate 1.15.0, torch 2.13.0 (CPU build), Python 3.11, two processes over gloo, seen
#          on 2026-11-30.
# Expected: gather_for_metrics drops the samples that were repeated to fill the last batch, as its
#           documentation says, so that a metric counts each sample once.
# Seen:     on a loader that skip_first_batches has returned, with 0 batches skipped too, the
#           repeated samples stay: of 11 samples, sample 0 is counted twice. On the loader itself it
#           is dropped. A fix is proposed to the project, and open.
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
from torch.utils.data import DataLoader

accelerator = Accelerator(cpu=True)
loader = accelerator.prepare(DataLoader(torch.arange(11), batch_size=2))
skips = {skip: accelerator.skip_first_batches(loader, skip) for skip in (0, 1)}
for name, one in {"the loader": loader, **skips}.items():
    seen = [accelerator.gather_for_metrics(batch).tolist() for batch in one]
    if accelerator.is_main_process:
        print(f"{name}: {seen}")
    assert seen[-1] == ([8, 9, 10] if name == "the loader" else [8, 9, 10, 0]), seen
dist.destroy_process_group()
PYTHON
OMP_NUM_THREADS=1 "$folder/venv/bin/python" -m torch.distributed.run \
    --standalone --nproc-per-node 2 "$folder/case.py"
