"""The forms in which rules ARC3xx find mistakes in a training step, and correct code."""

from __future__ import annotations

import pytest
from checked_texts import fixed, found, messages, rewritten

SUMS = """\
import torch.nn.functional as F
def train(model, loader):
    total = {start}
    for x, y in loader:
        {reset}
        loss = F.mse_loss(model(x), y)
        {backward}
        {add}
    {end}
"""
SUM = {
    "start": "0",
    "reset": "pass",
    "backward": "loss.backward()",
    "add": "total += loss",
    "end": "return total",
}


@pytest.mark.parametrize(
    ("changes", "is_found"),
    [
        ({}, True),
        ({"add": "total += F.l1_loss(model(x), y)"}, True),
        ({"add": "total += loss * 2"}, True),
        ({"start": "0.0"}, True),
        ({"add": "total -= loss"}, False),
        ({"add": "self.total += loss"}, False),
        ({"add": "total += loss.item()"}, False),
        ({"add": "total += loss.detach()"}, False),
        ({"add": "total += loss.data"}, False),
        ({"add": "total += 1"}, False),
        ({"start": "[]"}, False),
        ({"start": "torch.zeros(3)"}, False),
        ({"reset": "total = 0"}, False),
        ({"backward": "pass"}, False),
        ({"end": "total.backward()"}, False),
    ],
)
def test_losses_are_added_up_with_their_graphs(changes: dict[str, str], is_found: bool) -> None:
    text = SUMS.format(**(SUM | changes))
    assert found(text, "ARC301") == [("ARC301", 8)] * is_found


@pytest.mark.parametrize(
    ("end", "suffix", "is_safe"),
    [
        ("return total", ".detach()", True),
        ("print(total)", ".detach()", True),
        ("x = total.cpu", ".detach()", True),
        ("x = total / 2", ".item()", False),
    ],
)
def test_a_total_that_is_used_as_a_number_gets_numbers(
    end: str, suffix: str, is_safe: bool
) -> None:
    text = SUMS.format(**(SUM | {"end": end}))
    assert fixed(text, "ARC301") == text.replace("+= loss", f"+= loss{suffix}")
    assert rewritten(text, "ARC301", allow_unsafe=False).is_changed is is_safe


def test_a_sum_of_terms_is_left_to_a_person() -> None:
    text = SUMS.format(**(SUM | {"add": "total += loss * 2"}))
    assert fixed(text, "ARC301") == text


STEP = """\
import torch
import torch.nn.functional as F
def train(model, loader):
    for x, y in loader:
        loss = F.mse_loss(model(x), y)
        loss.backward()
        {first}
        {second}
"""


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("print(loss)", "total = loss.item()"),
        ("a = float(loss)", "print('loss', loss)"),
        ("a = x.tolist()", "b = loss.item()"),
        ("a = loss.item(); b = 1", "c = loss.item()"),
        ("with open('a') as f: print(loss)", "a = [loss.item()]"),
    ],
)
def test_each_step_waits_twice(first: str, second: str) -> None:
    (message,) = messages(STEP.format(first=first, second=second), "ARC302")
    assert "each step waits for the device 2 times: here and in line 8;" in message
    assert found(STEP.format(first=first, second=second), "ARC302") == [("ARC302", 7)]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("print(loss)", "pass"),
        ("print('a')", "total = loss.item()"),
        ("print(loss)", "if x: total = loss.item()"),
        ("print(loss)", "a = loss.item() if x else 0"),
        ("print(loss)", "for _ in x: loss.item()"),
        ("print(loss)", "while x: loss.item()"),
        ("print(loss)", "f = lambda: loss.item()"),
        ("print(loss)", "def f(): loss.item()"),
        ("print(loss)", "n = int(3)"),
        ("print(loss)", "box.item()"),
    ],
)
def test_one_wait_in_a_step_or_rare_ones_are_right(first: str, second: str) -> None:
    assert found(STEP.format(first=first, second=second), "ARC302") == []


def test_a_loop_that_does_not_train_may_wait() -> None:
    text = STEP.format(first="print(loss)", second="loss.item()")
    assert found(text.replace("loss.backward()", "pass"), "ARC302") == []
    epochs = text.replace(
        "    for", "    for epoch in range(3):\n     print(x); print(y)\n     for"
    )
    assert [line for _, line in found(epochs, "ARC302")] == [9]


def test_every_wait_is_counted_and_named_with_its_line() -> None:
    text = STEP.format(first="print(loss)", second="loss.item()\n        loss.item()")
    (message,) = messages(text, "ARC302")
    assert "waits for the device 3 times: here and in line 8, 9;" in message


SAMPLER = """\
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler
def main(data):
    {sampler}
    {loader}
    {loop}
        train()
"""
SAMPLED = {
    "sampler": "sampler = DistributedSampler(data)",
    "loader": "loader = DataLoader(data, sampler=sampler)",
    "loop": "for epoch in range(3):",
}
INLINE = {"sampler": "loader = DataLoader(data, sampler=DistributedSampler(data))"}


@pytest.mark.parametrize(
    ("changes", "is_found"),
    [
        ({}, True),
        ({"sampler": "sampler = DistributedSampler(data, shuffle=True)"}, True),
        ({"loader": "loader = BatchSampler(sampler, 8, True)"}, True),
        ({"loop": "for Epoch_number in range(3):"}, True),
        (INLINE, True),
        ({"sampler": "sampler = DistributedSampler(data, shuffle=False)"}, False),
        ({"sampler": "sampler = DistributedSampler(data, shuffle=args.shuffle)"}, False),
        ({"sampler": "sampler = DistributedSampler(data, **options)"}, False),
        ({"sampler": "val_sampler = DistributedSampler(data)"}, False),
        ({"sampler": "sampler = DistributedSampler(test_data)"}, False),
        ({"sampler": "sampler = DistributedSampler(data.eval)"}, False),
        ({"loader": "loader = make_loader(data, sampler)"}, False),
        ({"loader": "loader = make_loader(data, sampler=sampler)"}, False),
        ({"loader": "loader = make_loader(data, other)"}, True),
        ({"loader": "sampler.set_epoch(3)"}, False),
        ({"loop": "for step in range(3):"}, False),
        ({"loop": "for step in range(3):\n      for batch in enumerate(loader):"}, True),
        (INLINE | {"loop": "for epoch in range(len(loader)):\n      for x in tqdm(loader):"}, True),
        (INLINE | {"loader": "prepare(loader)"}, False),
        ({"loop": "for step in steps:\n      for batch in loader:"}, False),
        ({"loop": "while epoch < 3:"}, False),
    ],
)
def test_a_sampler_needs_its_epoch(changes: dict[str, str], is_found: bool) -> None:
    text = SAMPLER.format(**(SAMPLED | changes))
    assert found(text, "ARC303") == [("ARC303", 3)] * is_found


def test_the_epoch_is_set_at_the_start_of_the_only_loop_that_sees_the_sampler() -> None:
    text = SAMPLER.format(**SAMPLED)
    after = text.replace("        train()", "        sampler.set_epoch(epoch)\n        train()")
    assert fixed(text, "ARC303") == after
    assert not rewritten(text, "ARC303", allow_unsafe=False).is_changed
    twice = text + "    for epoch in range(3):\n        train()\n"
    elsewhere = text.replace("    for epoch", "def other():\n    for epoch")
    inline = text.replace(":\n        train()", ": train()")
    for left in (twice, elsewhere, inline):
        assert [code for code, _ in found(left, "ARC303")] == ["ARC303"]
        assert fixed(left, "ARC303") == left


def test_a_function_sees_the_sampler_of_its_module() -> None:
    text = (
        "from torch.utils.data import DistributedSampler\nsampler = DistributedSampler(data)\n"
        "def main():\n    for epoch in range(3):\n        train()\n"
    )
    assert "        sampler.set_epoch(epoch)\n        train()\n" in fixed(text, "ARC303")


LEAF = """\
import torch
{head}
    w = torch.zeros(3, requires_grad=True)
    (w * 2).sum().backward()
    {change}
"""


@pytest.mark.parametrize(
    ("change", "is_found"),
    [
        ("w -= w.grad", True),
        ("w.add_(1)", True),
        ("torch.nn.Linear(2, 2).weight.mul_(2)", True),
        ("for p in model.parameters(): p.add_(1)", True),
        ("p = next(model.parameters()); p.zero_()", True),
        ("p = torch.nn.Parameter(w); p.zero_()", True),
        ("with torch.enable_grad(): w.add_(1)", True),
        ("w.data.add_(1)", False),
        ("w.grad.zero_()", False),
        ("x = w * 2; x.add_(1)", False),
        ("w.requires_grad_(False)", False),
        ("w.detach_()", False),
        ("w.__iadd__(1)", False),
        ("with torch.no_grad(): w.add_(1)", False),
        ("with open(f), torch.inference_mode(): w.add_(1)", False),
        ("with torch.set_grad_enabled(False): w.add_(1)", False),
        ("f = lambda: w.add_(1)", False),
        ("torch.set_grad_enabled(False); w.add_(1)", False),
    ],
)
def test_a_leaf_is_changed_while_a_graph_is_recorded(change: str, is_found: bool) -> None:
    text = LEAF.format(head="def train(model):", change=change)
    assert found(text, "ARC304") == [("ARC304", 5)] * is_found


@pytest.mark.parametrize(
    "head",
    [
        "def _train():",
        "def init_weights():",
        "def reset():",
        "@torch.no_grad()\ndef train():",
    ],
)
def test_a_function_that_may_run_under_a_guard_is_right(head: str) -> None:
    text = LEAF.format(head=head, change="w.add_(1)")
    assert found(text, "ARC304") == []


def test_only_functions_that_call_backward_are_searched() -> None:
    text = LEAF.format(head="def train():", change="w.add_(1)")
    assert found(text.replace("(w * 2).sum().backward()", "pass"), "ARC304") == []
