#!/usr/bin/env bash
# ignite.distributed.auto_dataloader with a sampler of one's own.
#
# Version: pytorch-ignite 0.5.5, torch 2.13.0 (CPU build), Python 3.11, two ranks over gloo, seen on
#          2026-11-30.
# Expected: the loader divides the sampler's indices among the ranks. Random numbers of the training
#           go on as the program has seeded them, with a different seed on each rank, as they do
#           with the loader's default sampler and with torch's DistributedSampler, which draws from
#           a generator of its own.
# Seen:     at the start of each epoch the loader seeds PyTorch's default generator with the epoch's
#           number, since DistributedProxySampler calls torch.manual_seed(epoch). Dropout masks are
#           then the same on all ranks, whatever the program's seed is, and without set_epoch they
#           are the same in every epoch too. The documentation does not mention it.
# The script fails if one of these outcomes changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    pytorch-ignite==0.5.5 torch==2.13.0 numpy==2.2.6
cat > "$folder/case.py" <<'PYTHON'
import logging

import ignite.distributed as idist
import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.utils.data import RandomSampler, TensorDataset


def masks(seed, own_sampler, sets_epoch):
    """The dropout mask of each epoch's first step."""
    data = TensorDataset(torch.arange(12.0))
    options = {"sampler": RandomSampler(data)} if own_sampler else {}
    loader = idist.auto_dataloader(data, batch_size=4, **options)
    torch.manual_seed(seed)
    seen = []
    for epoch in range(3):
        if sets_epoch:
            loader.sampler.set_epoch(epoch)
        for step, _ in enumerate(loader):
            mask = F.dropout(torch.ones(16)).bool().int().tolist()
            if step == 0:
                seen.append("".join(map(str, mask)))
    return seen


def train(rank):
    logging.disable(logging.INFO)
    for own_sampler, sets_epoch, masks_expected in ((0, 1, 12), (1, 1, 3), (1, 0, 1)):
        every = []
        for seed in (100, 200):
            gathered = [None, None]
            dist.all_gather_object(gathered, masks(seed + rank, own_sampler, sets_epoch))
            every += [mask for of_rank in gathered for mask in of_rank]
        if rank == 0:
            print(
                f"own sampler {bool(own_sampler)}, set_epoch {bool(sets_epoch)}: {len(set(every))} "
                "different masks in 3 epochs of 2 ranks with 2 seeds"
            )
        assert len(set(every)) == masks_expected, every


if __name__ == "__main__":
    with idist.Parallel(backend="gloo", nproc_per_node=2) as parallel:
        parallel.run(train)
PYTHON
OMP_NUM_THREADS=1 "$folder/venv/bin/python" "$folder/case.py"
