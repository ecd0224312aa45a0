"""Driver libraries that are not there, built once: the tests load them through the real pynvml."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def driver_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a libnvidia-ml.so.1 whose answers come from a scenario."""
    if sys.platform != "linux":
        pytest.skip("the stand-in of the NVIDIA driver is a Linux library")
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed, and builds the stand-in of the NVIDIA driver")
    directory = tmp_path_factory.mktemp("driver")
    source, library = HERE / "nvml_stand_in.cpp", directory / "libnvidia-ml.so.1"
    subprocess.run(
        ["g++", "-shared", "-fPIC", "-std=c++17", "-Wall", "-o", library, source], check=True
    )
    return directory


@pytest.fixture
def environment_with_gpus(
    driver_directory: Path, tmp_path: Path
) -> Callable[[str], dict[str, str]]:
    """Write a scenario (its words are in nvml_stand_in.cpp) and return the environment in which a
    subprocess finds that driver: ``subprocess.run(…, env=environment_with_gpus("GPU …"))``.
    """

    def write(scenario: str) -> dict[str, str]:
        path = tmp_path / "scenario.txt"
        path.write_text(scenario)
        search = [str(driver_directory), os.environ.get("LD_LIBRARY_PATH", "")]
        return {
            **os.environ,
            "LD_LIBRARY_PATH": ":".join(filter(None, search)),
            "NVML_STAND_IN": str(path),
        }

    return write
