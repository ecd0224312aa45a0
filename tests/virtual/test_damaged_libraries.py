"""Real libraries, truncated or changed by a bit: each process ends as it should, none is killed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from anyrig.virtual.build import build_extension
from anyrig.virtual.extras.driver.library import build_library
from anyrig.virtual.library_cache import cache_folder
from forked_programs import run_anyrig

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="NVML is asked so on Linux only")

KERNEL = """
import torch
from torch.cuda.jiterator import _create_jit_fn
twice = _create_jit_fn("template <typename T> T twice_as(T x) { return x + x; }")
print(twice(torch.ones(2, device="cuda")).tolist())
"""


def truncate(library: Path) -> None:
    os.truncate(library, library.stat().st_size // 3)


def change_code(library: Path) -> None:
    """Overwrite the middle, where the code is, with what ends a process that runs it."""
    content = bytearray(library.read_bytes())
    third = len(content) // 3
    content[third : 2 * third] = b"\xcc" * third
    library.write_bytes(content)


damages = pytest.mark.parametrize("damage", [truncate, change_code])


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache with a copy of the libraries of this machine."""
    copy = tmp_path / "cache"
    for library in (build_extension(), build_library()):
        below = library.parent.relative_to(cache_folder())
        shutil.copytree(library.parent, copy / "anyrig" / "virtual" / below)
    return copy


def anyrig(
    *words: str, cache: Path, cwd: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    return run_anyrig(*words, cwd=cwd, XDG_CACHE_HOME=str(cache), **environment)


@damages
def test_a_damaged_extension_is_an_error_where_it_cannot_be_built(
    damage: Callable[[Path], None], cache: Path, tmp_path: Path
) -> None:
    library = next(cache.rglob("anyrig_virtual_extension.so"))
    damage(library)
    (tmp_path / "script.py").write_text("import torch; print(torch.cuda.device_count())")
    done = subprocess.run(
        [sys.executable, "-m", "anyrig", "rehearse", "--rig", "T4", "script.py"],
        env={**os.environ, "XDG_CACHE_HOME": str(cache), "CXX": "absent-g++"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"anyrig: error: {library} is damaged, or another user")
    assert "the compiler 'absent-g++', which CXX names," in done.stderr


@damages
def test_building_ahead_repairs_nvmls_library(
    damage: Callable[[Path], None], cache: Path, tmp_path: Path
) -> None:
    library = next(cache.rglob("libnvidia-ml.so.1"))
    whole = library.read_bytes()
    damage(library)
    done = anyrig("virtual", "build", cache=cache, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith(f"anyrig: {library} is damaged, or another user could have")
    assert library.read_bytes() == whole
    again = anyrig("virtual", "build", cache=cache, cwd=tmp_path)
    assert (again.returncode, again.stderr) == (0, "")


def test_a_damaged_command_and_kernel_are_made_again(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(KERNEL)
    (tmp_path / "shell.py").write_text("import os; print(os.system('nvidia-smi -L'))")

    def rehearse(script: str) -> tuple[int, str, str]:
        words = ("rehearse", "--quiet", "--rig", "T4", script)
        done = anyrig(*words, cache=cache, cwd=tmp_path)
        return done.returncode, done.stdout, done.stderr

    assert rehearse("script.py") == (0, "[2.0, 2.0]\n", "")
    kernel = next(cache.rglob("jiterator/*/kernel.so"))
    whole = kernel.read_bytes()
    truncate(kernel)
    status, out, err = rehearse("script.py")
    assert (status, out) == (0, "[2.0, 2.0]\n")
    assert err.startswith(f"anyrig: {kernel} is damaged")
    assert len(kernel.read_bytes()) == len(whole)
    for command in cache.rglob("nvidia-smi"):
        truncate(command)
    status, out, err = rehearse("shell.py")
    assert (status, err) == (0, "")
    assert out.startswith("GPU 0: Tesla T4 (UUID: GPU-")
    assert out.endswith("\n0\n")


def test_a_full_folder_for_temporary_files_is_an_error(tmp_path: Path) -> None:
    """In a mount of its own, which this process does not see."""
    place = tmp_path / "full"
    place.mkdir()
    (tmp_path / "script.py").write_text("import torch; torch.ones(2, device='cuda'); print('ran')")
    mount = f"mount -t tmpfs -o size=64k none {place}"
    in_a_mount = ["unshare", "--mount", "--", "/bin/sh", "-c"]
    if shutil.which("unshare") is None or subprocess.run([*in_a_mount, mount]).returncode != 0:
        pytest.skip("this user may not mount a small file system")
    # A page is left, so that Python takes the folder for usable, and 512 GPUs need two.
    fill = f"{mount} && head -c 60K /dev/zero > {place}/filler"
    rehearse = f"{sys.executable} -m anyrig rehearse --rig '8x(64x1GiB)' script.py"
    done = subprocess.run(
        [*in_a_mount, f"{fill} && exec {rehearse}"],
        env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(place)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    assert f"anyrig: error: the virtual GPUs cannot be shared through {place}/" in done.stderr
    assert "no room for " in done.stderr
    assert "No space left on device; set TMPDIR to a writable folder" in done.stderr
