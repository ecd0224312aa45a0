"""The rules' claims about PyTorch hold for the installed version."""

import importlib
import inspect
import warnings
from functools import reduce
from types import ModuleType

import pytest
import torch
from checked_texts import found
from torch.autograd import Variable

from anyrig.migration.rules.renamed import _DEPRECATED, _MOVED, _REMOVED

PREPARED = """\
loss = torch.ones(3, requires_grad=True).sum()
x = torch.ones(3)
mask = x > 0
bytes = mask.byte()
correct = torch.ones(4, 5).t().eq(1)
weight = torch.nn.Linear(2, 2).weight
optimizer = torch.optim.SGD([weight], 0.1)
file = io.BytesIO()
torch.save(torch.nn.Linear(2, 2), file)
file.seek(0)
"""


def run(text: str) -> object:
    """The value of an expression behind the preparations, or the exception."""
    scope = {name: importlib.import_module(name) for name in ("io", "torch")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(PREPARED, scope)
        try:
            return eval(text, scope)
        except Exception as error:
            return error


@pytest.mark.parametrize(
    ("rule", "text", "result"),
    [
        ("ARC005", "hasattr(iter(torch.utils.data.DataLoader([1])), 'next')", False),
        ("ARC103", "loss.data[0]", "IndexError"),
        ("ARC103", "loss.data.cpu().numpy()[0]", "IndexError"),
        ("ARC103", "loss.data.tolist()[0]", "TypeError"),
        ("ARC106", "1 - mask", "RuntimeError"),
        ("ARC106", "x.masked_fill(bytes, 0)", "RuntimeError"),
        ("ARC106", "x.masked_fill_(bytes, 0)", "RuntimeError"),
        ("ARC106", "x.masked_select(bytes)", "RuntimeError"),
        ("ARC106", "x.masked_scatter(bytes, x)", "RuntimeError"),
        ("ARC106", "x.masked_scatter_(bytes, x)", "RuntimeError"),
        ("ARC106", "x[bytes].tolist()", [1, 1, 1]),
        ("ARC106", "x.__setitem__(bytes, 0)", "RuntimeError"),
        ("ARC107", "(torch.tensor(7) / 2).item()", 3.5),
        ("ARC107", "(torch.tensor(-7) // 2).item()", -4),
        ("ARC108", "correct[:3].view(-1)", "RuntimeError"),
        ("ARC108", "correct[:1].view(-1).shape[0]", 4),
        ("ARC113", "[torch.nn.Softmax()(torch.ones(s)).flatten()[0].item() for s in "
         "[(2,), (2, 5), (2, 5, 5), (5, 2, 5, 5)]]", [0.5, 0.2, 0.5, 0.5]),
        ("ARC116", "torch.optim.lr_scheduler.StepLR(optimizer, 1, verbose=True)", "TypeError"),
        ("ARC117", "torch.load(file)", "UnpicklingError"),
        ("ARC118", "torch.ones(3).view(-1).sum(0).dim()", 0),
        ("ARC120", "((mask + mask) == 2).tolist()", [False, False, False]),
        ("ARC120", "((mask.byte() + mask.byte()) == 2).tolist()", [True, True, True]),
        ("ARC120", "(mask.byte() + mask + mask).tolist()", [3, 3, 3]),
        ("ARC120", "((x < 0).byte() - mask.byte()).tolist()", [255, 255, 255]),
        ("ARC120", "mask - mask", "RuntimeError"),
        ("ARC206", "(torch.no_grad(), torch.is_grad_enabled())[1]", True),
        ("ARC304", "weight.add_(1)", "RuntimeError"),
    ],
)  # fmt: skip
def test_an_expression(rule: str, text: str, result: object) -> None:
    found = run(text)
    if isinstance(found, Exception):  # PyTorch 2.15 raises subclasses of some earlier classes
        assert result in [each.__name__ for each in type(found).__mro__]
    else:
        assert found == (pytest.approx(result) if isinstance(result, list) else result)


@pytest.mark.parametrize(
    ("rule", "text", "warning"),
    [
        ("ARC102", "Variable(torch.ones(1), volatile=True)", "volatile was removed"),
        ("ARC104", "torch.nn.MSELoss(size_average=False)", "size_average and reduce"),
        (
            "ARC105",
            "torch.nn.functional.grid_sample(torch.ones(1, 1, 2, 2), torch.ones(1, 2, 2, 2))",
            "align_corners=False since",
        ),
        ("ARC106", "torch.ones(3)[torch.ones(3).byte()]", "torch.uint8 is now deprecated"),
        ("ARC111", "torch.set_default_tensor_type('torch.FloatTensor')", "as of PyTorch 2.1"),
        ("ARC113", "torch.nn.functional.softmax(torch.ones(3))", "Implicit dimension"),
    ],
)
def test_a_warning(rule: str, text: str, warning: str) -> None:
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with pytest.warns(Warning, match=warning):
            eval(text, {"torch": torch, "Variable": Variable})
    finally:
        torch.set_warn_always(always)


@pytest.mark.parametrize("module", [torch.nn, torch.nn.functional])
def test_every_loss_with_the_old_arguments_is_known(module: ModuleType) -> None:
    having = [
        f"{module.__name__}.{name}"
        for name, value in vars(module).items()
        if name[0] != "_"
        and (inspect.isfunction(value) or name.endswith(("Loss", "Loss2d")))
        and "size_average" in str(inspect.signature(value))
    ]
    assert len(having) > 14
    for name in having:
        assert found(f"import torch\n{name}(size_average=False)\n", "ARC104"), name


def test_what_every_module_has_is_not_hidden_by_a_wrapper() -> None:
    wrapper = torch.nn.DataParallel(torch.nn.Linear(1, 1))
    text = "import torch\nmodel = torch.nn.DataParallel(Net())\n"
    for name in dir(wrapper):
        assert not found(f"{text}model.{name}\n", "ARC203"), name


def find_name(name: str) -> object:
    """What a dotted name is in the installed PyTorch; None if there is nothing."""
    if not name.startswith("torch."):
        return eval(name)
    return reduce(lambda part, word: getattr(part, word, None), name.split(".")[1:], torch)


@pytest.mark.parametrize("name", _DEPRECATED)
def test_a_deprecated_name_is_there(name: str) -> None:
    assert find_name(name) is not None
    assert find_name(_DEPRECATED[name][0]) is not None


@pytest.mark.parametrize("name", [name for name in _MOVED | _REMOVED if name.startswith("torch.")])
def test_a_removed_name_is_gone(name: str) -> None:
    gone = find_name(name)
    if gone is not None:
        with pytest.raises(RuntimeError, match="is now removed"):
            gone(torch.eye(2), torch.eye(2))  # type: ignore[operator]
    if name in _MOVED:
        assert find_name(_MOVED[name]) is not None


def test_variable() -> None:
    graph = torch.ones(3, requires_grad=True) * 2
    value = Variable(graph)
    assert value.data_ptr() == graph.data_ptr()
    assert not value.requires_grad
    assert type(graph) is not Variable
    assert isinstance(graph, Variable)
