"""Programs in which one line overwrites a value that backward saved, made from templates.

In each program, a comment marks the line that saves and the line that writes.
"""

from __future__ import annotations

import linecache
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from anyrig.hazards import Hazard, HazardKind, watch_hazards

# How a value is saved: a line that makes y, the tensor that it saves, and whether the graph keeps
# the old memory of this tensor if it is given other memory: it is an output, or saved as a view.
SAVES = {
    "mul": ("y = x * w", "w", False),
    "matmul": ("y = x @ w", "x", False),
    "linear": ("y = F.linear(x, w)", "w", True),
    "log": ("y = h.log()", "h", False),
    "pow": ("y = h**3", "h", False),
    "gelu": ("y = F.gelu(h)", "h", False),
    "layer_norm": ("y = F.layer_norm(h, (4,))", "h", False),
    "mse": ("y = F.mse_loss(x, t)", "t", False),
    "exp": ("y = x.exp()", "y", True),
    "tanh": ("y = h.tanh()", "y", True),
    "sigmoid": ("y = x.sigmoid()", "y", True),
    "softmax": ("y = h.softmax(1)", "y", True),
    "function": ("y = Square.apply(h)", "h", False),
}

# How the value is overwritten unseen.
WRITES = {
    "data": "V.data.mul_(1.5)",
    "item": "V.data[0] = 3",
    "copy": "V.data.copy_(torch.full_like(V.data, 0.25))",
    "out": "torch.add(V.data, 1, out=V.data)",
    "foreach": "torch._foreach_add_([V.data], 1.0)",
    "set": "V.data.new_empty(0).set_(V.data.untyped_storage(), 0, (4, 4), (4, 1)).zero_()",
    "storage": "V.data.untyped_storage().fill_(1)",
    "random": "V.data.uniform_()",
    "assign": "V.data = torch.zeros_like(V.data)",
}
NUMPY = {"numpy": "V.detach().numpy()[1] = 7", "array": "np.asarray(V.detach())[...] = 7"}

PLACES = {
    "function": """
        x, w, t = inputs(device)
        h = x + w
        {save}  # saved
        z = y * 2
        {write}  # written
        (y.sum() + z.sum()).backward()
    """,
    "module": """
        class Layer(nn.Module):
            def __init__(self):
                super().__init__()
                self.x, self.w, self.t = (nn.Parameter(each.detach()) for each in inputs(device))

            def forward(self):
                x, w, t = self.x, self.w, self.t
                h = x + w
                {save}  # saved
                if self.training:
                    {write}  # written
                return y

        Layer()().sum().backward()
    """,
    "helper": """
        def forward(x, w, t, h):
            {save}  # saved
            return y

        def spoil(V):
            for _ in range(1):
                {write_here}  # written

        x, w, t = inputs(device)
        h = x + w
        y = forward(x, w, t, h)
        spoil({value})
        torch.autograd.grad(y.sum(), [x])
    """,
}


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(value)
        return value * value

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        (value,) = ctx.saved_tensors
        return 2 * value * gradient


@dataclass(frozen=True)
class Program:
    """A program with a hazard."""

    name: str
    source: str

    @property
    def file(self) -> str:
        return f"<seeded {self.name}>".replace("<", "/").replace(">", ".py")

    def line(self, mark: str) -> int:
        lines = self.source.splitlines()
        return next(i for i, line in enumerate(lines, 1) if line.endswith(f"# {mark}"))

    def run(self, device: str, sums: bool = False) -> list[Hazard]:
        """Run the program and return its hazards."""
        linecache.cache[self.file] = (1, None, self.source.splitlines(True), self.file)
        code = compile(self.source, self.file, "exec")
        names = {"torch": torch, "nn": nn, "F": nn.functional, "Square": Square, "device": device}
        import numpy as np

        with watch_hazards(warn=False, sums=sums) as hazards:
            exec(code, {**names, "inputs": inputs, "np": np})
        return list(hazards)

    def is_found(self, hazards: list[Hazard]) -> bool:
        """Whether the hazard is among `hazards`, with both lines, and no other line is blamed."""
        lines = {
            (hazard.kind, *((place.file, place.number) for place in hazard.places))
            for hazard in hazards
        }
        places = (self.file, self.line("saved")), (self.file, self.line("written"))
        return lines == {(HazardKind.OVERWRITTEN, *places)}


def inputs(device: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    x = torch.rand(4, 4, device=device).add_(1).requires_grad_()
    w = torch.rand(4, 4, device=device).add_(1).requires_grad_()
    return x, w, torch.rand(4, 4, device=device)


def programs(writes: dict[str, str] = WRITES) -> Iterator[Program]:
    """Yield a program for each way of saving and each way of writing; the places take turns."""
    places = list(PLACES.items())
    number = 0
    for how, (save, value, keeps_memory) in SAVES.items():
        for way, write in writes.items():
            if way == "assign" and keeps_memory:
                continue
            place, template = places[number % len(places)]
            number += 1
            source = textwrap.dedent(template).format(
                save=save, write=write.replace("V", value), write_here=write, value=value
            )
            yield Program(f"{how} {way} {place}", source)


def missed(
    device: str, writes: dict[str, str] = WRITES, sums: bool = False
) -> tuple[int, list[str]]:
    """Run all programs; return their number, and what those show whose hazard was not found."""
    found = [(program, program.run(device, sums)) for program in programs(writes)]
    wrong = [
        f"{program.name}\n{program.source}{hazards}"
        for program, hazards in found
        if not program.is_found(hazards)
    ]
    return len(found), wrong
