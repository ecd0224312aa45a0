"""Runs failing programs on a virtual GPU whose refusals are watched, and prints reports as JSON.

Nothing is recorded before the errors: these are the reports of `anyrig rehearse`.
"""

from __future__ import annotations

import gc
import json
import warnings
from collections.abc import Callable

import run_failing_programs
import torch
from torch import Tensor, nn

from anyrig.rehearsal.refusal_watch import RefusalWatch
from anyrig.virtual import install

GPU = "cuda:0"
LAYERS = 24


def branch() -> nn.Sequential:
    return nn.Sequential(
        *[layer for _ in range(LAYERS) for layer in (nn.Linear(64, 64), nn.Tanh())]
    ).to(GPU)


def inputs(rows: int = 120_000) -> Tensor:
    return torch.randn(rows, 64).to(GPU)


def sum_of_calls() -> None:
    a, b, x = branch(), branch(), inputs()
    (a(x) + b(x)).sum().backward()


def arguments() -> None:
    a, b, x = branch(), branch(), inputs()
    torch.cat((a(x), b(x)), 1).sum().backward()


def comprehension() -> None:
    a, b, x = branch(), branch(), inputs()
    torch.stack([each(x) for each in (a, b)]).sum().backward()


def generator() -> None:
    a, b, x = branch(), branch(), inputs()

    def results() -> object:
        yield a(x)
        yield b(x)

    sum(results()).sum().backward()  # type: ignore[call-overload]


def formatted() -> None:
    a, b, x = branch(), branch(), inputs()
    {"a": a(x), "b": b(x)}["a"].sum().backward()


def chained() -> None:
    a, b, x = branch(), branch(), inputs()
    a(x).mul(b(x)).sum().backward()


def one_sample() -> None:
    net = nn.Sequential(*[nn.Conv3d(8, 8, 3, padding=1) for _ in range(20)]).to(GPU)
    net(torch.randn(1, 8, 128, 128, 128).to(GPU)).sum().backward()


def one_sample_in_training() -> None:
    net = nn.Sequential(*[nn.Conv3d(8, 8, 3, padding=1) for _ in range(12)]).to(GPU)
    x = torch.randn(1, 8, 128, 128, 128).to(GPU)
    net(x).square().sum().backward()


class Convolution(nn.Module):
    """A layer of a graph network."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(64, 64) for _ in range(60)])

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).index_select(0, edges[0]).tanh()
        return x


def a_graph() -> None:
    edges = torch.zeros(2, 120_000, dtype=torch.int64).to(GPU)
    Convolution().to(GPU)(inputs(), edges).sum().backward()


def a_sparse_graph() -> None:
    weight = torch.randn(64, 64, device=GPU, requires_grad=True)

    class Net(nn.Module):
        def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
            for _ in range(60):
                x = (x @ weight).tanh()
            return x

    indices = torch.zeros(2, 10, dtype=torch.int64)
    sizes = (120_000, 120_000)
    adjacency = torch.sparse_coo_tensor(indices, torch.ones(10), sizes, check_invariants=True)
    Net()(inputs(), adjacency).sum().backward()


def many_samples() -> None:
    net = nn.Sequential(*[branch() for _ in range(3)])
    net(inputs()).sum().backward()


def losses_kept_until_the_backward_pass() -> None:
    weight = torch.randn(5120, 5120, device=GPU, requires_grad=True)  # of 100 MiB, as its gradient
    losses = []
    for _ in range(21):  # which keep 40 MiB each
        loss = (torch.randn(1024, 5120, device=GPU) @ weight).square().mean()
        losses.append(loss)  # HERE
    total = torch.stack(losses).sum()
    total.register_hook(lambda gradient: gradient)  # keeps the pass in a thread of the GPU
    total.backward()


def losses_whose_graphs_are_used_up() -> None:
    small, large = branch(), nn.Sequential(*[branch() for _ in range(3)])
    losses = []
    for _ in range(8):
        loss = small(inputs(64)).sum()
        loss.backward()
        losses.append(loss)
    large(inputs()).sum().backward()


PROGRAMS: dict[str, Callable[[], None]] = {
    each.__name__: each
    for each in (
        sum_of_calls,
        arguments,
        comprehension,
        generator,
        formatted,
        chained,
        one_sample,
        one_sample_in_training,
        a_graph,
        a_sparse_graph,
        many_samples,
        losses_kept_until_the_backward_pass,
        losses_whose_graphs_are_used_up,
    )
}


def main() -> None:
    # PyTorch up to 2.12 warns even where they are asked for.
    warnings.filterwarnings("ignore", "Sparse invariant checks are implicitly disabled")
    install("1GiB", shape_only=True)
    gc.freeze()  # otherwise each collection visits all of PyTorch's modules
    watch = RefusalWatch()
    watch.start()
    reports = {}
    own = dict(run_failing_programs.PROGRAMS)
    own.pop("another_process")
    for name, run in (own | PROGRAMS).items():
        try:
            run()
        except torch.OutOfMemoryError as error:
            reports[name] = str(watch.report(error))
        run_failing_programs.free_memory()
    print(json.dumps(reports))


if __name__ == "__main__":
    main()
