"""A program that uses every part of a virtual rig and ends while all are in use."""

from __future__ import annotations

import threading

import torch
import torch.cuda.comm
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from anyrig.virtual import install

RIG = "4xA100-80GB"
THREADS = 8


def train(device: int, errors: list[BaseException]) -> None:
    try:
        torch.cuda.set_device(device)
        stream = torch.cuda.Stream()
        model = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Linear(16, 4)).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        scaler = torch.amp.GradScaler("cuda")
        for _ in range(3):
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream), torch.autocast("cuda"):
                loss = model(torch.randn(8, 16, device="cuda")).square().mean()
            torch.cuda.current_stream().wait_stream(stream)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        assert torch.isfinite(loss).item()
        assert loss.device.index == device
    except BaseException as error:
        errors.append(error)


def use_several_devices() -> nn.Module:
    data = TensorDataset(torch.randn(32, 16), torch.randn(32, 4))
    model = nn.DataParallel(nn.Sequential(nn.Linear(16, 16), nn.Dropout(), nn.Linear(16, 4)).cuda())
    for x, y in DataLoader(data, batch_size=16, pin_memory=True):
        loss = nn.functional.mse_loss(model(x.cuda(non_blocking=True)), y.cuda())
        loss.backward()
    parts = torch.cuda.comm.scatter(torch.arange(8.0), [0, 1, 2, 3])
    assert torch.cuda.comm.gather(parts, destination=1).device.index == 1
    return model


def run_out_of_memory() -> None:
    try:
        torch.empty(2**40, dtype=torch.uint8, device="cuda:2")
    except torch.OutOfMemoryError:
        return
    raise AssertionError("a terabyte fitted")


def main() -> None:
    install(RIG)
    errors: list[BaseException] = []
    threads = [threading.Thread(target=train, args=(i % 4, errors)) for i in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    globals()["kept"] = [use_several_devices(), torch.cuda.Event(), torch.randn(8, device="cuda:3")]
    run_out_of_memory()
    event = torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(10**9)
    event.record()
    while not event.query():
        pass
    torch.cuda._sleep(10**9)
    # End the program with a backward.
    torch.randn(4, device="cuda:1", requires_grad=True).sum().backward()
    print("done")


main()
