#!/usr/bin/env bash
# safetensors.torch.save of a tensor that PyTorch conjugates or negates lazily.
#
# Version: safetensors 0.8.0, torch 2.13.0 (CPU build), Python 3.11, seen on 2026-11-30.
# Expected: load(save({"x": x})) is equal to x, or save refuses it, as it refuses tensors that are
#           not contiguous.
# Seen:     x.conj() comes back unconjugated, and x.conj().imag with the other sign, without an
#           error: both are views with a flag, they count as contiguous, and the bytes in memory are
#           written. torch.save and torch.distributed.checkpoint keep the values, and so does
#           resolve_conj() before the save. Reported to the project in August 2026, and open.
# The script fails if one of these outcomes changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    safetensors==0.8.0 torch==2.13.0 numpy==2.2.6
cat > "$folder/case.py" <<'PYTHON'
import io

import torch
from safetensors.torch import load, save

x = torch.tensor([1 + 2j])
for name, value in {"conj": x.conj(), "imag": x.conj().imag}.items():
    assert value.is_contiguous()
    seen = load(save({"x": value}))["x"]
    print(f"{name}: saved {value.tolist()}, loaded {seen.tolist()}")
    assert not torch.equal(seen, value), seen
    resolved = load(save({"x": value.resolve_conj().resolve_neg()}))["x"]
    assert torch.equal(resolved, value), resolved
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    assert torch.equal(torch.load(file), value)
PYTHON
"$folder/venv/bin/python" "$folder/case.py"
