"""`torch.compile` with its default backend, without Triton.

Inductor generates Triton kernels for a real GPU. A graph on virtual GPUs uses PyTorch's backend
"aot_eager" instead, which traces and differentiates the graph in the same way and runs it operator
by operator; on the virtual clock, operators that Inductor fuses take the time of one kernel. In
modes in which Inductor captures CUDA graphs, the backend is "cudagraphs", whose graphs contain the
same fused kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


def patch() -> None:
    """Make Inductor compile only graphs without CUDA tensors."""
    # A private class, but the only code that both `torch.compile` and `Module.compile` run.
    torch_module: Any = torch
    wrapper: Any = torch_module._TorchCompileInductorWrapper
    original_compile = wrapper.__call__

    def compile_graph(self: Any, graph: Any, inputs: list[torch.Tensor], **options: Any) -> Any:
        if not any(tensor.is_cuda for tensor in _tensors(graph, inputs)):
            return original_compile(self, graph, inputs, **options)
        from torch._dynamo.backends import cudagraphs, debugging

        captures = self.config.get("triton.cudagraphs", False)
        if captures:
            with _fused_in(cudagraphs):
                return cudagraphs.cudagraphs(graph, inputs)
        return debugging.aot_eager(
            graph, inputs, fw_compiler=compile_fused, bw_compiler=compile_fused
        )

    def compile_fused(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        from torch._dynamo.backends import debugging

        return _box_fused(debugging.boxed_nop, graph, inputs)

    wrapper.__call__ = compile_graph


def _box_fused(box: Callable[..., Any], graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
    from .fusion import mark_fused_kernels, run_with_marks

    mark_fused_kernels(graph)
    return run_with_marks(box(graph, inputs))


@contextmanager
def _fused_in(cudagraphs: Any) -> Iterator[None]:
    """Make the backend "cudagraphs" compile graphs with fused kernels within the block."""
    # A private name: the backend's compilers are local functions, which all call this one to make a
    # graph callable.
    box = cudagraphs.boxed_nop

    def box_fused(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        return _box_fused(box, graph, inputs)

    cudagraphs.boxed_nop = box_fused
    try:
        yield
    finally:
        cudagraphs.boxed_nop = box


def _tensors(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Yield the inputs, parameters, buffers and intermediate results of `graph`."""
    results = [node.meta.get("example_value") for node in graph.graph.nodes]
    for value in (*inputs, *graph.parameters(), *graph.buffers(), *results):
        for part in value if isinstance(value, tuple | list) else (value,):
            if isinstance(part, torch.Tensor):
                yield part
