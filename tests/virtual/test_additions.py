"""What `csrc/README.md` tells developers to add: an operator and a GPU model, in one file each.

The tests take both from the page itself and add them to a copy of the package.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import anyrig
from anyrig.virtual.compiler import Compiler, compile_flags, header_flags
from anyrig.virtual.torch_files import TorchFiles

PACKAGE = Path(anyrig.__file__).parent
PAGE = PACKAGE / "virtual" / "csrc" / "README.md"

USES_GPU = """
import anyrig.virtual
anyrig.virtual.install("2xFictitious-24GB")
import torch
from anyrig.virtual import clock
facts = torch.cuda.get_device_properties(1)
print(facts.name, facts.multi_processor_count, (facts.major, facts.minor))
x = torch.ones(2048, 2048, device="cuda:1")
try:
    torch.empty(2**35, device="cuda:1")
except torch.OutOfMemoryError as error:
    print("total capacity of 23.50 GiB" in str(error))
x @ x
print(clock().devices[1].compute_seconds > 2 * 2048**3 / 60e12)
"""

USES_OPERATOR = """
import sys
import anyrig.virtual
anyrig.virtual.install("1xA100-40GB", shape_only=sys.argv[1] == "shapes")
import torch
cube = torch.ops.fictitious.cube
x = torch.arange(4.0).cuda()
print(cube(x).tolist() if sys.argv[1] == "compute" else cube(torch.ones(5).cuda() * x[0]).shape)
for refused in (torch.ones(2, 2), torch.ones(2, dtype=torch.long)):
    try:
        cube(refused.cuda())
    except (NotImplementedError, RuntimeError) as error:
        print(f"{type(error).__name__}: {error}".splitlines()[0])
torch.use_deterministic_algorithms(True)
try:
    cube(x)
except RuntimeError as error:
    print(str(error).split(" ")[0])
"""


def block_of_page(language: str) -> str:
    (block,) = re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert isinstance(block, str)
    return block


@pytest.fixture
def copied_package(tmp_path: Path) -> Path:
    """Return a folder with a copy of the package, which a new process can import."""
    shutil.copytree(PACKAGE, tmp_path / "anyrig", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def output_in(folder: Path, *arguments: str, **environment: str) -> list[str]:
    own = {name: value for name, value in os.environ.items() if name != "ANYRIG_REHEARSAL"}
    ended = subprocess.run(
        [sys.executable, "-c", *arguments],
        env={**own, "PYTHONPATH": str(folder), **environment},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


def test_a_gpu_is_one_table(copied_package: Path) -> None:
    with (copied_package / "anyrig/hardware/specs.toml").open("a") as file:
        file.write("\n" + block_of_page("toml"))
    assert output_in(copied_package, USES_GPU) == [
        "NVIDIA Fictitious 24GB 64 (8, 6)",
        "True",
        "True",
    ]


def test_the_operator_of_the_page_compiles(tmp_path: Path) -> None:
    source = tmp_path / "fictitious.cpp"
    source.write_text(block_of_page("cpp"))
    torch = TorchFiles.installed()
    flags = [*compile_flags(torch), "-iquote", str(PAGE.parent), *header_flags(torch)]
    subprocess.run([*Compiler.find().command, *flags, "-fsyntax-only", str(source)], check=True)


@pytest.mark.sweep  # builds the backend: two minutes
def test_an_operator_is_one_file(copied_package: Path, tmp_path: Path) -> None:
    operators = copied_package / "anyrig/virtual/csrc/operators"
    (operators / "fictitious.cpp").write_text(block_of_page("cpp"))
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    refusals = [
        "RuntimeError: cube(): expected a vector",
        "NotImplementedError: \"cube_cuda\" not implemented for 'Long'",
        "cube_cuda",
    ]
    assert output_in(copied_package, USES_OPERATOR, "compute", **cache) == [
        "[0.0, 1.0, 8.0, 27.0]",
        *refusals,
    ]
    assert output_in(copied_package, USES_OPERATOR, "shapes", **cache) == [
        "torch.Size([5])",
        *refusals,
    ]
