"""Every name of `torch._C` that PyTorch's Python uses for CUDA exists, if only to be refused."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

FOLDER = Path(torch.__file__).parent
CORE: Any = torch._C

# `torch._C.name`, `_C.name`, and the names of `from torch._C import …` without those after `as`.
DOTTED = re.compile(r"\b_C\.(_?[A-Za-z]\w*)")
IMPORTED = re.compile(r"from torch\._C import (\([^)]*\)|[^\n(]+)")
NAME = re.compile(r"\b([A-Za-z_]\w*)(?:\s+as\s+\w+)?")
OF_CUDA = re.compile(r"cuda|cudnn|cublas|cusparse|cusolver|cufft|nccl|nvtx|nvrtc|gds|jiter", re.I)


def names_used() -> Iterator[tuple[str, str]]:
    """Yield each name with the file that uses it."""
    for file in FOLDER.rglob("*.py"):
        text = file.read_text(encoding="utf-8", errors="replace")
        if "_C" not in text:
            continue
        place = file.relative_to(FOLDER).as_posix()
        yield from ((name, place) for name in DOTTED.findall(text))
        for imported in IMPORTED.findall(text):
            without_comments = re.sub(r"#.*", "", imported)
            yield from ((name, place) for name in NAME.findall(without_comments))


def test_every_name_for_cuda_is_bound_or_refused() -> None:
    """Bind a name that fails here where its kin is bound, or add it to `refused.py`."""
    of_cuda = {name: place for name, place in names_used() if OF_CUDA.search(name)}
    assert len(of_cuda) > 100
    assert "_cuda_getDeviceCount" in of_cuda
    assert {name: place for name, place in of_cuda.items() if not hasattr(CORE, name)} == {}


@pytest.mark.virtual_only("only virtual GPUs refuse these")
@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: CORE._cudnn.getVersionInt(), "_cudnn.getVersionInt: the functions of cuDNN"),
        (lambda: CORE._cusparselt.getVersionInt(), "_cusparselt.getVersionInt: the functions of"),
        (lambda: CORE._StaticCudaLauncher._load_kernel(), "_load_kernel: a compiled kernel"),
        (lambda: CORE._FastCudaLauncher(1), "_FastCudaLauncher: a compiled kernel"),
        (lambda: CORE._cuda_getHipblasltVersion(), "belongs to AMD's GPUs"),
    ],
)
def test_names_that_need_a_real_gpu_are_refused(call: Any, words: str) -> None:
    with pytest.raises(RuntimeError, match=f"^CUDA error: virtual GPUs do not support .*{words}"):
        call()
