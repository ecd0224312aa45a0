"""The build hook of the wheel: compile the libraries for each version of PyTorch.

A published wheel of PyTorch has all that a compiler and a linker need, so it is only unpacked. Only
running PyTorch needs CUDA's libraries, 3 GB for each version. The compiled libraries are kept below
``build`` in the repository, as `anyrig.virtual.library_cache` keeps those of a user.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

REPOSITORY = Path(__file__).parents[2]
PACKAGE = "anyrig_virtual"

# The versions of PyTorch to compile for, if not all.
VARIABLE = "ANYRIG_VIRTUAL_TORCH"

# What the compiler and the linker read.
USED_FOLDERS = ("torch/include/",)
USED_FILES = (
    "torch/version.py",
    *(f"torch/lib/lib{name}.so" for name in ("c10", "torch", "torch_cpu", "torch_python")),
)
# Whose code becomes part of the libraries, by its headers.
BUNDLED = ("LICENSE", "NOTICE", "third_party/pybind11/LICENSE", "third_party/fmt/LICENSE")


class CompiledLibraries(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the libraries, their hashes and the licences to the wheel."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile what a wheel has; an editable installation has nothing, and anyrig compiles."""
        if self.target_name != "wheel" or version == "editable":
            return
        sys.path.insert(0, str(REPOSITORY / "src"))
        os.environ["XDG_CACHE_HOME"] = str(REPOSITORY / "build")
        self._place = Path(tempfile.mkdtemp(prefix="anyrig-virtual-"))
        files = {REPOSITORY / "LICENSE": "licenses/anyrig/LICENSE"}
        files |= self._compile_driver()
        wanted = os.environ.get(VARIABLE, "").split() or self.config["torch"]
        for torch_version in wanted:
            files |= self._compile_for(torch_version)
        build_data["force_include"] |= {
            str(file): f"{PACKAGE}/{path}" for file, path in files.items()
        }
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what `initialize` has unpacked."""
        if hasattr(self, "_place"):
            shutil.rmtree(self._place)

    def _compile_for(self, torch_version: str) -> dict[Path, str]:
        """Compile the extension for a version of PyTorch.

        Returns:
            The library, its record and PyTorch's licences, with their paths in the package.
        """
        from anyrig.virtual.build import LIBRARY, SOURCES, build_folder, compile_library
        from anyrig.virtual.compiler import Compiler
        from anyrig.virtual.library_cache import build_once
        from anyrig.virtual.torch_files import TorchFiles

        wheel = _download(torch_version, self._place)
        folder = self._place / torch_version
        licences = _unpack(wheel, folder)
        wheel.unlink()
        torch = TorchFiles.unpacked(folder / "torch")
        if not torch.is_published or torch.release != torch_version:
            raise RuntimeError(
                f"pip has found PyTorch {torch.version}, which is not a published build of "
                f"{torch_version}"
            )
        compiler = Compiler.find()
        kept = build_folder(compiler, torch, SOURCES)
        library = build_once(kept / LIBRARY, partial(compile_library, compiler, torch, SOURCES))
        shutil.rmtree(folder / "torch")
        return licences | self._strip(library, kept.parent.name)

    def _compile_driver(self) -> dict[Path, str]:
        """Compile NVML's library; return it and its record, with their paths in the package."""
        from anyrig.virtual.extras.driver.library import build_library, library_key

        return self._strip(build_library(), library_key())

    def _strip(self, library: Path, key: str) -> dict[Path, str]:
        """Copy `library` without symbols that nothing reads; return the copy and its record."""
        from anyrig.virtual.library_cache import record_of, write_record

        copy = self._place / key / library.name
        copy.parent.mkdir()
        subprocess.run(["strip", "--strip-unneeded", "-o", copy, library], check=True)
        copy.chmod(0o644)
        write_record(copy)
        return {file: f"{key}/{file.name}" for file in (copy, record_of(copy))}


def _download(version: str, folder: Path) -> Path:
    """Return PyTorch's wheel for this Python, without its dependencies."""
    words = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    words += ["--only-binary", ":all:", "--dest", str(folder), f"torch=={version}"]
    subprocess.run(words, check=True)
    return next(folder.glob("torch-*.whl"))


def _unpack(wheel: Path, folder: Path) -> dict[Path, str]:
    """Unpack the headers, libraries and licences; return the licences and their paths."""
    licences = {}
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.startswith(USED_FOLDERS) or name in USED_FILES:
                archive.extract(name, folder)
            _, is_licence, licence = name.partition(".dist-info/licenses/")
            if is_licence and licence in BUNDLED:
                path = f"licenses/torch-{folder.name}/{licence}"
                licences[Path(archive.extract(name, folder))] = path
    return licences
