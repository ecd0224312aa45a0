"""Tests in this folder run in a process with a shape-only rig: see ../test_findings.py."""

from __future__ import annotations

import os

RIG = os.environ.get("ANYRIG_TEST_FINDINGS_RIG")

if RIG is None:
    collect_ignore_glob = ["test_*.py"]
else:
    from anyrig.virtual import install

    install(RIG, shape_only=True, assume_values=True)
