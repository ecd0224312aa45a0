#!/usr/bin/env bash
# torch.utils.checkpoint.checkpoint(use_reentrant=False) whose function raises an error that is kept.
#
# Version: torch 2.12.1, Python 3.11, on the CPU, seen on 2026-11-28. Since 2.13 it is as expected.
# Expected: a program that handles the error, such as an out-of-memory error before a retry, goes on with
#           code that has no checkpoint, and its backward pass computes that code's gradient.
# Seen:     while the error lives (in a variable, a log record, sys.last_exc), the checkpoint's hooks on
#           saved tensors stay in place. The next forward pass, though it calls no checkpoint, gives them its
#           tensors, and its backward pass runs the failed function again: the same error, from backward().
# The script fails if this changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.12.1 numpy==2.2.6
cat > "$folder/retry.py" <<'PYTHON'
import torch
from torch.utils.checkpoint import checkpoint

calls = []


def does_not_fit(x):
    calls.append("called")
    raise MemoryError("does not fit")


x = torch.ones(2, requires_grad=True)
kept = None
try:
    checkpoint(does_not_fit, x, use_reentrant=False)
except MemoryError as error:
    kept = error
loss = (x.sin() * x).sum()
try:
    loss.backward()
    seen = "a gradient"
except MemoryError:
    seen = "the error of the checkpointed function"
print(torch.__version__, "backward() gave", seen, "after", len(calls), "calls")
assert seen == "the error of the checkpointed function" and len(calls) == 2
PYTHON
"$folder/venv/bin/python" "$folder/retry.py"
