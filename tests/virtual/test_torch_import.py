"""Actions registered for the import of torch run then, once, and leave torch untouched."""

from __future__ import annotations

import subprocess
import sys

WATCH = """
import sys
from anyrig.virtual.torch_import import when_torch_is_imported
finders = list(sys.meta_path)
when_torch_is_imported(lambda: print("imported", "torch" in sys.modules))
"""


def run(source: str, *, expected: str) -> None:
    command = [sys.executable, "-W", "error", "-c", source]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout == expected, done.stderr
    assert done.returncode == 0, done.stderr


def test_nothing_happens_before() -> None:
    look = "import importlib.util; print(importlib.util.find_spec('torch') is not None)"
    run(f"{WATCH}{look}; print('torch' in sys.modules)", expected="True\nFalse\n")


def test_it_happens_within_the_import_and_once() -> None:
    source = f"{WATCH}import torch; print('after'); import torch.nn, importlib"
    run(source, expected="imported True\nafter\n")


def test_it_happens_after_someone_only_looked_for_torch() -> None:
    look = "import importlib.util; importlib.util.find_spec('torch')"
    run(f"{WATCH}{look}; import torch.utils", expected="imported True\n")


def test_torch_has_its_own_loader_afterwards() -> None:
    check = "print(type(torch.__loader__).__name__, torch.__spec__.loader is torch.__loader__)"
    restored = "print(sys.meta_path == finders)"
    source = f"{WATCH}import torch; {check}; {restored}"
    run(source, expected="imported True\nSourceFileLoader True\nTrue\n")


def test_it_happens_at_once_when_torch_is_there() -> None:
    run(f"import torch; {WATCH}print('after')", expected="imported True\nafter\n")


def test_no_collection_delays_the_import() -> None:
    count = "import gc; runs = []; gc.callbacks.append(lambda *run: runs.append(run))"
    source = f"{WATCH}{count}\nimport torch; print(len(runs) < 10, gc.isenabled())"
    run(source, expected="imported True\nTrue True\n")


def test_no_collection_delays_the_imports_of_a_command() -> None:
    source = """
import gc, sys
from anyrig.virtual.torch_import import collect_nothing_in_imports
finders = list(sys.meta_path)
collect_nothing_in_imports()
runs = []
gc.callbacks.append(lambda *run: runs.append(run))
import torch
print(len(runs) < 10, gc.isenabled())
import torch._dynamo
print(len(runs) < 20, gc.isenabled(), sys.meta_path == finders)
"""
    run(source, expected="True True\nTrue True True\n")


def test_what_was_made_without_collections_is_old_afterwards() -> None:
    source = """
import gc
from anyrig.virtual.torch_import import without_collections
gc.set_threshold(0)  # a collection would make all of it older, too
with without_collections():
    made = [[] for _ in range(10_000)]
print(len(gc.get_objects(generation=0)) < 5_000, gc.get_freeze_count(), gc.isenabled())
"""
    run(source, expected="True 0 True\n")


def test_it_finds_no_module_of_anyrig_half_imported() -> None:
    source = """
from anyrig.virtual.torch_import import when_torch_is_imported
when_torch_is_imported(lambda: __import__("anyrig.rehearsal.refusal_watch"))
from anyrig.memory import track  # whose modules import torch
print(track.__name__)
"""
    run(source, expected="track\n")
