"""The C library's heap stays the program's: virtual GPUs change no setting of it."""

from __future__ import annotations

import platform

import pytest
from on_a_rig import output_of_lines


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc describes its arenas")
def test_threads_allocate_from_an_arena_each() -> None:
    # A loader's threads would otherwise wait for each other at each allocation.
    before, after = map(
        int,
        output_of_lines(
            """
            import ctypes
            import tempfile
            import threading
            import torch
            from anyrig.virtual import install
            install("1xT4")
            torch.ones(1000, device="cuda")
            libc = ctypes.CDLL(None)
            libc.fopen.restype = ctypes.c_void_p

            def count_arenas():
                with tempfile.NamedTemporaryFile() as file:
                    opened = ctypes.c_void_p(libc.fopen(file.name.encode(), b"w"))
                    libc.malloc_info(0, opened)
                    libc.fclose(opened)
                    return file.read().count(b"<heap nr=")

            def allocate():
                libc.free(ctypes.c_void_p(libc.malloc(1000)))
                allocated.wait()
                counted.wait(60)

            libc.malloc.restype = ctypes.c_void_p
            allocated, counted = threading.Barrier(4), threading.Event()
            print(count_arenas())
            threads = [threading.Thread(target=allocate) for _ in range(3)]
            for thread in threads:
                thread.start()
            allocated.wait(60)
            print(count_arenas())
            counted.set()
            """,
            fresh=True,  # the threads of another process leave arenas behind
        ),
    )
    assert after - before >= 2


def test_memory_comes_back_by_size_from_any_thread() -> None:
    # With a size of whole huge pages, one that malloc maps, and one from its heap.
    assert (
        output_of_lines(
            """
        import threading
        import torch
        from anyrig.virtual import install
        install("1xT4")

        def address(count):
            # Not of the block that was freed last: the blocks' own cache holds small ones.
            return torch.empty(count, dtype=torch.uint8, device="cuda").data_ptr()

        for size in (4 << 20, 300_000, 20_000):
            found = []
            thread = threading.Thread(target=lambda: found.append(address(size)))
            thread.start()
            thread.join(60)
            print(found[0] == address(size) == address(size - 1))
        """
        )
        == ["True"] * 3
    )


def test_memory_of_the_largest_sizes_that_are_kept() -> None:
    assert (
        output_of_lines(
            """
        import torch
        from anyrig.virtual import install
        install("1xT4")
        for size in (30, 32, 34, 32):
            print(torch.ones(size << 20, dtype=torch.uint8, device="cuda")[-1].item())
        """
        )
        == ["1"] * 4
    )
