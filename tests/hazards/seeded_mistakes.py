"""Training programs with one mistake each, whose lines are marked: a line ends in ``# role``.

More than 400 lines: three tables, of mistakes, of layers replaced twice and of correct programs.
"""

from __future__ import annotations

import linecache
import textwrap

import torch
from torch import nn

from anyrig.hazards import Hazard, HazardKind, watch_hazards

TRAINING = """
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)
            self.drop, self.norm = nn.Dropout(0.5), nn.BatchNorm1d(8)

        def forward(self, x):
            h = self.norm(torch.relu(self.first(x)))
            {cut}
            return self.last(self.drop(h))

    model = Net()
    {before}
    model.to(device)
    optimizer = {optimizer}
    {after}
    for step in range(4):
        x = torch.randn(6, 4, device=device)
        {clear}
        loss = model(x).square().mean()
        {loss}
        {backward}
        {step}
    {evaluate}
"""

SOUND = {
    "cut": "",
    "before": "",
    "optimizer": "torch.optim.SGD(model.parameters(), 0.01)",
    "after": "",
    "clear": "optimizer.zero_grad()",
    "loss": "",
    "backward": "loss.backward()",
    "step": "optimizer.step()",
    "evaluate": "",
}

EVALUATION = """
    with torch.no_grad():
        for _ in range(3):
            model(x){mark}
"""

ADAM = {
    "optimizer": "torch.optim.Adam(model.parameters(), 0.01)  # made",
    "step": "optimizer.step()  # step",
}

# The mistake, what replaces the sound lines, and the kind of the hazard.
MISTAKES: dict[str, tuple[dict[str, str], HazardKind]] = {
    "data in forward": ({"cut": "h = h.data  # cut"}, HazardKind.CUT),
    "detach in forward": ({"cut": "h = h.detach()  # cut"}, HazardKind.CUT),
    "detach in a branch": (
        {"cut": "h = h * 2 if h.ndim == 1 else h.detach() * 2  # cut", "step": "optimizer.step()"},
        HazardKind.CUT,
    ),
    "a loss from numbers": (
        {
            "loss": "loss = torch.tensor(loss.item(), requires_grad=True)",
            "backward": "loss.backward()  # backward",
            "step": "optimizer.step()  # step",
        },
        HazardKind.NO_GRADIENT,
    ),
    "a loss from other values": (
        {
            "loss": "loss = torch.ones(3, device=device, requires_grad=True).sum() + loss.item()",
            "backward": "loss.backward()  # backward",
            "step": "optimizer.step()  # step",
        },
        HazardKind.NO_GRADIENT,
    ),
    "cleared before the step": (
        {
            "backward": "loss.backward()  # backward",
            "step": "optimizer.zero_grad(); optimizer.step()  # step",
        },
        HazardKind.NO_GRADIENT,
    ),
    "parameters left out": (
        {
            "optimizer": "torch.optim.SGD(model.last.parameters(), 0.01)  # made",
            "step": "optimizer.step()  # step",
        },
        HazardKind.UNOWNED,
    ),
    "a layer made after the optimizer": (
        {
            "optimizer": "torch.optim.Adam(model.parameters(), 0.01)  # made",
            "after": "model.more = nn.Linear(8, 2).to(device)",
            "cut": "x = self.more(h) if hasattr(self, 'more') else x",
            "loss": "loss = loss + model.more(torch.ones(1, 8, device=device)).sum()",
            "step": "optimizer.step()  # step",
        },
        HazardKind.UNOWNED,
    ),
    "a layer replaced after the optimizer was made": (
        ADAM | {"after": "model.last = nn.Linear(8, 3).to(device)  # replaced"},
        HazardKind.REPLACED,
    ),
    "a layer replaced during training": (
        ADAM
        | {
            "clear": "optimizer.zero_grad()\n"
            "if step == 2: model.last = nn.Linear(8, 2).to(device)  # replaced"
        },
        HazardKind.REPLACED,
    ),
    "a model copied during training": (
        ADAM
        | {
            "before": "import copy",
            "clear": "model.zero_grad()\nif step == 2: model = copy.deepcopy(model)  # replaced",
        },
        HazardKind.REPLACED,
    ),
    "a model copied during training, and kept": (
        ADAM
        | {
            "before": "import copy",
            "clear": "optimizer.zero_grad()\n"
            "if step == 1: first = model; model = copy.deepcopy(model)  # replaced",
        },
        HazardKind.REPLACED,
    ),
    "values loaded as new parameters": (
        ADAM
        | {
            "after": "model.load_state_dict(Net().to(device).state_dict(), assign=True)  # replaced"
        },
        HazardKind.REPLACED,
    ),
    "a conversion that makes new parameters": (
        ADAM
        | {
            "after": "torch.__future__.set_overwrite_module_params_on_conversion(True)\n"
            "model.double().float()  # replaced\n"
            "torch.__future__.set_overwrite_module_params_on_conversion(False)",
        },
        HazardKind.REPLACED,
    ),
    "a weight divided into direction and length": (
        ADAM | {"after": "nn.utils.parametrizations.weight_norm(model.last)  # replaced"},
        HazardKind.REPLACED,
    ),
    "an optimizer of another model": (
        {
            "before": "optimizer = torch.optim.AdamW(model.parameters())  # made",
            "optimizer": "optimizer\nmodel = Net().to(device)  # replaced",
            "step": "optimizer.step()  # step",
        },
        HazardKind.REPLACED,
    ),
    "an optimizer of another model, and new parameters in each step": (
        {
            "before": "optimizer = torch.optim.AdamW(model.parameters())  # made",
            "optimizer": "optimizer\nmodel = Net().to(device)  # replaced",
            "loss": "unused = nn.Linear(1, 1)",
            "step": "optimizer.step()  # step",
        },
        HazardKind.REPLACED,
    ),
    "an optimizer of a model with a copy": (
        {
            "before": "import copy; optimizer = torch.optim.AdamW(model.parameters())  # made",
            "optimizer": "optimizer\nfirst = model\nmodel = copy.deepcopy(model)  # replaced",
            "step": "optimizer.step()  # step",
        },
        HazardKind.REPLACED,
    ),
    "made again for each step": (
        {
            "clear": "optimizer = torch.optim.Adam(model.parameters(), 0.1 / (step + 1))  # made\n"
            "optimizer.zero_grad()",
            "step": "optimizer.step()  # step",
        },
        HazardKind.REBUILT,
    ),
    "never cleared": (
        {
            "clear": "",
            "backward": "loss.backward()  # backward",
            "step": "optimizer.step()  # step",
        },
        HazardKind.ACCUMULATED,
    ),
    "never cleared, and another model trained in between": (
        {
            "clear": "",
            "after": "other = Net().to(device)\n"
            "other_optimizer = torch.optim.SGD(other.parameters(), 0.01)",
            "backward": "loss.backward()  # backward",
            "step": "optimizer.step()  # step\n"
            "other(x).square().mean().backward()\n"
            "other_optimizer.step(); other_optimizer.zero_grad()",
        },
        HazardKind.ACCUMULATED,
    ),
    "never cleared, and gradients read after a backward pass within the backward pass": (
        {
            "clear": "",
            "loss": "from torch.utils.checkpoint import checkpoint\n"
            "x.requires_grad_().register_hook("
            "lambda _: [p.grad.data for p in model.parameters() if p.grad is not None] and None)\n"
            "loss = loss + checkpoint(model, x, use_reentrant=True).sum()",
            "backward": "loss.backward()  # backward",
            "step": "optimizer.step()  # step",
        },
        HazardKind.ACCUMULATED,
    ),
    "never cleared, and a backward pass that fails within the backward pass": (
        {
            "clear": "",
            "loss": "def fail(_):\n"
            "    try: torch.ones(1).backward()\n"
            "    except RuntimeError: pass\n"
            "loss.register_hook(fail)",
            "backward": "loss.backward()  # backward",
            "step": "optimizer.step()  # step",
        },
        HazardKind.ACCUMULATED,
    ),
    "a scaler that is not asked": (
        {
            "after": "scaler = torch.amp.GradScaler(device[:4].rstrip(':'), init_scale=2.0)",
            "backward": "scaler.scale(loss).backward()  # scaled",
            "step": "optimizer.step()  # step",
        },
        HazardKind.UNSTEPPED_SCALER,
    ),
    "evaluated in training mode": (
        {"evaluate": EVALUATION.format(mark="  # evaluated")},
        HazardKind.TRAINING_MODE,
    ),
}
SKIPPED = """
    model = nn.Linear(4, 2).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    scaler = torch.amp.GradScaler(device[:4].rstrip(':'))
    for _ in range(14):
        loss = model(torch.full((3, 4), float("inf"), device=device)).sum()
        scaler.scale(loss).backward()  # scaled
        scaler.step(optimizer)  # step
        scaler.update()
        optimizer.zero_grad()
"""

# Two replacements, the later one of what the earlier one made or of its neighbours, and the number
# of parameters of the optimizer that are then lost.
REPLACED_TWICE: dict[str, tuple[str, str, int]] = {
    "two layers": (
        "model.first = nn.Linear(4, 8).to(device)",
        "model.last = nn.Linear(8, 2).to(device)",
        4,
    ),
    "one layer twice": (
        "model.last = nn.Linear(8, 2).to(device)",
        "model.last = nn.Linear(8, 2).to(device)",
        2,
    ),
    "a weight, then its layer, which a cycle keeps": (
        "nn.utils.parametrizations.weight_norm(model.last)",
        "model.last = nn.Linear(8, 2).to(device)",
        2,
    ),
    "a layer, then a copy of the model": (
        "model.first = nn.Linear(4, 8).to(device)",
        "model = copy.deepcopy(model)",
        6,
    ),
    "a layer, then a copy of the model, which is kept": (
        "model.first = nn.Linear(4, 8).to(device)",
        "kept = model; model = copy.deepcopy(model)",
        6,
    ),
    "all values, then a layer": (
        "model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)",
        "model.first = nn.Linear(4, 8).to(device)",
        6,
    ),
}

# Correct training runs that look like a mistake.
RIGHT: dict[str, dict[str, str]] = {
    "sound": {},
    "cleared by the model": {"clear": "model.zero_grad()"},
    "cleared by hand": {"clear": "for p in model.parameters(): p.grad = None"},
    "cleared by data": {
        "clear": "for p in model.parameters(): p.grad is None or p.grad.data.zero_()"
    },
    "cleared by hand after the backward pass of another model": {
        "clear": "",
        "after": "other = Net().to(device)\n"
        "other_optimizer = torch.optim.SGD(other.parameters(), 0.01)",
        "step": "optimizer.step()\n"
        "other(x).square().mean().backward(); other_optimizer.step(); other_optimizer.zero_grad()\n"
        "for p in model.parameters(): p.grad = None",
    },
    "cleared by data after a backward pass that failed": {
        "clear": "",
        "step": "optimizer.step()\n"
        "try: loss.backward()  # a second time\n"
        "except RuntimeError: pass\n"
        "for p in model.parameters(): p.grad.data.zero_()",
    },
    "cleared by data after a backward pass that was interrupted": {
        "clear": "",
        "after": "def interrupt(_): raise KeyboardInterrupt",
        "step": "optimizer.step()\n"
        "loss = torch.ones(1, requires_grad=True).exp()\n"
        "loss.register_hook(interrupt)\n"
        "try: loss.backward()\n"
        "except KeyboardInterrupt: pass\n"
        "for p in model.parameters(): p.grad.data.zero_()",
    },
    "stepped again with the same gradients": {
        "clear": "",
        "after": "other = Net().to(device)",
        "backward": "loss.backward() if step == 0 else other(x).square().mean().backward()",
    },
    "accumulated": {"backward": "loss.backward(retain_graph=True); loss.backward()"},
    "added over two steps": {"clear": "if step % 2 == 0: optimizer.zero_grad()"},
    "logged": {"loss": "history = loss.detach(), loss.data, model(x).detach()"},
    "stepped by data": {"step": "for p in model.parameters(): p.data.add_(p.grad, alpha=-0.01)"},
    "averaged": {
        "after": "import copy; average = copy.deepcopy(model)",
        "step": "optimizer.step()\n"
        "for a, p in zip(average.parameters(), model.parameters()): "
        "a.data.mul_(0.9).add_(p.data, alpha=0.1)",
    },
    "clipped": {"step": "optimizer.step()\nfor p in model.parameters(): p.data.clamp_(-1, 1)"},
    "initialised": {"before": "for p in model.parameters(): p.data.uniform_(-1, 1)"},
    "frozen": {
        "before": "model.first.requires_grad_(False)",
        "optimizer": "torch.optim.SGD([*model.last.parameters(), *model.norm.parameters()], 0.01)",
    },
    "two optimizers": {
        "optimizer": "torch.optim.SGD(model.last.parameters(), 0.01)",
        "after": "other = torch.optim.Adam([*model.first.parameters(), *model.norm.parameters()])",
        "clear": "optimizer.zero_grad(); other.zero_grad()",
        "step": "optimizer.step(); other.step()",
    },
    "a layer replaced, and the optimizer made again": {
        "clear": "if step == 2:\n"
        "    model.last = nn.Linear(8, 2).to(device)\n"
        "    optimizer = torch.optim.SGD(model.parameters(), 0.01)\n"
        "optimizer.zero_grad()",
    },
    "a layer replaced, and given to the optimizer": {
        "clear": "if step == 2:\n"
        "    model.last = nn.Linear(8, 2).to(device)\n"
        "    optimizer.add_param_group({'params': model.last.parameters()})\n"
        "optimizer.zero_grad()",
    },
    "a layer replaced, and given to another optimizer late": {
        "clear": "if step == 1: model.last = nn.Linear(8, 2).to(device)\n"
        "if step == 2: other = torch.optim.SGD(model.last.parameters(), 0.01)\n"
        "model.zero_grad()",
    },
    "moved to and fro": {"clear": "model.cpu(); model.to(device); optimizer.zero_grad()"},
    "swapped": {
        "optimizer": "torch.optim.Adam(model.parameters())",
        "clear": "torch.__future__.set_swap_module_params_on_conversion(True)\n"
        "if step == 2: loss = None; model.double(); model.float()\n"
        "torch.__future__.set_swap_module_params_on_conversion(False)\n"
        "model.zero_grad()",
    },
    "parametrized": {
        "before": "nn.init.orthogonal_(model.last.weight)",
        "after": "nn.utils.parametrizations.orthogonal(model.last)\n"
        "nn.utils.parametrizations.spectral_norm(model.first)",
    },
    "a copy that the program itself updates": {
        "after": "import copy",
        "clear": "fast = copy.deepcopy(model); fast(x).square().mean().backward()\n"
        "for p in fast.parameters(): p.data.sub_(p.grad, alpha=0.1)\n"
        "optimizer.zero_grad()",
    },
    "a layer left out, and a copy that the program itself updates": {
        "before": "model.spare = nn.Linear(3, 3)",
        "after": "import copy; del model.spare; fast = copy.deepcopy(model)",
        "clear": "fast(x).square().mean().backward()\n"
        "for p in fast.parameters(): p.data.sub_(p.grad, alpha=0.1)\n"
        "fast.zero_grad(); optimizer.zero_grad()",
        "loss": "fast(x).square().mean().backward()",
    },
    "copied in each step": {
        "after": "import copy",
        "step": "optimizer.step(); best = copy.deepcopy(model)",
    },
    "copies of parameters with another precision": {
        "optimizer": "torch.optim.Adam([nn.Parameter(p.detach().double()) for p in "
        "model.parameters()])\ncopies = optimizer.param_groups[0]['params']",
        "clear": "model.zero_grad()",
        "step": "for p, c in zip(model.parameters(), copies): c.grad = p.grad.double()\n"
        "optimizer.step()\n"
        "for p, c in zip(model.parameters(), copies): p.data.copy_(c)",
    },
    "made again in every second step": {
        "clear": "if step % 2 == 0: optimizer = torch.optim.Adam(model.parameters())\n"
        "optimizer.zero_grad()",
    },
    "without momentum, made again in every step": {
        "clear": "optimizer = torch.optim.SGD(model.parameters(), 0.01)\noptimizer.zero_grad()",
    },
    "made again for the first values": {
        "after": "import copy; first = copy.deepcopy(model.state_dict())",
        "clear": "model.load_state_dict(first); optimizer = torch.optim.Adam(model.parameters())\n"
        "optimizer.zero_grad()",
    },
    "made again with the last state": {
        "clear": "last, optimizer = optimizer, torch.optim.Adam(model.parameters())\n"
        "if step: optimizer.load_state_dict(last.state_dict())\n"
        "optimizer.zero_grad()",
    },
    "scaled": {
        "after": "scaler = torch.amp.GradScaler(device[:4].rstrip(':'))",
        "backward": "scaler.scale(loss).backward()",
        "step": "scaler.step(optimizer); scaler.update()",
    },
    "evaluated": {"evaluate": "model.eval()" + textwrap.dedent(EVALUATION.format(mark=""))},
    "tried once in training mode, then evaluated": {
        "after": "with torch.no_grad(): model(torch.ones(4, 4, device=device))",
        "evaluate": "model.eval()" + textwrap.dedent(EVALUATION.format(mark="")),
    },
    "called once without gradients before each backward pass": {
        "loss": "with torch.no_grad(): model(x)",
    },
    "unused": {"after": "model.spare = nn.Linear(4, 4).to(device)"},
    "teacher": {
        "after": "import copy; teacher = copy.deepcopy(model)",
        "loss": "with torch.no_grad(): targets = [teacher(x) for _ in range(3)]",
    },
    "checkpointed": {
        "loss": "from torch.utils.checkpoint import checkpoint; loss = loss + "
        "checkpoint(model, x.requires_grad_(), use_reentrant=True).sum()",
    },
    "a saved part stays": {
        "loss": "w = torch.ones(4, 4, device=device, requires_grad=True); "
        "loss = loss + (x[:, :2] @ w[:2]).sum(); w.data[2:] = 0; w.data[2:].mul_(3)",
    },
    "lbfgs": {
        "optimizer": "torch.optim.LBFGS(model.parameters(), max_iter=2)",
        "backward": "def closure():\n"
        "    optimizer.zero_grad(); loss = model(x).square().mean(); loss.backward(); "
        "return loss",
        "step": "optimizer.step(closure)",
    },
}


def run(
    source: str, name: str, device: str, sums: bool = False
) -> tuple[list[Hazard], dict[str, tuple[str, int]]]:
    """Run a program; return its hazards, and the lines that are marked, by role."""
    file = f"/seeded {name}.py"
    lines = source.splitlines(True)
    linecache.cache[file] = (len(source), None, lines, file)
    with watch_hazards(warn=False, sums=sums) as hazards:
        exec(compile(source, file, "exec"), {"torch": torch, "nn": nn, "device": device})
    marked = {
        line.rsplit("# ")[-1].strip(): (file, number)
        for number, line in enumerate(lines, 1)
        if "  # " in line
    }
    return list(hazards), marked


def source_of(changes: dict[str, str]) -> str:
    """Return the source of a training script with some lines replaced."""
    lines = []
    for line in textwrap.dedent(TRAINING).splitlines():
        indent = " " * (len(line) - len(line.lstrip()))
        field = line.strip().removeprefix("optimizer = ")
        if field.startswith("{") and field.endswith("}"):
            text = textwrap.dedent((SOUND | changes)[field[1:-1]])
            first = "optimizer = " if "optimizer = {" in line else ""
            lines.append(textwrap.indent(first + text.strip("\n"), indent))
        else:
            lines.append(line)
    return "\n".join(lines)
