"""Programs that run out of memory, and each remedy applied to them by hand.

`make test-remedies` compares all of them; `test_remedies.py` compares some.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from anyrig.programs.program import Program
from anyrig.rehearsal.remedies.rehearsed import Savings, rehearse_remedies
from anyrig.virtual.rig import VirtualRig
from forked_programs import run_forked

_TEXT = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

{definition}
model.cuda()
optimizer = torch.optim.{optimizer}
samples = TensorDataset(torch.zeros({samples}, {shape}), torch.zeros({samples}, dtype=torch.long))
calls = 0
for x, y in DataLoader(samples, batch_size={batch}):
    output = model(x.cuda())
    loss = nn.functional.cross_entropy(output, y.cuda())
    optimizer.zero_grad(set_to_none=False)
    loss.backward()
    optimizer.step()
    calls += 1
    if sys.argv[1:] == [str(calls)]:
        break
print(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
"""
# As `anyrig rehearse --rig 64GiB --shape-only --assume-values` runs it.
_MEASURED = """
import sys
from anyrig.programs.program import Program
from anyrig.virtual import install
install("64GiB", shape_only=True, assume_values=True)
sys.exit(Program(sys.argv[1], tuple(sys.argv[2:])).run())
"""
_CALL = "    output = model(x.cuda())\n"


@dataclass(frozen=True)
class Training:
    """A program that trains a model, and the GPU on which it runs out of memory."""

    definition: str
    optimizer: str
    shape: str
    batch: int
    blocks: tuple[str, ...]
    gpu: str = "1GiB"

    @property
    def text(self) -> str:
        return _TEXT.format(**vars(self), samples=8 * self.batch)

    def remedied(self, remedy: str) -> str:
        """Return the program's text with a remedy applied as its advice says."""
        edits = {
            "half the batch": (f"batch_size={self.batch}", f"batch_size={self.batch // 2}"),
            "recomputation": (
                "model.cuda()\n",
                "model.cuda()\nfrom anyrig.memory import recompute_blocks\n"
                f"recompute_blocks(model, {self.blocks})\n",
            ),
            "mixed precision": (
                _CALL,
                f'    with torch.autocast("cuda", torch.bfloat16):\n    {_CALL}',
            ),
            "offload": (_CALL, f"    with torch.autograd.graph.save_on_cpu():\n    {_CALL}"),
            "gradients set to None": (
                "    optimizer.step()\n",
                "    optimizer.step()\n    optimizer.zero_grad()\n",
            ),
            "fused optimizer": ("model.parameters()", "model.parameters(), fused=True"),
            "parameters updated one by one": (
                "model.parameters()",
                "model.parameters(), foreach=False",
            ),
            "expandable segments": ("", ""),
        }
        old, new = edits[remedy]
        text = self.text
        assert old in text
        if remedy == "gradients set to None":
            text = text.replace("    optimizer.zero_grad(set_to_none=False)\n", "")
        return text.replace(old, new) if old else text


TRAININGS = {
    "transformer": Training(
        "layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)\n"
        "layers = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)\n"
        "model = nn.Sequential(layers, nn.Flatten(), nn.Linear(256 * 64, 10))",
        "AdamW(model.parameters())",
        "64, 256",
        128,
        tuple(f"0.layers.{index}" for index in range(6)),
    ),
    "wide layers": Training(
        "model = nn.Sequential(*[nn.Linear(4096, 4096) for _ in range(5)], nn.Linear(4096, 10))",
        "AdamW(model.parameters())",
        "4096",
        256,
        (),
    ),
    "convolutions": Training(
        "class Stages(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.stages = nn.Sequential(*[Stage() for _ in range(6)])\n"
        "        self.head = nn.Linear(32, 10)\n"
        "    def forward(self, x):\n"
        "        return self.head(self.stages(x).mean((2, 3)))\n"
        "class Stage(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.conv = nn.Conv2d(32, 32, 3, padding=1)\n"
        "        self.norm = nn.BatchNorm2d(32)\n"
        "    def forward(self, x):\n"
        "        return x + self.norm(self.conv(x)).relu()\n"
        "model = Stages()",
        "SGD(model.parameters(), 0.1, momentum=0.9)",
        "32, 64, 64",
        128,
        tuple(f"stages.{index}" for index in range(6)),
    ),
    "perceptrons": Training(
        "class Perceptron(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.wide, self.narrow = nn.Linear(512, 2048), nn.Linear(2048, 512)\n"
        "    def forward(self, x):\n"
        "        return x + self.narrow(nn.functional.gelu(self.wide(x)))\n"
        "model = nn.Sequential(*[Perceptron() for _ in range(6)], nn.Linear(512, 10))",
        "Adam(model.parameters(), amsgrad=True)",
        "512",
        2**13,
        tuple(f"{index}" for index in range(6)),
    ),
    "recurrent layers": Training(
        "class Reader(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.lstm = nn.LSTM(512, 512, 4, batch_first=True)\n"
        "        self.head = nn.Linear(512, 10)\n"
        "    def forward(self, x):\n"
        "        return self.head(self.lstm(x)[0][:, -1])\n"
        "model = Reader()",
        "Adam(model.parameters())",
        "128, 512",
        256,
        (),
    ),
    "a large embedding": Training(
        "class Reader(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.table = nn.Embedding(50_000, 512)\n"
        "        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(512, 8, batch_first=True)\n"
        "                                    for _ in range(4))\n"
        "        self.head = nn.Linear(512, 10)\n"
        "    def forward(self, x):\n"
        "        x = self.table(x.long())\n"
        "        for layer in self.layers:\n"
        "            x = layer(x)\n"
        "        return self.head(x.mean(1))\n"
        "model = Reader()",
        "AdamW(model.parameters())",
        "64",
        64,
        tuple(f"layers.{index}" for index in range(4)),
    ),
}


def rehearse(training: Training, folder: Path, names: Sequence[str] | None = None) -> Savings:
    path = folder / "train.py"
    path.write_text(training.text)
    rig = VirtualRig.parse(training.gpu)
    return rehearse_remedies(Program(str(path)), rig, os.environ, names)


def measure_by_hand(training: Training, remedy: str | None, calls: int, folder: Path) -> list[int]:
    """Return the peaks of the allocated and the reserved bytes of a program, changed by hand."""
    path = folder / "remedied.py"
    path.write_text(training.text if remedy is None else training.remedied(remedy))
    added = {}
    if remedy == "expandable segments":
        added = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    ended = run_forked("-c", _MEASURED, str(path), str(calls), timeout=120, **added)
    assert ended.returncode == 0, ended.stderr
    return [*map(int, ended.stdout.split())]


def compare(
    training: Training, folder: Path, names: Sequence[str] | None = None
) -> list[tuple[str, int, int]]:
    """Return for each remedy that is reported the bytes promised, and those obtained by hand."""
    savings = rehearse(training, folder, names)
    calls = max(savings.calls, 2)  # after a failure in the first step, the second counts, too
    before = measure_by_hand(training, None, calls, folder)
    found = []
    for saving in savings.of_remedies:
        (name,) = saving.remedies
        after = measure_by_hand(training, name, calls, folder)
        kind = int(name == "expandable segments")
        found.append((name, saving.saved_bytes, before[kind] - after[kind]))
    return found


def main() -> int:
    """Compare all programs; return how many promises are off by more than 1 %."""
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, training in TRAININGS.items():
            for remedy, promised, obtained in compare(training, Path(folder)):
                print(f"{name}, {remedy}: {promised} promised, {obtained} obtained", flush=True)
                wrong += abs(promised - obtained) > obtained / 100
    return wrong


if __name__ == "__main__":
    sys.exit(main())
