#!/usr/bin/env bash
# torchdata's StatefulDataLoader with torch.utils.data.RandomSampler.
#
# Version: torchdata 0.11.0, torch 2.13.0 (CPU build), Python 3.11, seen on 2026-11-30.
# Expected: a run that resumes within an epoch sees the rest of it, as with shuffle=True. The
#           package's tutorial and README say that torch's RandomSampler is patched at the import of
#           torchdata.stateful_dataloader, so that no sampler of one's own is needed.
# Seen:     torch's RandomSampler is not patched (since 0.8), and the state has only the number of
#           batches. A resumed run draws a new order and skips that many batches of it: within the
#           second epoch of 12 samples, after 6 of them, 3 samples are seen again and 3 never, though
#           both runs give the sampler a generator with the same seed. No warning.
#           torchdata.stateful_dataloader.sampler.RandomSampler resumes as expected.
# The script fails if one of these outcomes changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    torchdata==0.11.0 torch==2.13.0 numpy==2.2.6
cat > "$folder/case.py" <<'PYTHON'
import itertools

import torch
from torch.utils.data import RandomSampler
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import RandomSampler as StatefulRandomSampler

DATA = list(range(12))


def make(kind, workers):
    torch.manual_seed(0)
    if kind is None:
        return StatefulDataLoader(DATA, batch_size=2, shuffle=True, num_workers=workers)
    sampler = kind(DATA, generator=torch.Generator().manual_seed(3))
    return StatefulDataLoader(DATA, batch_size=2, sampler=sampler, num_workers=workers)


def resume(kind, workers):
    """The samples of the second epoch, before and after a resume."""
    loader = make(kind, workers)
    assert len(list(loader)) == 6
    before = [batch.tolist() for batch in itertools.islice(loader, 3)]
    state = loader.state_dict()
    loader = make(kind, workers)
    loader.load_state_dict(state)
    return sum(before, []), sum((batch.tolist() for batch in loader), [])


if __name__ == "__main__":
    for kind, workers in itertools.product((None, StatefulRandomSampler, RandomSampler), (0, 2)):
        before, after = resume(kind, workers)
        again, never = set(before) & set(after), set(DATA) - set(before) - set(after)
        name = f"{kind.__module__}.{kind.__name__}" if kind else "shuffle=True"
        print(f"{name}, {workers} workers: {before}, then {after}; again {again}, never {never}")
        lost = 3 if kind is RandomSampler else 0
        assert len(again) == len(never) == lost, (again, never)
PYTHON
OMP_NUM_THREADS=1 "$folder/venv/bin/python" "$folder/case.py"
