"""Knowing that CUDA has started, and which line started it; in processes of their own."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

# What a CUDA build of PyTorch has and a CPU build lacks, so that the rest, all of it Python, runs.
# The queue holds PyTorch's own checks of the GPU too, which need one.
CUDA_BUILD = """
import torch
torch._C._cuda_getDeviceCount = lambda: 1
torch._C._cuda_init = lambda: None
torch.cuda._cudart = object()
del torch.cuda._queued_calls[:]
"""
UNWATCHED = (
    "PyTorch started it; to find the line, call "
    "anyrig.devices.watch_cuda_start() at the very start of the program"
)


def run(directory: Path, program: str, **files: str) -> list[str]:
    """Run a program next to the modules in `files`, and return the lines it printed."""
    for name, text in {"program": program, **files}.items():
        (directory / f"{name}.py").write_text(textwrap.dedent(text))
    done = subprocess.run(
        [sys.executable, "-W", "error", "program.py"],
        cwd=directory,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "0"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def driver(driver_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A libcuda.so.1 (the other directory is asked for because it skips where this would)."""
    library = tmp_path_factory.mktemp("cuda") / "libcuda.so.1"
    source = Path(__file__).parent / "cuda_stand_in.cpp"
    soname = "-Wl,-soname,libcuda.so.1"
    subprocess.run(["g++", "-shared", "-fPIC", soname, "-o", library, source], check=True)
    return library


def test_asking_imports_and_starts_nothing(tmp_path: Path) -> None:
    program = """
    import sys
    from anyrig.devices.cuda_start import cuda_start
    print(cuda_start(), 'torch' in sys.modules)
    """
    assert run(tmp_path, program) == ["None False"]


def test_the_line_and_the_import_that_started_cuda_are_named(tmp_path: Path) -> None:
    program = f"""
    from anyrig.devices.cuda_start import watch_cuda_start, cuda_start
    from anyrig.devices.hiding import write_visibility
    from anyrig.errors import TooLateError
    {CUDA_BUILD.replace(chr(10), chr(10) + "    ")}
    print(watch_cuda_start(), watch_cuda_start(), cuda_start())
    import outer
    start = cuda_start()
    print(start.line, start.imports)
    write_visibility(['GPU-0'], environ={{}})  # another environment is never too late
    try:
        write_visibility(['GPU-1'])
    except TooLateError as error:
        print(error)
    """
    inner = """
    import torch

    def warm_up():
        torch.cuda.init()

    warm_up()
    """
    lines = run(tmp_path, program, outer="import inner\n", inner=inner)
    place = f"{tmp_path / 'inner.py'}:5"
    assert lines == [
        "True True None",
        f"{place} ('outer', 'inner')",
        "CUDA_VISIBLE_DEVICES is '0' and cannot become 'GPU-1': CUDA has started in this process "
        f"and read it then. What started it: {place} in warm_up() started it, while outer > inner "
        "was imported. Set it earlier, or for the whole program: "
        "`CUDA_VISIBLE_DEVICES=GPU-1 python …`",
    ]


def test_a_start_outside_an_import_is_named_alone(tmp_path: Path) -> None:
    program = f"""
    from anyrig.devices.cuda_start import watch_cuda_start, cuda_start
    {CUDA_BUILD.replace(chr(10), chr(10) + "    ")}
    watch_cuda_start()
    torch.cuda.init()
    print(cuda_start().reason)
    """
    number = textwrap.dedent(program).splitlines().index("torch.cuda.init()") + 1
    assert run(tmp_path, program) == [f"{tmp_path / 'program.py'}:{number} started it"]


def test_an_unwatched_start_says_how_to_watch_and_a_fork_of_it_is_too_late(tmp_path: Path) -> None:
    program = f"""
    from anyrig.devices.cuda_start import watch_cuda_start, cuda_start
    {CUDA_BUILD.replace(chr(10), chr(10) + "    ")}
    torch.cuda.init()
    print(cuda_start().reason)
    print(watch_cuda_start())
    # What PyTorch's C part answers in a child that was forked after the start.
    torch.cuda._is_in_bad_fork = lambda: True
    print(cuda_start().reason)
    """
    assert run(tmp_path, program) == [
        UNWATCHED,
        "False",
        "it had started before this process was forked; start processes with the method 'spawn' "
        "or 'forkserver', or fork before CUDA is used",
    ]


def test_a_driver_that_was_started_without_pytorch_is_noticed(tmp_path: Path, driver: Path) -> None:
    program = f"""
    import ctypes, sys
    from anyrig.devices.cuda_start import cuda_start, watch_cuda_start
    driver = ctypes.CDLL({str(driver)!r})
    print(cuda_start())
    driver.cuInit(0)
    print(cuda_start().reason)
    print(watch_cuda_start(), 'torch' in sys.modules)
    """
    assert run(tmp_path, program) == [
        "None",
        "the CUDA driver was started directly, as torch.cuda.is_available() and other CUDA "
        "libraries do; for starts by PyTorch, to find the line, call "
        "anyrig.devices.watch_cuda_start() at the very start of the program",
        "False False",
    ]


def test_a_watched_process_names_the_libraries_that_may_have_started_the_driver(
    tmp_path: Path, driver: Path
) -> None:
    program = f"""
    import ctypes, sys
    from anyrig.devices.cuda_start import cuda_start, watch_cuda_start
    driver = ctypes.CDLL({str(driver)!r})
    print(watch_cuda_start())
    import cupy
    driver.cuInit(0)
    print(cuda_start().reason)
    print("cuda" in sys.modules)
    """
    # From 2.14 on, a PyTorch for CUDA imports NVIDIA's bindings, the module `cuda`.
    *found, has_bindings = run(tmp_path, program, cupy="")
    libraries = "torch, cupy, cuda" if has_bindings == "True" else "torch, cupy"
    assert found == [
        "True",
        "the CUDA driver was started directly, as torch.cuda.is_available() and other CUDA "
        f"libraries do; imported libraries that can do this: {libraries}",
    ]
