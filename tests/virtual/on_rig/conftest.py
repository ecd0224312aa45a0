"""Tests in this folder run in a process whose CUDA devices are virtual: see ../test_on_rig.py."""

from __future__ import annotations

import os

RIG = os.environ.get("ANYRIG_TEST_RIG")

if RIG is None:
    collect_ignore_glob = ["test_*.py"]
else:
    from anyrig.virtual import install

    install(RIG)
