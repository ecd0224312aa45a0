"""Operators of other libraries, such as torchvision's, that are built for CUDA."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch

from anyrig.virtual import compiler


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library with kernels for CUDA that need a real card."""
    source = Path(__file__).with_name("library_for_cuda.cpp")
    path = tmp_path_factory.mktemp("library") / "library_for_cuda.so"
    torch_folder = Path(torch.__file__).parent
    headers = [torch_folder / "include", torch_folder / "include/torch/csrc/api/include"]
    include = [word for folder in headers for word in ("-isystem", str(folder))]
    flags = [*compiler.compile_flags(), "-O0", *include, "-shared", f"-L{torch_folder / 'lib'}"]
    link = ["-lc10", "-ltorch_cpu", "-o", str(path)]
    command = [*compiler.Compiler.find().command, *flags, str(source), *link]
    subprocess.run(command, check=True)
    return path


def test_a_loaded_library_runs_its_kernel_for_the_cpu(library: Path) -> None:
    torch.ops.load_library(library)
    x = torch.arange(6.0, device="cuda:1").view(2, 3)

    doubled = torch.ops.anyrig_library_for_cuda.twice(x)

    assert doubled.device == x.device
    assert doubled.tolist() == [[0.0, 2.0, 4.0], [6.0, 8.0, 10.0]]
    with pytest.raises(RuntimeError, match="no CUDA-capable device"):
        torch.ops.anyrig_library_for_cuda.only_on_cards(x)


def test_a_kernel_for_cuda_written_in_python_stays() -> None:
    with torch.library._scoped_library("anyrig_in_python", "DEF") as operators:
        operators.define("which(Tensor tensor) -> Tensor")
        operators.impl("which", lambda tensor: tensor + 1, "CUDA")
        operators.impl("which", lambda tensor: tensor + 2, "CPU")

        assert torch.ops.anyrig_in_python.which(torch.zeros(1, device="cuda")).item() == 1
