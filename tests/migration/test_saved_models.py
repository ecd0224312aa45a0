"""Which programs keep whole models in files, so that `torch.load` needs `weights_only=False`."""

import pytest
from checked_texts import found

START = """\
import torch
from mine import build
"""
FUNCTIONS = """
def save(model, path):
    torch.save(model, path)


def load(path):
    return torch.load(path)


def main():
    model = build()
    model.train()
"""
TRAINER = """
class Trainer:
    def __init__(self):
        self.model = torch.nn.Linear(2, 2)
        self.best = {}

    def load(self):
        self.model = torch.load("model.pt")
"""


@pytest.mark.parametrize(
    "program",
    [
        f"{FUNCTIONS}    save(model, 'a.pt')\n",
        f"{FUNCTIONS}    save(path='a.pt', model=model)\n    save(torch.nn.ReLU(), 'b.pt')\n",
        TRAINER,
        TRAINER.replace("self.model = torch.load", "return torch.load")
        + "    def save(self):\n        torch.save(self.model, 'model.pt')\n",
        TRAINER.replace("self.model = torch.load", "return torch.load")
        + "    def save(self, model, path):\n        torch.save(model, path)\n"
        "    def step(self):\n        self.save(self.model, 'model.pt')\n",
        "model = build()\nmodel.train()\n"
        "with open('a.pt', 'wb') as f:\n    torch.save(model, f)\n"
        "with open('a.pt', 'rb') as f:\n    net = torch.load(f, map_location='cpu')\n",
    ],
)
def test_a_whole_model_is_found(program: str) -> None:
    assert [code for code, _ in found(START + program, "ARC117")] == ["ARC117"]


@pytest.mark.parametrize(
    "program",
    [
        FUNCTIONS,
        f"{FUNCTIONS}    save(model.state_dict(), 'a.pt')\n",
        f"{FUNCTIONS}    save(model, 'a.pt')\n    save(model.state_dict(), 'b.pt')\n",
        f"{FUNCTIONS}    save(*model)\n",
        TRAINER.replace("self.model = torch.load", "self.best = torch.load"),
        TRAINER.replace("self.model = torch.load", "state = torch.load"),
        f"{TRAINER}\n".replace("self.model = torch.nn", "self.net = torch.nn")
        + "class Other:\n    def __init__(self):\n        self.model = torch.nn.ReLU()\n",
        # What the file may hold is declared.
        "model = build()\nmodel.train()\ntorch.save(model, 'a.pt')\n"
        "with torch.serialization.safe_globals([torch.nn.Linear]):\n"
        "    model = torch.load('a.pt')\n",
    ],
)
def test_nothing_is_found(program: str) -> None:
    assert found(START + program, "ARC117") == []
