"""Training loops that keep memory from step to step; the line that keeps it ends in ``# HERE``."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from anyrig.memory import Leak, track

STEPS = 6
WIDTH, SAMPLES = 64, 1000


class Training:
    def __init__(self, device: str) -> None:
        self.net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1)).to(device)
        self.optimizer = torch.optim.SGD(self.net.parameters(), 0.0)
        self.device = device

    def forward(self) -> Tensor:
        output: Tensor = self.net(torch.randn(SAMPLES, WIDTH, device=self.device))
        return output

    def backward(self, loss: Tensor) -> None:
        loss.backward(retain_graph=True)
        self.optimizer.step()
        self.optimizer.zero_grad()


def nothing(training: Training) -> tuple[Leak, ...]:
    with track(every="step") as footprint:
        for _ in range(STEPS):
            loss = training.forward().mean()
            training.backward(loss)
    return footprint.leaks


def summed_losses(training: Training) -> tuple[Leak, ...]:
    total = torch.zeros((), device=training.device)
    with track(every="step") as footprint:
        for _ in range(STEPS):
            loss = training.forward().mean()
            training.backward(loss)
            total = total + loss  # HERE
    return footprint.leaks


def kept_outputs(training: Training) -> tuple[Leak, ...]:
    outputs = []
    with track(every="step") as footprint:
        for _ in range(STEPS):
            output = training.forward()
            outputs.append(output)  # HERE
            training.backward(output.mean())
    return footprint.leaks


def kept_tensors(training: Training) -> tuple[Leak, ...]:
    kept: dict[int, Tensor] = {}
    with track(every="step") as footprint:
        for number in range(STEPS):
            output = training.forward()
            kept.update({number: output.detach().exp()})  # HERE
            training.backward(output.mean())
    return footprint.leaks


class Node:
    def __init__(self, value: Tensor) -> None:
        self.value, self.itself = value, self


def cycles(training: Training) -> tuple[Leak, ...]:
    with track(every="step") as footprint:
        for _ in range(STEPS):
            output = training.forward()
            Node(output.detach().exp())  # HERE
            training.backward(output.mean())
    return footprint.leaks


def fail(device: str) -> None:
    large = torch.ones(SAMPLES, device=device)  # HERE
    raise KeyError(len(large))


def tracebacks(training: Training) -> tuple[Leak, ...]:
    errors = []
    with track(every="step") as footprint:
        for _ in range(STEPS):
            output = training.forward()
            try:
                fail(training.device)
            except KeyError as error:
                errors.append(error)
            training.backward(output.mean())
    return footprint.leaks


class History:
    def __init__(self) -> None:
        self.values: list[Tensor] = []


def an_object_of_the_program(training: Training) -> tuple[Leak, ...]:
    history = History()
    with track(every="step") as footprint:
        for _ in range(STEPS):
            output = training.forward()
            history.values.append(output.detach().exp())  # HERE
            training.backward(output.mean())
    return footprint.leaks


class Summing:
    def train(self, training: Training) -> None:
        self.total = torch.zeros((), device=training.device)
        for _ in range(STEPS):
            loss = training.forward().mean()
            training.backward(loss)
            self.total += loss  # HERE


def an_attribute_of_self(training: Training) -> tuple[Leak, ...]:
    with track(every="step") as footprint:
        Summing().train(training)
    return footprint.leaks


def keeper() -> Callable[[Tensor], None]:
    hidden: list[Tensor] = []

    def keep(tensor: Tensor) -> None:
        hidden.append(tensor)

    return keep


def a_closure(training: Training) -> tuple[Leak, ...]:
    keep = keeper()
    with track(every="step") as footprint:
        for _ in range(STEPS):
            output = training.forward()
            keep(output.detach().exp())  # HERE
            training.backward(output.mean())
    return footprint.leaks


def train_and_sum(training: Training) -> None:
    total = torch.zeros((), device=training.device)
    for _ in range(STEPS):
        loss = training.forward().mean()
        training.backward(loss)
        total += loss  # HERE


def a_function_of_its_own(training: Training) -> tuple[Leak, ...]:
    with track(every="step") as footprint:
        train_and_sum(training)
    return footprint.leaks


def beside_a_variable_that_is_overwritten(training: Training) -> tuple[Leak, ...]:
    history = History()
    keep = history.values.append
    with track(every="step") as footprint:
        for _ in range(STEPS):
            x = torch.randn(SAMPLES, WIDTH)
            x = x.to(training.device)
            output = training.net(x)  # HERE
            keep(output)
            loss = output.mean()
            loss = loss / 2
            training.backward(loss)
    return footprint.leaks


PROGRAMS: dict[Callable[[Training], tuple[Leak, ...]], tuple[str, int]] = {
    # Words of the sentence, and the values of a step that are held at least.
    summed_losses: (
        "total is a tensor with a graph and keeps {}: add loss.item() or loss.detach() instead",
        SAMPLES * WIDTH,
    ),
    kept_outputs: ("outputs keeps {}: append output.detach(), or", SAMPLES * WIDTH),
    kept_tensors: ("kept keeps {}: drop what is not needed again", SAMPLES),
    cycles: ("a reference cycle with a Node keeps {}: break the cycle", SAMPLES),
    tracebacks: (
        "the traceback of an exception, which has large of fail, keeps {}: end the handling",
        SAMPLES,
    ),
    an_object_of_the_program: ("history.values keeps {}: drop what is not needed again", SAMPLES),
    an_attribute_of_self: (
        "self.total is a tensor with a graph and keeps {}: add",
        SAMPLES * WIDTH,
    ),
    a_closure: ("an object that no running function names keeps {}: find what refers", SAMPLES),
    a_function_of_its_own: ("total is a tensor with a graph and keeps {}: add", SAMPLES * WIDTH),
    beside_a_variable_that_is_overwritten: ("history.values keeps {}: keep", SAMPLES * WIDTH),
}
