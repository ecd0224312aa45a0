"""The kinds of intervals and of memory, in the order in which the page lists them.

The colours and patterns are in `assets/page.css`, under the same names.
"""

from __future__ import annotations

KINDS = ("kernel", "copy", "collective", "wait", "host", "loader")
LABELS = {
    "kernel": "kernels",
    "copy": "copies",
    "collective": "collectives",
    "wait": "waiting",
    "host": "host",
    "loader": "data loading",
}

# From the bottom of the chart to its top.
LAYERS = ("context", "tensor", "workspace", "cached")
LAYER_LABELS = {
    "context": "CUDA context, NCCL",
    "tensor": "tensors",
    "workspace": "workspaces",
    "cached": "cached, free",
}
