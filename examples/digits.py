"""Train a convolutional network on handwritten digits, on any devices.

    python examples/digits.py                      # every accelerator, else the CPU
    python examples/digits.py --device cuda:1      # this one
    python examples/digits.py --disable-cuda       # the CPU
    anyrig run --device cpu --nproc-per-device 2 examples/digits.py       # two ranks

The data, in `digits.csv.gz`, are the 1,797 digits of the test set of "Optical Recognition of
Handwritten Digits" by E. Alpaydin and C. Kaynak (UCI Machine Learning Repository, 1998,
https://doi.org/10.24432/C50P49, CC BY 4.0): 64 pixels of 0 to 16, and the digit.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import os
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

import anyrig


def build_network() -> nn.Module:
    """Return a network of three convolutions: (batch, 1, 8, 8) pixels to (batch, 10) scores."""

    def block(inputs: int, outputs: int) -> nn.Sequential:
        convolution = nn.Conv2d(inputs, outputs, kernel_size=3, padding=1, bias=False)
        return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU())

    return nn.Sequential(
        block(1, 32),
        block(32, 64),
        nn.MaxPool2d(2),
        block(64, 64),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(64 * 4 * 4, 10),
    )


def load_parts(held_out: int = 360) -> tuple[TensorDataset, TensorDataset]:
    """Return the training set and the test set of `held_out` digits, the same in every run."""
    with gzip.open(Path(__file__).with_name("digits.csv.gz"), "rt") as file:
        rows = torch.tensor([[float(value) for value in row] for row in csv.reader(file)])
    images = rows[:, :64].reshape(-1, 1, 8, 8) / 16
    dataset = TensorDataset(images, rows[:, 64].long())
    parts = [len(dataset) - held_out, held_out]
    train, test = random_split(dataset, parts, generator=torch.Generator().manual_seed(0))
    return train, test


def train(model: nn.Module, loader: DataLoader, rig: anyrig.Rig, epochs: int) -> float:
    """Train `model` in place, and return the samples per second of all ranks together."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=3e-3, total_steps=epochs * len(loader)
    )
    model.train()
    samples = 0
    columns = (
        TextColumn("epoch {task.fields[epoch]}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.3f}"),
        TimeElapsedColumn(),
    )
    started = time.perf_counter()
    hidden = os.environ.get("RANK", "0") != "0"
    with Progress(*columns, console=Console(stderr=True), disable=hidden) as progress:
        task = progress.add_task("train", total=epochs * len(loader), epoch=1, loss=float("nan"))
        for epoch in range(1, epochs + 1):
            for images, labels in anyrig.prefetch(loader, rig):
                loss = model(images, target=labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                samples += len(labels)
                progress.update(task, advance=1, epoch=epoch)
            # Once per epoch, because item() makes the host wait for the device.
            progress.update(task, loss=loss.item())
    seconds = time.perf_counter() - started
    return sum(anyrig.gather_over_ranks(samples)) / seconds


@torch.inference_mode()
def measure_accuracy(model: nn.Module, loader: DataLoader, rig: anyrig.Rig) -> float:
    """Return the fraction of samples that the model classifies correctly, over all ranks."""
    model.eval()
    correct = torch.zeros((), dtype=torch.long, device=rig.lead.torch_device)
    samples = 0
    for images, labels in anyrig.prefetch(loader, rig):
        correct += (model(images).argmax(dim=1) == labels).sum()
        samples += len(labels)
    # A rank without samples has weight zero, so its value is ignored.
    return anyrig.mean_over_ranks(correct / max(1, samples), weight=samples).item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    anyrig.add_device_arguments(parser)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64)
    arguments = parser.parse_args()
    rig = anyrig.rig_from_arguments(arguments)
    anyrig.print_once(f"rig: {rig} - {rig.reason}")

    torch.manual_seed(0)
    train_part, test_part = load_parts()
    model = anyrig.spread(build_network(), rig, loss=nn.CrossEntropyLoss())
    train_loader = DataLoader(train_part, arguments.batch_size, shuffle=True)
    test_loader = DataLoader(test_part, arguments.batch_size)

    samples_per_second = train(model, anyrig.distribute(train_loader, model), rig, arguments.epochs)
    accuracy = measure_accuracy(model, anyrig.distribute(test_loader, model), rig)

    anyrig.print_once(f"samples per second {samples_per_second:,.0f}")
    for device in rig:
        peak = anyrig.units.format_bytes(anyrig.devices.peak_bytes(device))
        anyrig.print_once(f"peak memory {device.text} {peak}")
    anyrig.print_once(f"accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
