"""What the CUDA context and NCCL take counts on the GPU, but not as memory of tensors."""

from __future__ import annotations

import pytest
from on_a_rig import output_of_lines

MIB = 2**20
UNUSED = "1341 OutsideMemory(context_bytes=0, communication_bytes=0, mapped_bytes=0)"


def test_a_v100_shows_what_hugging_face_published() -> None:
    # "Model training anatomy": 1343 MB when CUDA has started, 2631 MB with BERT-large loaded.
    before, started, loaded, allocated = output_of_lines(
        """
        from anyrig.virtual import install
        install("V100-16GB", shape_only=True, without_kernels=True)
        import torch
        def used():
            return torch.cuda.device_memory_used() // 2**20
        print(used())
        one = torch.ones((1, 1), device="cuda")
        print(used())
        # The parameters of BertForSequenceClassification, bert-large-uncased.
        wide, inner, words = 1024, 4096, 30522
        layer = [(wide, wide), (wide,)] * 4 + [(wide,)] * 4
        layer += [(inner, wide), (inner,), (wide, inner), (wide,)]
        shapes = [(words, wide), (512, wide), (2, wide), (wide,), (wide,)]
        shapes += layer * 24 + [(wide, wide), (wide,), (2, wide), (2,)]
        model = [torch.empty(shape, device="cuda") for shape in shapes]
        print(used())
        print(torch.cuda.memory_allocated() // 2**20)
        """
    )
    assert int(before) == 0
    assert int(started) == 1343
    assert int(loaded) == pytest.approx(2631, rel=0.03)
    assert int(allocated) == pytest.approx(335_143_938 * 4 / MIB, rel=0.01)


def test_the_context_is_part_of_a_process_and_of_an_out_of_memory_error() -> None:
    assert output_of_lines(
        """
        from anyrig.virtual import install, memory_outside_allocator
        install("2xV100-16GB", without_kernels=True)
        import torch
        free, total = torch.cuda.mem_get_info()
        print((total - free) // 2**20, torch.cuda.memory_reserved())
        print(memory_outside_allocator(0).context_bytes // 2**20, memory_outside_allocator(1))
        print(torch.cuda.device_memory_used(1), torch.cuda.list_gpu_processes(1).splitlines())
        try:
            torch.empty(2**40, device="cuda", dtype=torch.uint8)
        except torch.OutOfMemoryError as error:
            print("this process has 1.31 GiB memory in use" in str(error))
        try:
            torch.empty(total - 1000 * 2**20, device="cuda", dtype=torch.uint8)
        except torch.OutOfMemoryError:
            print("full")
        """
    ) == [
        "1341 0",
        UNUSED,
        "0 ['GPU:1', 'no processes are running']",
        "True",
        "full",
    ]


def test_a_plain_gpu_has_exactly_its_memory() -> None:
    assert output_of_lines(
        """
        from anyrig.virtual import install
        install("1x64MiB")
        import torch
        whole = torch.empty(64 * 2**20, device="cuda", dtype=torch.uint8)
        print(torch.cuda.mem_get_info())
        """
    ) == [f"(0, {64 * MIB})"]


def test_a_context_that_does_not_fit_is_cudas_error() -> None:
    lines = output_of_lines(
        """
        from anyrig.virtual import install
        install("V100-16GB", shape_only=True, without_kernels=True)
        import torch
        from anyrig.virtual.build import load_extension
        core = load_extension()
        total = core.memory_info(0)[1]
        held = torch.empty(total - 1400 * 2**20, device="cuda", dtype=torch.uint8)
        import subprocess, sys
        source = (
            "import torch\\n"
            "try: torch.ones(1, device='cuda')\\n"
            "except torch.AcceleratorError as error: print(str(error).splitlines()[0])"
        )
        child = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
        print(child.stdout)
        """,
        fresh=True,
    )
    assert lines[0].strip() == "CUDA error: out of memory"


def test_a_process_opens_no_context_when_it_ends() -> None:
    lines = output_of_lines(
        """
        import atexit
        from anyrig.virtual import install, memory_outside_allocator
        def show():
            print(memory_outside_allocator(0))
            print(memory_outside_allocator(1).context_bytes // 2**20)
        atexit.register(show)  # registered first, so that it runs last
        install("2xV100-16GB", without_kernels=True)
        import torch
        torch.ones(1, device="cuda:1")
        """
    )
    assert lines == [UNUSED.removeprefix("1341 "), "1341"]


def test_a_thread_takes_over_the_cublas_handle_of_one_that_ended() -> None:
    first, second, both = output_of_lines(
        """
        from pathlib import Path
        from threading import Barrier, Thread
        from time import sleep
        from anyrig.virtual import install, memory_outside_allocator
        install("H100-SXM")
        import torch
        one = torch.ones(8, 8, device="cuda")
        together = Barrier(2)
        def multiply(waits=False):
            one @ one
            if waits:
                together.wait()
        def run(count, *arguments):
            threads = [Thread(target=multiply, args=arguments) for _ in range(count)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()  # before Python 3.13, its thread-local objects may outlive this
                while Path(f"/proc/self/task/{thread.native_id}").exists():
                    sleep(0.001)
            print(memory_outside_allocator(0).context_bytes)
        run(1)
        run(1)
        run(2, True)
        """
    )
    assert int(first) == int(second) < int(both)
