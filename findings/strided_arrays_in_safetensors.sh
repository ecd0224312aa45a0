#!/usr/bin/env bash
# safetensors.numpy.save of an array that is not in C order.
#
# Version: safetensors 0.8.0, NumPy 2.2.6, Python 3.11, seen on 2026-11-30. With safetensors 0.7.0
#          it is as expected.
# Expected: load(save({"a": a})) is equal to a, or save refuses it, as safetensors.torch.save does.
# Seen:     a transposed array, one in Fortran order (which np.linalg and scikit-learn return) or
#           every other element of one comes back with the right shape and the numbers in another
#           order, without an error. The bytes are read from the array's first address on, whatever
#           its strides. Reported to the project in August 2026, and open.
# The script fails if one of these outcomes changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check numpy==2.2.6
cat > "$folder/case.py" <<'PYTHON'
import sys

import numpy as np
from safetensors.numpy import load, save

plain = np.arange(6, dtype=np.float32)
arrays = {
    "transposed": plain.reshape(2, 3).T,
    "Fortran order": np.asfortranarray(plain.reshape(2, 3)),
    "every other": plain[::2],
    "C order": plain.reshape(2, 3),
}
for name, array in arrays.items():
    seen = load(save({"a": array}))["a"]
    print(f"{sys.argv[1]}, {name}: saved {array.tolist()}, loaded {seen.tolist()}")
    assert seen.shape == array.shape
    is_right = np.array_equal(seen, array)
    assert is_right == (sys.argv[1] == "0.7.0" or name == "C order"), seen
PYTHON
for version in 0.7.0 0.8.0; do
    "$folder/venv/bin/pip" install --quiet --disable-pip-version-check "safetensors==$version"
    "$folder/venv/bin/python" "$folder/case.py" "$version"
done
