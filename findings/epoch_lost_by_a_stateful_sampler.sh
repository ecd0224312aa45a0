#!/usr/bin/env bash
# torchdata's StatefulDistributedSampler in a run that resumes between two epochs.
#
# Version: torchdata 0.11.0, torch 2.13.0 (CPU build), Python 3.11, seen on 2026-11-30.
# Expected: a StatefulDataLoader whose state was saved after an epoch yields the whole next epoch
#           once it is loaded, as it does with shuffle=True, with torch's DistributedSampler, and
#           with worker processes. The same fault of shuffle=True was repaired in 0.11.
# Seen:     with num_workers=0 the next epoch is empty, without an error or a warning: the loop over
#           the loader ends at once, and the epoch after it is complete again. A state saved within
#           an epoch is resumed as expected.
# The script fails if one of these outcomes changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    torchdata==0.11.0 torch==2.13.0 numpy==2.2.6
cat > "$folder/case.py" <<'PYTHON'
import itertools

from torch.utils.data import DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

DATA = list(range(20))


def make(kind, workers):
    sampler = kind(DATA, num_replicas=2, rank=0) if kind else None
    return StatefulDataLoader(
        DATA, batch_size=2, sampler=sampler, shuffle=kind is None, num_workers=workers
    )


def epoch_of(loader, epoch, batches=None):
    if hasattr(loader.sampler, "set_epoch"):
        loader.sampler.set_epoch(epoch)
    return [batch.tolist() for batch in itertools.islice(loader, batches)]


def resume(kind, workers, batches):
    """How many samples each epoch has, of which the first is stopped after some batches."""
    loader = make(kind, workers)
    seen = [epoch_of(loader, 0, batches)]
    state = loader.state_dict()
    loader = make(kind, workers)
    loader.load_state_dict(state)
    if batches is not None:
        seen[0] += epoch_of(loader, 0)
    seen += [epoch_of(loader, epoch) for epoch in (1, 2)]
    assert all(len(set(sum(one, []))) == len(sum(one, [])) for one in seen), seen
    return [len(sum(one, [])) for one in seen]


if __name__ == "__main__":
    for kind, workers in itertools.product((None, DistributedSampler, StatefulDistributedSampler), (0, 2)):
        name = kind.__name__ if kind else "shuffle=True"
        within, between = resume(kind, workers, 3), resume(kind, workers, None)
        print(f"{name}, {workers} workers: {within} resumed within the epoch, {between} after it")
        each = 10 if kind else 20
        is_lost = kind is StatefulDistributedSampler and workers == 0
        assert within == [each] * 3, within
        assert between == [each, 0 if is_lost else each, each], between
PYTHON
OMP_NUM_THREADS=1 "$folder/venv/bin/python" "$folder/case.py"
