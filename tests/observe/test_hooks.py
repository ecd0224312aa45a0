"""`Observer` and `Replacements`: what they report, and that PyTorch is left as it was."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    _global_forward_hooks,
    _global_forward_hooks_always_called,
    _global_forward_hooks_with_kwargs,
    _global_forward_pre_hooks,
)
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from anyrig.observe.events import Events
from anyrig.observe.hooks import Observer, Replacements, is_replaced

HOOKS = (
    *(_global_forward_pre_hooks, _global_forward_hooks),
    *(_global_forward_hooks_with_kwargs, _global_forward_hooks_always_called),
    *(_global_optimizer_pre_hooks, _global_optimizer_post_hooks),
)


def state_of_torch() -> list[object]:
    return [
        *map(len, HOOKS),
        torch.autograd.backward,
        vars(nn.Module)["zero_grad"],
        vars(torch.optim.Optimizer)["zero_grad"],
        vars(_BaseDataLoaderIter)["__next__"],
        *(vars(Tensor).get(name) for name in ("data", "detach")),
        vars(nn.Parameter)["__new__"],
    ]


@contextmanager
def observed(**handlers: Callable[..., Any]) -> Iterator[Observer]:
    observer = Observer(Events(**handlers))
    observer.start()
    try:
        yield observer
    finally:
        observer.stop()


def test_each_event_is_reported_in_its_order() -> None:
    seen: list[str] = []
    handlers = {
        name: functools.partial(lambda name, *_: seen.append(name), name)
        for name in Events.__dataclass_fields__
        if name not in ("next_batch", "backward_failed")
    }
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with observed(**handlers):
        model(torch.ones(1, 1)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        model.zero_grad()
    model(torch.ones(1, 1)).sum().backward()
    assert seen == [
        *("module_called", "module_finished", "backward_begun", "backward_ended"),
        *("step_begun", "step_ended", "zeroed", "zeroed"),
    ]


@pytest.mark.parametrize("event", Events.__dataclass_fields__)
def test_only_what_an_event_needs_is_hooked_and_restored(event: str) -> None:
    before = state_of_torch()
    with observed(**{event: lambda *_: None}) as observer:
        hooked = [a is not b for a, b in zip(state_of_torch(), before, strict=True)]
        assert sum(hooked) == {"zeroed": 2, "module_finished": 3}.get(event, 1)
        observer.stop()
        assert state_of_torch() == before
    assert state_of_torch() == before


def test_a_handler_sees_what_the_program_gave() -> None:
    calls: list[Any] = []
    model = nn.Bilinear(1, 1, 1)
    x = torch.ones(1, 1)
    with observed(module_finished=lambda *facts: calls.append(facts)):
        model(x, input2=x)
        with pytest.raises(TypeError):
            model(x)
    assert [(one[0] is model, len(one[1]), list(one[2])) for one in calls] == [
        (True, 1, ["input2"]),
        (True, 1, []),
    ]
    roots: list[Any] = []
    with observed(backward_begun=lambda *given: roots.append(given)):
        loss = model(x, x)
        torch.autograd.backward([loss], [x], retain_graph=True)
        torch.autograd.backward(loss, grad_tensors=x)
    assert [type(each) for given in roots for each in given] == [list, list, Tensor, Tensor]


def test_a_handler_changes_the_inputs_of_a_module() -> None:
    with observed(module_called=lambda module, inputs: inputs[0] + 1):
        assert nn.Identity()(torch.ones(())) == 2


def test_a_failed_backward_pass_does_not_end() -> None:
    seen: list[str] = []
    ways = {
        "backward_ended": lambda: seen.append("ended"),
        "backward_failed": lambda: seen.append("failed"),
    }
    with observed(**ways), pytest.raises(RuntimeError, match="does not require grad"):
        torch.ones(1).backward()
    assert seen == ["failed"]


def test_batches_are_changed_by_several_observers() -> None:
    def add(amount: int) -> Callable[..., Any]:
        return lambda load, iterator: load(iterator) * 10 + amount

    loader: Any = DataLoader(torch.zeros(2, dtype=torch.int64), batch_size=2)  # type: ignore[arg-type]
    with observed(next_batch=add(1)), observed(next_batch=add(2)):
        assert [each.tolist() for each in loader] == [[12, 12]]
    assert [each.tolist() for each in loader] == [[0, 0]]


def test_observers_leave_in_any_order() -> None:
    before = state_of_torch()
    seen: list[str] = []
    first, second = (
        Observer(Events(backward_ended=functools.partial(seen.append, name))) for name in "ab"
    )
    x = torch.ones(1, requires_grad=True)
    first.start()
    second.start()
    x.sum().backward()
    first.stop()
    x.sum().backward()
    assert seen == ["a", "b", "b"]
    second.stop()
    assert state_of_torch() == before


def test_what_the_program_has_replaced_stays() -> None:
    before, seen = torch.autograd.backward, []
    with observed(backward_begun=lambda *_: seen.append("observed")):
        ours = torch.autograd.backward

        @functools.wraps(ours)  # copies the attributes of our function, too
        def of_program(*args: Any, **kwargs: Any) -> None:
            seen.append("program")
            ours(*args, **kwargs)

        torch.autograd.backward = of_program
    try:
        assert torch.autograd.backward is of_program
        torch.ones(1, requires_grad=True).sum().backward()
        assert seen == ["program"]
        assert not is_replaced(torch.autograd, "backward")
    finally:
        torch.autograd.backward = before


def test_functions_and_properties_of_each_kind_are_replaced_and_restored() -> None:
    before, seen = state_of_torch(), []
    replacements = Replacements()

    def note(name: str) -> Callable[..., Any]:
        def call(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            seen.append(name)
            return original(*args, **kwargs)

        return call

    replacements.around(Tensor, "detach", note("method"))
    replacements.around(nn.Parameter, "__new__", note("static method"))
    replacements.around_property(Tensor, "data", note("get"), note("set"))
    try:
        assert is_replaced(Tensor, "data")
        assert is_replaced(nn.Parameter, "__new__")
        x = torch.ones(1)
        nn.Parameter(x.detach(), requires_grad=False)
        x.data = x.data + 1
        assert x == 2
    finally:
        replacements.restore()
    assert seen == ["method", "static method", "get", "set"]
    assert state_of_torch() == before
    assert "data" not in vars(Tensor)
