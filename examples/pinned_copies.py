"""Copy batches to the GPU while it computes: three ways, and what each costs.

    python examples/pinned_copies.py                                  # on this machine's device
    anyrig rehearse --rig RTX-4090 examples/pinned_copies.py          # on a virtual GPU

A copy from pageable memory waits. From pinned memory, with non_blocking=True, it does not, but it
is in the stream of the computation. `anyrig.prefetch` pins and copies the next batch on a stream of
its own while this one computes. On a virtual GPU, the times are those that the GPU would take.
"""

import time
from collections.abc import Iterable, Iterator

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import anyrig

Batches = Iterable[list[torch.Tensor]]


def waiting(loader: Batches, device: torch.device) -> Iterator[torch.Tensor]:
    for (x,) in loader:
        yield x.to(device)


def pinned(loader: Batches, device: torch.device) -> Iterator[torch.Tensor]:
    for (x,) in loader:
        yield anyrig.transfer.pin(x).to(device, non_blocking=True)


def measure(name: str, batches: Iterator[torch.Tensor], model: nn.Module) -> None:
    device = next(model.parameters()).device
    has_events = device.type != "cpu"
    started = time.perf_counter()
    if has_events:
        first, last = (torch.Event(device, enable_timing=True) for _ in range(2))
        first.record()
    total = torch.zeros((), device=device)
    for x in batches:
        total += model(x).sum()
    if has_events:
        last.record()
        last.synchronize()
    seconds = first.elapsed_time(last) / 1e3 if has_events else time.perf_counter() - started
    print(f"{name:<28} {seconds * 1e3:8.2f} ms")


@torch.inference_mode()
def main() -> None:
    rig = anyrig.Rig.detect()
    device = rig.lead.torch_device
    print(f"copying to {rig.lead}")
    model = nn.Sequential(nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 8)).to(device)
    loader = DataLoader(TensorDataset(torch.randn(4096, 2048)), batch_size=512)
    measure("pageable, waits", waiting(loader, device), model)
    measure("pinned, non_blocking", pinned(loader, device), model)
    measure("anyrig.prefetch", (x for (x,) in anyrig.prefetch(loader, rig)), model)


if __name__ == "__main__":
    main()
