#!/usr/bin/env bash
# A global forward hook of PyTorch that was removed, and torch.compile.
#
# Version: torch 2.13.0 (CPU build), Python 3.11, seen on 2026-11-29.
# Expected: register_module_forward_hook(hook, with_kwargs=True) returns a handle, and after
#           handle.remove() the process is as before, as after a hook without with_kwargs.
# Seen:     a call of a compiled module goes on warning of "global hooks on modules". The handle
#           removes the hook, but not its entry in the table of hooks that take keyword arguments.
#           A hook of one module, register_forward_hook(hook, with_kwargs=True), leaves nothing.
# The script fails if one of these outcomes changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.2.6
cat > "$folder/hooks.py" <<'PYTHON'
import sys
import warnings

import torch
from torch.nn.modules.module import register_module_forward_hook

kind = sys.argv[1]
layer = torch.nn.Linear(1, 1)
if kind == "global with kwargs":
    handle = register_module_forward_hook(lambda *_: None, with_kwargs=True)
elif kind == "global":
    handle = register_module_forward_hook(lambda *_: None)
else:
    handle = layer.register_forward_hook(lambda *_: None, with_kwargs=True)
layer(torch.ones(1, 1))
handle.remove()
compiled = torch.compile(layer, backend="eager")
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    compiled(torch.ones(1, 1))
warns = any("global hooks" in str(each.message) for each in caught)
print(f"torch {torch.__version__}: after the removal of a hook, {kind}: warns of hooks: {warns}")
assert warns == (kind == "global with kwargs")
PYTHON
for kind in "global with kwargs" global "of one module"; do
    "$folder/venv/bin/python" "$folder/hooks.py" "$kind"
done
