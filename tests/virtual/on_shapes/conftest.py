"""Tests in this folder run in a process with a shape-only rig, where large work costs the host
nothing: see ../test_on_shapes.py.
"""

from __future__ import annotations

import os

RIG = os.environ.get("ANYRIG_TEST_SHAPES_RIG")

if RIG is None:
    collect_ignore_glob = ["test_*.py"]
else:
    from anyrig.virtual import install

    # Copies to the host are timed too; the values they write do not matter.
    install(RIG, shape_only=True, assume_values=True)
