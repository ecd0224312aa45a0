"""Operators of other libraries built for CUDA, such as torchvision."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch

from anyrig.virtual import compiler
from anyrig.virtual.torch_files import TorchFiles


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a library whose CUDA kernels need a real GPU."""
    source = Path(__file__).with_name("library_for_cuda.cpp")
    path = tmp_path_factory.mktemp("library") / "library_for_cuda.so"
    torch_folder = Path(torch.__file__).parent
    headers = [torch_folder / "include", torch_folder / "include/torch/csrc/api/include"]
    include = [word for folder in headers for word in ("-isystem", str(folder))]
    flags = [
        *compiler.compile_flags(TorchFiles.installed()),
        "-O0",
        *include,
        "-shared",
        f"-L{torch_folder / 'lib'}",
    ]
    link = ["-lc10", "-ltorch_cpu", "-o", str(path)]
    command = [*compiler.Compiler.find().command, *flags, str(source), *link]
    subprocess.run(command, check=True)
    return path


@pytest.mark.virtual_only("a real GPU does not run kernels for the CPU")
def test_a_loaded_library_runs_its_kernel_for_the_cpu(library: Path) -> None:
    torch.ops.load_library(library)
    x = torch.arange(6.0, device="cuda:1").view(2, 3)

    doubled = torch.ops.anyrig_library_for_cuda.twice(x)

    assert doubled.device == x.device
    assert doubled.tolist() == [[0.0, 2.0, 4.0], [6.0, 8.0, 10.0]]
    with pytest.raises(RuntimeError, match="no CUDA-capable device"):
        torch.ops.anyrig_library_for_cuda.only_on_gpus(x)


def test_a_kernel_for_cuda_written_in_python_stays() -> None:
    with torch.library._scoped_library("anyrig_in_python", "DEF") as operators:
        operators.define("which(Tensor tensor) -> Tensor")
        operators.impl("which", lambda tensor: tensor + 1, "CUDA")
        operators.impl("which", lambda tensor: tensor + 2, "CPU")

        assert torch.ops.anyrig_in_python.which(torch.zeros(1, device="cuda")).item() == 1


@pytest.mark.virtual_only("a real GPU does not run kernels for the CPU")
def test_operators_that_are_defined_again_are_called_by_their_new_schemas() -> None:
    # A new schema often reuses a freed schema's memory: nearly always among fifty.
    names = [f"f{number}" for number in range(50)]
    x = torch.ones(2, device="cuda:1")
    for _ in range(2):
        with torch.library._scoped_library("anyrig_again", "DEF") as operators:
            for name in names:
                operators.define(f"{name}(Tensor x) -> Tensor")
                operators.impl(name, lambda x: x + 1, "CPU")
                assert getattr(torch.ops.anyrig_again, name).default(x).tolist() == [2.0, 2.0]
        with torch.library._scoped_library("anyrig_again", "DEF") as operators:
            for name in names:
                operators.define(f"{name}(Tensor x, Tensor(a!) y) -> (Tensor, Tensor(a!))")
                operators.impl(name, lambda x, y: (x + 2, y.add_(3)), "CPU")
                y = torch.zeros(2, device="cuda:1")
                results = getattr(torch.ops.anyrig_again, name).default(x, y)
                assert [result.tolist() for result in results] == [[3.0, 3.0], [3.0, 3.0]]
                assert [result.device for result in results] == [x.device, x.device]
                assert y.tolist() == [3.0, 3.0]


@pytest.mark.virtual_only("a real GPU does not run kernels for the CPU")
def test_an_operator_may_be_defined_again_while_one_of_its_kind_runs() -> None:
    outer, inner = "anyrig_outer", "anyrig_inner"

    def replace_inner(x: torch.Tensor) -> torch.Tensor:
        for step in (1, 2, 3):
            with torch.library._scoped_library(inner, "DEF") as operators:
                operators.define("f(Tensor x) -> Tensor")
                operators.impl("f", lambda x, step=step: x + step, "CPU")
                x = torch.ops.anyrig_inner.f.default(x.to("cuda")).cpu()
        return x

    with torch.library._scoped_library(outer, "DEF") as operators:
        operators.define("f(Tensor x) -> Tensor")
        operators.impl("f", replace_inner, "CPU")
        result = torch.ops.anyrig_outer.f.default(torch.zeros(1, device="cuda:1"))
    assert result.item() == 6
    assert result.device == torch.device("cuda", 1)


@pytest.mark.virtual_only("a real GPU does not run kernels for the CPU")
@pytest.mark.parametrize("namespace", ["x", "test", "anyrig_rules"])
def test_an_operator_called_as_one_of_pytorch_has_rules_of_its_own(namespace: str) -> None:
    # On CUDA, PyTorch's own `mm` refuses integers and its `cumsum` is nondeterministic.
    with torch.library._scoped_library(namespace, "DEF") as operators:
        for name, kernel in (("mm", torch.mm), ("cumsum", torch.add)):
            operators.define(f"{name}(Tensor a, Tensor b) -> Tensor")
            operators.impl(name, kernel, "CPU")
        a = torch.tensor([[1, 2], [3, 4]], device="cuda:1")
        named = getattr(torch.ops, namespace)

        assert named.mm.default(a, a).tolist() == [[7, 10], [15, 22]]
        torch.use_deterministic_algorithms(True)
        try:
            assert named.cumsum.default(a, a).tolist() == [[2, 4], [6, 8]]
        finally:
            torch.use_deterministic_algorithms(False)
        with pytest.raises(RuntimeError, match=r"in method wrapper_CUDA__mm\)"):
            named.mm.default(a, a.to("cuda:2"))
