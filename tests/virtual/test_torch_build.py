"""Published builds of PyTorch: the table, the GPUs for which each has kernels, and the wheels."""

from __future__ import annotations

import json
import re
from importlib import resources
from pathlib import Path

import pytest
import torch
from on_a_rig import output_of_lines

from anyrig.hardware import specs
from anyrig.virtual import torch_build
from anyrig.virtual.torch_build import TorchBuild, published_builds
from anyrig.virtual.torch_version import NEWEST, OLDEST, major_and_minor
from forked_programs import run_forked

MINORS = [(OLDEST[0], minor) for minor in range(OLDEST[1], NEWEST[1] + 1)]
CAPABILITIES = sorted({spec.capability for spec in specs().values() if spec.capability})

needs_cuda_build = pytest.mark.skipif(
    "+cu" not in torch.__version__, reason="needs a build of PyTorch for CUDA"
)


def test_each_version_has_one_build_on_pypi_whose_versions_are_known() -> None:
    assert sorted({build.torch for build in published_builds()}) == MINORS
    on_pypi = [build for build in published_builds() if build.on_pypi]
    assert [build.torch for build in on_pypi] == MINORS
    assert all(build.nccl and build.cudnn for build in on_pypi)


def test_the_newest_builds_for_old_gpus_have_known_versions() -> None:
    for torch_version in MINORS:
        builds = [build for build in published_builds() if build.torch == torch_version]
        with_volta = [build for build in builds if build.has_kernels_for((7, 0))]
        assert [build.cuda for build in with_volta] == ["12.6"] * (torch_version < (2, 15))
        assert all(build.nccl and build.cudnn for build in with_volta)


def test_each_key_names_the_version_of_cuda_and_has_a_source() -> None:
    text = resources.files("anyrig.virtual").joinpath("torch_builds.toml").read_text()
    for key, table in torch_build.tomllib.loads(text).items():
        assert key.partition("+")[2] == f"cu{table['cuda'].replace('.', '')}"
        assert table["source"]


def test_the_documentation_has_the_same_table() -> None:
    def dotted(numbers: tuple[int, ...] | None) -> str:
        return "unknown" if numbers is None else ".".join(map(str, numbers))

    page = (Path(__file__).parents[2] / "docs" / "virtual_kernels.md").read_text()
    for build in published_builds():
        cudnn = build.cudnn and (build.cudnn // 10000, build.cudnn // 100 % 100, build.cudnn % 100)
        cells = (
            dotted(build.torch),
            f"**{build.cuda}**" if build.on_pypi else build.cuda,
            " ".join(build.architectures),
            dotted(build.nccl),
            dotted(cudnn or None),
        )
        assert f"| {' | '.join(cells)} |\n" in page
    assert len(re.findall(r"^\| 2\.", page, re.MULTILINE)) == len(published_builds())


@pytest.mark.parametrize(
    ("architecture", "runs_on"),
    [
        ("sm_70", {(7, 0), (7, 5)}),
        ("sm_75", {(7, 5)}),
        ("sm_80", {(8, 0), (8, 6), (8, 9)}),
        ("sm_86", {(8, 6), (8, 9)}),
        ("sm_90a", {(9, 0)}),
        ("sm_100f", {(10, 0), (10, 3)}),
        ("sm_120", {(12, 0)}),
        ("compute_80", {(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0)}),
        ("compute_90a", {(9, 0)}),
        ("gfx942", set()),
    ],
)
def test_code_runs_where_cuda_runs_it(architecture: str, runs_on: set[tuple[int, int]]) -> None:
    build = TorchBuild(torch=(2, 13), cuda="13.0", architectures=(architecture,))
    assert {one for one in CAPABILITIES if build.has_kernels_for(one)} == runs_on


def test_machine_code_runs_where_pytorch_says() -> None:
    required = vars(torch.cuda)["DEVICE_REQUIREMENT"]
    codes = {code for build in published_builds() for code in build.architectures}
    for code in sorted(codes):
        build = TorchBuild(torch=(2, 13), cuda="13.0", architectures=(code,))
        for major, minor in CAPABILITIES:
            says = 10 * major + minor in required[int(code.removeprefix("sm_"))]
            assert build.has_kernels_for((major, minor)) == says, (code, major, minor)


def test_a_build_that_lists_no_kernels_is_not_doubted() -> None:
    assert TorchBuild(torch=(2, 13), cuda="13.0", architectures=()).has_kernels_for((7, 0))


READ = """
import json
import torch
print(json.dumps([
    torch.version.cuda,
    torch._C._cuda_getCompiledVersion(),
    torch._C._cuda_getArchFlags(),
    torch.cuda.nccl.version(),
    torch.backends.cudnn.version(),
]))
"""


@needs_cuda_build
def test_the_table_says_what_the_wheel_says() -> None:
    done = run_forked("-c", READ)
    cuda, _, flags, nccl, cudnn = json.loads(done.stdout)
    here = major_and_minor(torch.__version__)
    (build,) = (one for one in published_builds() if (one.torch, one.cuda) == (here, cuda))
    assert build.architectures == tuple(flags.split())
    assert build.nccl in (None, tuple(nccl))
    assert build.cudnn in (None, cudnn)


@needs_cuda_build
def test_virtual_gpus_change_nothing_of_what_the_wheel_says() -> None:
    alone = run_forked("-c", READ).stdout.splitlines()
    assert output_of_lines(f"import anyrig.virtual\nanyrig.virtual.install('T4')\n{READ}") == alone


@pytest.mark.skipif("+cpu" not in torch.__version__, reason="needs a CPU build of PyTorch")
def test_a_cpu_build_says_what_the_build_on_pypi_says() -> None:
    (said,) = output_of_lines(f"import anyrig.virtual\nanyrig.virtual.install('T4')\n{READ}")
    here = major_and_minor(torch.__version__)
    (build,) = (one for one in published_builds() if one.torch == here and one.on_pypi)
    assert json.loads(said) == [
        build.cuda,
        build.cuda_number,
        " ".join(build.architectures),
        list(build.nccl or ()),
        build.cudnn,
    ]
