"""A notebook trains on two devices, is interrupted, goes on and is restarted; nothing is left."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import random
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from left_processes import LIMIT_SECONDS, MARK, files_of, processes_of, wait_for_end

EXAMPLES = Path(__file__).parents[4] / "examples"
TRAIN = """
import copy, pathlib
one, criterion = copy.deepcopy(model.module), nn.MSELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = torch.randn(12, INPUTS), torch.randn(12, OUTPUTS)

def step():
    optimizer.zero_grad()
    criterion(model(x), y).backward()
    optimizer.step()

def is_that_of_one_device():
    one.load_state_dict(model.module.state_dict())
    step()
    criterion(one(x), y).backward()
    with torch.no_grad():
        for parameter in one.parameters():
            parameter -= 0.1 * parameter.grad
    for mine, theirs in zip(one.parameters(), model.parameters()):
        torch.testing.assert_close(mine, theirs)
        mine.grad = None
    return "the same"

Model.forward = lambda self, x: self.fc(x)  # prints no more
step()
"""
FOREVER = """
step()
pathlib.Path(FILE).touch()
while True:
    step()
"""
FAULT = """
class Fails(nn.Linear):
    def forward(self, x):
        if (x == 7).any():
            raise LookupError("seven is not allowed")
        return super().forward(x)

faulty = anyrig.spread(Fails(1, 1), plan=anyrig.Replicas(processes=2))
faulty(torch.tensor([[1.0], [1.0], [7.0], [1.0]]))
"""


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for package in ("nbclient", "ipykernel"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    for name in ("CONFIG_DIR", "DATA_DIR", "RUNTIME_DIR"):
        monkeypatch.setenv(f"JUPYTER_{name}", str(tmp_path / "jupyter"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    import nbformat
    from nbclient import NotebookClient

    book = nbformat.read(EXAMPLES / "data_parallel.ipynb", as_version=4)
    client = NotebookClient(book, timeout=LIMIT_SECONDS, kernel_name="python3")
    (tmp_path / "tmp").mkdir()
    # ipykernel shows no output of other processes within a test of pytest.
    environment = {k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"}
    environment |= {MARK: str(tmp_path), "TMPDIR": str(tmp_path / "tmp")}
    with client.setup_kernel(env=environment):
        yield client
    wait_for_end(str(tmp_path))
    assert files_of([], tmp_path / "tmp") == []


def without_colours(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def run(client: Any, source: str) -> Any:
    """Run a cell; return its text output, and the error that it raised."""
    from nbclient.exceptions import CellExecutionError
    from nbformat.v4 import new_code_cell

    client.nb.cells.append(new_code_cell(source))
    error = None
    try:
        client.execute_cell(client.nb.cells[-1], len(client.nb.cells) - 1)
    except CellExecutionError as raised:
        error = raised
    outputs = client.nb.cells[-1].outputs
    return "".join(each.get("text", "") for each in outputs), error


def interrupt_once_it_trains(client: Any, file: Path, delay: float) -> None:
    def interrupt() -> None:
        until = time.monotonic() + LIMIT_SECONDS
        while not file.exists() and time.monotonic() < until:
            time.sleep(0.02)
        time.sleep(delay)
        asyncio.run(client.km.interrupt_kernel())

    threading.Thread(target=interrupt).start()


def run_sync(function: Any) -> Any:
    from jupyter_core.utils import run_sync

    return run_sync(function)


def run_example(client: Any) -> str:
    text = ""
    for number, cell in enumerate(client.nb.cells):
        if cell.cell_type == "code" and cell.id.startswith("cell-"):  # not of a test
            client.execute_cell(cell, number)
            text += "".join(each.get("text", "") for each in cell.outputs)
    return text


@pytest.mark.parametrize("interrupts", [1, pytest.param(30, marks=pytest.mark.sweep)])
def test_a_notebook(kernel: Any, tmp_path: Path, interrupts: int) -> None:
    printed = run_example(kernel)
    # Four lines are the kernel's: one for each step, and one for the check of the first.
    assert printed.count("\tin the model: input (15, 5), output (15, 2)") > 4
    losses = re.findall(r"^outside: .*", printed, re.M)
    assert losses[-1].startswith("outside: input (10, 5), output (10, 2), loss ")
    run(kernel, TRAIN)
    delays, program = random.Random(0), str(tmp_path)
    for number in range(interrupts):
        file = tmp_path / str(number)
        interrupt_once_it_trains(kernel, file, delays.uniform(0, 0.1))
        _, error = run(kernel, FOREVER.replace("FILE", repr(str(file))))
        assert error.ename == "KeyboardInterrupt"
        assert run(kernel, "print(is_that_of_one_device())") == ("the same\n", None)
    _, error = run(kernel, FAULT)
    assert (error.ename, error.evalue) == ("LookupError", "seven is not allowed")
    lines = without_colours(error.traceback).splitlines()
    assert any(re.match(r"-+> *4 +raise LookupError\(", line) for line in lines), error.traceback
    assert "The above exception" not in error.traceback
    before = {*processes_of(program)}
    assert len(before) == 3  # the kernel, the fork server and a worker
    run_sync(kernel.km.restart_kernel)()
    until = time.monotonic() + LIMIT_SECONDS
    while before & {*processes_of(program)}:
        assert time.monotonic() < until, "a process of the kernel before is left"
        time.sleep(0.02)
    run_sync(kernel.kc.wait_for_ready)(LIMIT_SECONDS)
    assert re.findall(r"^outside: .*", run_example(kernel), re.M) == losses
