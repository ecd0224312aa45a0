#!/usr/bin/env bash
# torchmetrics.MetricCollection of one metric with two settings.
#
# Version: torchmetrics 1.9.0, torch 2.13.0 (CPU build), Python 3.11, seen on 2026-11-30.
# Expected: each metric of a collection computes what it computes on its own. The documentation says
#           that metrics share a state where they differ only in their compute step.
# Seen:     metrics share a state for good if their states happen to be equal after the first batch,
#           whatever their settings are. With BinaryAccuracy(threshold=0.3) and (threshold=0.7), and
#           a first batch that both classify alike, the first one reports the second one's 0.5
#           instead of 0.833. No warning; compute_groups=False avoids it. Variants were reported to
#           the project since 2022.
# The script fails if one of these outcomes changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    torchmetrics==1.9.0 torch==2.13.0 numpy==2.2.6
cat > "$folder/case.py" <<'PYTHON'
import torch
from torchmetrics import MetricCollection
from torchmetrics.classification import BinaryAccuracy

BATCHES = [([0.1, 0.9], [0, 1]), ([0.5, 0.5, 0.5, 0.6], [1, 1, 0, 1])]


def values(together, order):
    metrics = {"low": BinaryAccuracy(threshold=0.3), "high": BinaryAccuracy(threshold=0.7)}
    one = MetricCollection(metrics, compute_groups=together)
    for index in order:
        scores, labels = map(torch.tensor, BATCHES[index])
        one.update(scores, labels)
    return {name: round(value.item(), 3) for name, value in one.compute().items()}


for together, order in ((False, (0, 1)), (True, (0, 1)), (True, (1, 0))):
    print(f"compute_groups={together}, batches in the order {order}: {values(together, order)}")
assert values(False, (0, 1)) == {"low": 0.833, "high": 0.5}
assert values(True, (0, 1)) == {"low": 0.5, "high": 0.5}
assert values(True, (1, 0)) == {"low": 0.833, "high": 0.5}
PYTHON
"$folder/venv/bin/python" "$folder/case.py"
