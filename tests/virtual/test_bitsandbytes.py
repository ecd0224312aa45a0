"""The library bitsandbytes on virtual GPUs, which run its CPU kernels."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest
from on_a_rig import output_of

# Built like the library: CUDA kernels that need a real GPU, and one operator in PyTorch.
STAND_IN = {
    "__init__.py": """
import torch
from . import cextension, functional

def add_on_host(A, pages):
    A.add_(pages)

library = torch.library.Library("bitsandbytes", "DEF")
library.define("halve(Tensor A) -> Tensor")
library.impl("halve", lambda A: (A + A) / 4, "CompositeExplicitAutograd")
library.impl("halve", torch.empty_like, "Meta")
library.define("add_to(Tensor(a!) A, Tensor pages) -> ()")
library.impl("add_to", add_on_host, "CPU")
library.impl("add_to", lambda A, pages: None, "Meta")
if torch.cuda.is_available():
    from .backends.cuda import ops
""",
    "cextension.py": """
import imported_by_bitsandbytes
import torch

loaded_for = "CUDA" if torch.cuda.is_available() else "CPU"
""",
    "backends/__init__.py": "",
    "backends/cuda/__init__.py": "",
    "backends/cuda/ops.py": "raise SystemExit('no CUDA-capable device is detected')",
    "functional.py": """
def get_paged(*shape, dtype=None, device=None):
    raise AttributeError("cget_managed_ptr")

def prefetch_tensor(A, to_cpu=False):
    raise AttributeError("cprefetch")

def fill(A, value, device=None, prefetch=True):
    raise AttributeError("cfill_fp32")
""",
}

USE = """
import sys
if sys.argv[1] == "torch first":
    import torch
import bitsandbytes
import torch
import imported_by_bitsandbytes
from bitsandbytes import functional

assert bitsandbytes.cextension.loaded_for == "CPU"
assert imported_by_bitsandbytes.cuda and torch.cuda.is_available()
x = torch.ones(1000, device="cuda:1")
before = torch.cuda.memory_allocated(1)
halved = torch.ops.bitsandbytes.halve(x)
print(halved.device, torch.cuda.max_memory_allocated(1) - before)
pages = functional.get_paged(1000, dtype=torch.float32, device=x.device)
assert pages.is_paged and pages.page_deviceid == 1
functional.fill(pages, 3)
functional.prefetch_tensor(pages)
torch.ops.bitsandbytes.add_to(x, pages)
"""


def with_stand_in(folder: Path, order: str, *options: str, numbers: str = "") -> list[str]:
    for name, source in STAND_IN.items():
        file = folder / "bitsandbytes" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source)
    asks = "import torch\ncuda = torch.cuda.is_available()\n"
    (folder / "imported_by_bitsandbytes.py").write_text(asks)
    program = folder / "program.py"
    program.write_text(USE + numbers)
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    command = ["-m", "anyrig", "rehearse", "--rig", "2x1GiB", *options, str(program), order]
    return output_of(*command, fresh=True, PYTHONPATH=path).splitlines()


@pytest.mark.parametrize("order", ["torch first", "torch last"])
def test_an_operator_runs_whole_on_the_host(tmp_path: Path, order: str) -> None:
    numbers = "assert halved.tolist() == [0.5] * 1000\nassert x.tolist() == [4.0] * 1000\n"
    assert with_stand_in(tmp_path, order, numbers=numbers) == ["cuda:1 4096"]


def test_its_bytes_are_the_same_without_data(tmp_path: Path) -> None:
    assert with_stand_in(tmp_path, "torch first", "--shape-only") == ["cuda:1 4096"]


QUANTISED = """
import bitsandbytes, torch
from bitsandbytes import functional

def layer(device):
    torch.manual_seed(0)
    linear = bitsandbytes.nn.Linear4bit(128, 64, compute_dtype=torch.float32).to(device)
    x = torch.randn(8, 128).to(device).detach().requires_grad_()
    linear(x).sum().backward()
    return x.grad

def step(device):
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(400, 400).to(device))
    paged = device != "cpu"
    optimizer = bitsandbytes.optim.AdamW8bit([weight], is_paged=paged)
    for _ in range(3):
        weight.grad = weight.detach().sin()
        optimizer.step()
    assert getattr(optimizer.state[weight]["state1"], "is_paged", False) == paged
    return weight.detach()

for work in (layer, step):
    torch.testing.assert_close(work("cuda:1").cpu(), work("cpu"))
weight = torch.ones(4096, 4096, dtype=torch.bfloat16, device="cuda:1")
packed, state = functional.quantize_4bit(weight)
torch.cuda.reset_peak_memory_stats(1)
before = torch.cuda.memory_allocated(1)
functional.dequantize_4bit(packed, state)
assert torch.cuda.max_memory_allocated(1) - before == 2 * 4096 * 4096
"""


@pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed")
def test_quantised_layers_and_states_give_the_hosts_results(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(QUANTISED)
    output_of("-m", "anyrig", "rehearse", "--rig", "2x4GiB", str(program))
