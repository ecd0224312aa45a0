"""`torch.compile` with its default backend, without Triton.

Inductor writes Triton kernels for a card. A graph on virtual devices goes through PyTorch's backend
"aot_eager" instead: traced and differentiated ahead just so, then run operator by operator. In
modes in which Inductor captures CUDA graphs it is "cudagraphs", which captures them just so, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch


def patch() -> None:
    """Let Inductor take the graphs of the CPU alone."""
    # Private, and the one place that `torch.compile` and `Module.compile` both pass.
    torch_module: Any = torch
    wrapper: Any = torch_module._TorchCompileInductorWrapper
    compile_elsewhere = wrapper.__call__

    def compile_graph(self: Any, graph: Any, inputs: list[torch.Tensor], **options: Any) -> Any:
        if not any(tensor.is_cuda for tensor in _tensors(graph, inputs)):
            return compile_elsewhere(self, graph, inputs, **options)
        from torch._dynamo.backends import cudagraphs, debugging

        captures = self.config.get("triton.cudagraphs", False)
        return (cudagraphs.cudagraphs if captures else debugging.aot_eager)(graph, inputs)

    wrapper.__call__ = compile_graph


def _tensors(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Yield what goes into `graph` and what it makes."""
    results = [node.meta.get("example_value") for node in graph.graph.nodes]
    for value in (*inputs, *graph.parameters(), *graph.buffers(), *results):
        for part in value if isinstance(value, tuple | list) else (value,):
            if isinstance(part, torch.Tensor):
                yield part
