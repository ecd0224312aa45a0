"""`Variable`, `volatile`, `.data` and numbers of PyTorch 0.3, in each of their forms."""

from __future__ import annotations

import pytest
from checked_texts import OLD, START, fixed, found, is_safe, messages, rewritten


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("y = Variable(x)", "y = x.detach()"),
        ("y = Variable(data=x)", "y = x.detach()"),
        ("y = Variable(x + 1)", "y = (x + 1).detach()"),
        ("y = Variable(x.data)", "y = x.data"),
        ("y = Variable(x.data.view(-1)[0])", "y = x.data.view(-1)[0]"),
        ("y = Variable(torch.ones(3), True)", "y = torch.ones(3).requires_grad_()"),
        ("y = Variable(torch.ones(3), requires_grad=False)", "y = torch.ones(3)"),
        ("y = Variable(torch.ones(3), requires_grad=a)", "y = torch.ones(3).requires_grad_(a)"),
        (
            "x = torch.ones(3)\ny = Variable(x, True)",
            "x = torch.ones(3)\ny = x.detach().requires_grad_()",
        ),
        ("x = torch.ones(3)\nx = Variable(x)", "x = torch.ones(3)"),
        ("x = torch.ones(3)\nx = Variable(x); y = 1", "x = torch.ones(3)\nx = x; y = 1"),
        ("if z:\n    x = torch.ones(3)\n    x = Variable(x)", "if z:\n    x = torch.ones(3)"),
        ("x = torch.ones(3)\nif z:\n    x = Variable(x)", "x = torch.ones(3)\nif z:\n    pass"),
        ("a = Variable(b) + 1", "a = b.detach() + 1"),
        ("a = Variable(-torch.ones(3)).sum()", "a = (-torch.ones(3)).detach().sum()"),
        ("y = Variable(*x)", None),
        ("y = Variable(x, False, True)", None),
        ("y = Variable(x, name=3)", None),
        ("y = Variable()", None),
    ],
)
def test_a_variable_becomes_its_tensor(before: str, after: str | None) -> None:
    start = "import torch\nfrom torch.autograd import Variable\n"
    left = start if after is None else "import torch\n"
    assert found(start + before, "ARC101")
    assert fixed(f"{start}{before}\n", "ARC101") == f"{left}{after or before}\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("isinstance(x, Variable)", "isinstance(x, torch.Tensor)"),
        ("type(x) == Variable", "isinstance(x, torch.Tensor)"),
        ("type(x) is Variable", "isinstance(x, torch.Tensor)"),
        ("type(x) != Variable", "not isinstance(x, torch.Tensor)"),
        ("type(x) is not Variable", "not isinstance(x, torch.Tensor)"),
    ],
)
def test_a_test_for_variable_becomes_one_for_tensor(before: str, after: str) -> None:
    text = f"from torch.autograd import Variable\n\ny = {before}\n"
    assert fixed(text, "ARC101") == f"import torch\n\ny = {after}\n"
    assert rewritten(text, "ARC101", allow_unsafe=False).is_changed is ("isinstance" in before)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("from torch.autograd import Variable", ""),
        ("from torch.autograd import Function, Variable", "from torch.autograd import Function"),
        (
            "from torch.autograd import Variable, Function as Fn, grad",
            "from torch.autograd import Function as Fn, grad",
        ),
        ("from torch.autograd import (Variable,\n    grad)", None),
        ("from torch.autograd import Variable\nx = 'Variable'", None),
        ("from mine import Variable", None),
    ],
)
def test_the_import_goes_once_nothing_uses_it(before: str, after: str | None) -> None:
    end = "\n" if after is None or after else ""
    assert fixed(f"{before}\n", "ARC101") == f"{before if after is None else after}{end}"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("def f(x):\n    return Variable(x, volatile=False)", "def f(x):\n    return x.detach()"),
        ("f = lambda x: Variable(x, volatile=True)", "f = lambda x: x.detach()"),
        (
            "@torch.no_grad()\ndef f(x):\n    return Variable(x, volatile=True)",
            "@torch.no_grad()\ndef f(x):\n    return x.detach()",
        ),
        (
            "@other\ndef f(x):\n    return Variable(x, volatile=True)",
            "@torch.no_grad()\n@other\ndef f(x):\n    return x.detach()",
        ),
        (
            "class A:\n    def f(self, x):\n        return Variable(x, volatile=True)",
            "class A:\n    @torch.no_grad()\n    def f(self, x):\n        return x.detach()",
        ),
        (
            "with torch.no_grad():\n    for x in y:\n        z = Variable(x, volatile=True)",
            "with torch.no_grad():\n    for x in y:\n        z = x.detach()",
        ),
        (
            "for x in y:\n    if x:\n        z = Variable(x, volatile=True)",
            "with torch.no_grad():\n    for x in y:\n        if x:\n            z = x.detach()",
        ),
        (
            "if y:\n    z = Variable(x, volatile=True)",
            "with torch.no_grad():\n    if y:\n        z = x.detach()",
        ),
        (
            "while a:\n    for x in y:\n        z = Variable(x, volatile=True)\n"
            "    loss.backward()",
            "while a:\n    with torch.no_grad():\n        for x in y:\n            z = x.detach()\n"
            "    loss.backward()",
        ),
        ("z = Variable(x, volatile=True)", "z = x.detach()"),
    ],
)
def test_what_is_volatile_runs_without_a_graph(before: str, after: str) -> None:
    start = "import torch\nfrom torch.autograd import Variable\n"
    text = f"{start}{before}\n"
    assert fixed(text, "ARC102") == f"{start}{after}\n"
    assert is_safe(text, "ARC102") is ("volatile=False" in text)


@pytest.mark.parametrize(
    "training",
    [
        "loss.backward()",
        "optimizer.zero_grad()",
        "optimizer.step()",
        "solver.step()",
        "self.manual_backward(loss)",
        "model.train()",
        "helper()",
    ],
)
def test_a_function_that_trains_keeps_its_graph(training: str) -> None:
    text = (
        "import torch\nfrom torch.autograd import Variable\ndef helper():\n    loss.backward()\n"
        f"def f(x):\n    y = Variable(x, volatile=True)\n    {training}\n"
    )
    assert "no_grad" not in fixed(text, "ARC102")
    assert "no_grad" in fixed(text.replace(f"    {training}\n", "    scheduler.step()\n"), "ARC102")


@pytest.mark.parametrize("evaluation", ["model.train(False)", "train()", "clock.step()"])
def test_a_function_that_evaluates_records_no_graph(evaluation: str) -> None:
    text = (
        "import torch\nfrom torch.autograd import Variable\n"
        f"def f(x):\n    y = Variable(x, volatile=True)\n    {evaluation}\n"
    )
    assert "@torch.no_grad()\ndef f(x):\n" in fixed(text, "ARC102")


def test_an_attribute_that_is_set_to_volatile_is_found() -> None:
    assert found("import torch\nx.volatile = True\n", "ARC102") == [("ARC102", 2)]
    assert found("import torch\nprint(x.volatile)\nself.volatile = 1\n", "ARC102") == []


def test_only_callers_that_pass_true_are_put_under_no_grad() -> None:
    text = """\
import torch
from torch.autograd import Variable

def batch(x, evaluation=False):
    return Variable(x, volatile=evaluation)

def one(x):
    return batch(x, True)

def two(x):
    return batch(x, False)

def three(x, flag):
    return batch(x, evaluation=flag)
"""
    after = fixed(text, "ARC102")
    assert after.count("no_grad") == 1
    assert "@torch.no_grad()\ndef one(x):" in after


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ("n += x.data.eq(1).sum()", True),
        ("n = x.data.mean()", True),
        ("self.n = x.data.max()", True),
        ("n = 3 * x.data.norm()", True),
        ("f(x.data.sum())", True),
        ("n = (x == y.data).sum()", True),
        ("n = x.eq(y.data).sum()", True),
        ("a = x.data\nn = a.sum()", True),
        ("n = f'{x.data.sum()}'", True),
        ("n = a, x.data.sum()", True),
        ("n = x.data.sum(0)", False),
        ("n = x.data.sum(dim=0)", False),
        ("n = x.data.sum().item()", False),
        ("n = x.sum()", False),
        ("x.data.sum()", False),
        ("n = x.data.exp()", False),
    ],
)
def test_a_count_was_a_number(text: str, is_found: bool) -> None:
    assert len(found(f"{OLD}{text}\n", "ARC114")) == is_found
    assert found(f"{START}{text}\n", "ARC114") == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("y = x.data.view(-1)", "y = x.detach().view(-1)"),
        ("y = x.data", "y = x.detach()"),
        ("y = z.data.cpu()", "y = z.detach().cpu()"),
        ("y = z.data[0]", "y = z.detach()[0]"),
        ("y = (x + z).data.cpu()", "y = (x + z).detach().cpu()"),
        ("y = (x).data[0]", "y = (x).detach()[0]"),
        ("y = model(z)\nw = y.data", "y = model(z)\nw = y.detach()"),
        ("y = z.weight.data == 1", "y = z.weight.detach() == 1"),
        ("y = z.data", None),
        ("y = z.data.cpu", None),
        ("y = z.data.items()", None),
        ("x.data.fill_(1)", None),
        ("x.data[0] = 1", None),
        ("x.data += 1", None),
        ("del x.data", None),
    ],
)
def test_data_is_read(before: str, after: str | None) -> None:
    start = f"{OLD}x = torch.ones(3)\n"
    assert len(found(f"{start}{before}\n", "ARC119")) == (after is not None)
    assert fixed(f"{start}{before}\n", "ARC119") == f"{start}{after or before}\n"
    assert found(f"{START}x = torch.ones(3)\n{before}\n", "ARC119") == []
    assert not is_safe(f"{start}{before}\n", "ARC119")


def test_an_assignment_to_data_is_left_to_a_person() -> None:
    text = f"{OLD}x = torch.ones(3)\nx.data = y\n"
    (message,) = messages(text, "ARC119")
    assert "assign `x` itself, or `x.copy_(…)`" in message
    assert fixed(text, "ARC119") == text


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("loss.data[0]", "loss.item()"),
        ("loss[0]", "loss.item()"),
        ("loss.data.cpu().numpy()[0]", "loss.item()"),
        ("loss.cpu().data.numpy()[0]", "loss.item()"),
        ("loss.data.tolist()[0]", "loss.item()"),
        ("x.max().data[0]", "x.max().item()"),
        ("(loss + x.sum()).data[0]", "(loss + x.sum()).item()"),
        ("((loss + x.sum()).data)[0]", "(loss + x.sum()).item()"),
        ("(loss).data[0]", "loss.item()"),
        ("f(x.sum(\n    ).data[0])", "f(x.sum(\n    ).item())"),
        ("(loss +\n    x.sum()).data[0]", "(loss +\n    x.sum()).item()"),
        ("(x\n    .sum()).data[0]", "(x\n    .sum()).item()"),
        ("(loss  # the loss\n    ).data[0]", None),
        ("other_loss(z).data[0]", "other_loss(z).item()"),
        ("errG.data[0]", "errG.item()"),
        ("self.kl_loss.data[0]", "self.kl_loss.item()"),
        ("z.data[0]", None),
        ("other_loss[0]", None),
        ("loss.data[1]", None),
        ("x.max(0)[0]", None),
        ("x.sum(0)[0]", None),
        ("x.mean(dim=1)[0]", None),
        ("herring.data[0]", None),
    ],
)
def test_a_number_has_no_index(before: str, after: str | None) -> None:
    start = "import torch\nx = torch.ones(3)\nloss = x.sum()\ny = "
    assert fixed(f"{start}{before}\n", "ARC103") == f"{start}{after or before}\n"


@pytest.mark.parametrize(("end", "error"), [("", "IndexError"), (".tolist()", "TypeError")])
def test_the_error_of_an_index_is_named(end: str, error: str) -> None:
    (message,) = messages(
        f"import torch\nloss = torch.ones(3).sum()\nloss.data{end}[0]\n", "ARC103"
    )
    assert f"so this raises {error}; write `.item()`" in message
