"""The records of a graph's memory, where the host cannot map memory at the graph's addresses."""

from __future__ import annotations

import sys

import pytest
from on_a_rig import output_of_lines


@pytest.mark.skipif(sys.platform != "linux", reason="uses the flags of Linux's mmap")
def test_records_of_freed_graphs_are_removed() -> None:
    most, values = output_of_lines(
        """
        import ctypes
        import gc
        import torch
        from anyrig.virtual import install, load_extension
        install("1xT4")
        core = load_extension()

        # Occupy the addresses of the device.
        mmap = ctypes.CDLL(None).mmap
        mmap.restype = ctypes.c_void_p
        mmap.argtypes = [
            ctypes.c_void_p, ctypes.c_size_t, *(3 * [ctypes.c_int]), ctypes.c_long
        ]
        private_fixed_anonymous_noreserve = 0x4032
        assert mmap(1 << 44, 1 << 40, 0, private_fixed_anonymous_noreserve, -1, 0) == 1 << 44

        stream = torch.cuda.Stream()
        x = torch.ones(4, device="cuda")
        counts, values = [], set()
        gc.freeze()  # each capture collects garbage
        for _ in range(80):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                y = x + 1
                z = y * 2
            graph.replay()
            values.add(z.sum().item())
            del graph, y, z
            torch.cuda.empty_cache()
            counts.append(core.count_pool_bytes(0))
        print(max(counts))
        print(values)
        """
    )
    assert 0 < int(most) <= 64
    assert values == "{16.0}"
