"""Errors name the device, the values and the remedy; and the next step works."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from trained_models import first_devices, on_lead

import anyrig
from anyrig.parallel.notes import add_as_cause
from anyrig.parallel.plans import Replicas

pytestmark = pytest.mark.gpus(2)


class Fragile(nn.Module):
    """Calls a given function on a given device."""

    def __init__(self, where: str, act: Callable[[], Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.where: str | None = where
        self.act = act

    def forward(self, x: Tensor, **named: Any) -> Tensor:
        if self.where in (str(x.device), "everywhere"):
            self.act()
        return self.linear(x)


def fail() -> None:
    raise ValueError("the moon is full")


def shown(error: BaseException) -> str:
    """Return an exception as Python prints it."""
    return "".join(traceback.format_exception(error))


def spread(module: nn.Module, **options: Any) -> Any:
    return anyrig.spread(module, first_devices(2), **options)


def inputs(rows: int = 7) -> Tensor:
    return torch.randn(rows, 4, dtype=torch.float64, device="cuda:0")


@pytest.mark.parametrize("where", ["cuda:0", "cuda:1", "everywhere"])
def test_an_exception_says_device_shapes_and_line(where: str) -> None:
    module = on_lead(Fragile(where, fail))
    model, x = spread(module), inputs()
    with pytest.raises(ValueError, match="the moon is full") as raised:
        model(x, name="n", mask=x[:, 0] > 0)
    told = shown(raised.value)
    device = "cuda:0" if where == "everywhere" else where
    assert device in told
    assert f"({4 if device == 'cuda:0' else 3}, 4)" in told.replace("[", "(").replace("]", ")")
    assert "in fail\n" in told  # the replica's own traceback


def test_after_an_exception_the_next_step_works() -> None:
    module = on_lead(Fragile("cuda:1", fail))
    model, x = spread(module), inputs()
    for _ in range(3):
        with pytest.raises(ValueError, match="moon"):
            model(x)
    module.where = None
    torch.testing.assert_close(model(x), module(x))
    model(x).sum().backward()
    torch.testing.assert_close(module.linear.weight.grad, x.sum(0).expand(2, 4))


def test_an_exception_in_the_backward_pass() -> None:
    module = on_lead(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)))
    model, x = spread(module), inputs().requires_grad_()
    failing = [True]

    def check(_: nn.Module, before: Any, after: Any) -> None:
        if failing[0] and str(after[0].device) == "cuda:1":
            fail()

    module[0].register_full_backward_hook(check)
    with pytest.raises(ValueError, match="moon"):
        model(x).sum().backward()
    failing[0] = False
    module.zero_grad()
    model(x).sum().backward()
    found = module[0].weight.grad.clone()
    module.zero_grad()
    module(x).sum().backward()
    torch.testing.assert_close(found, module[0].weight.grad)


def test_out_of_memory_is_torchs_own() -> None:
    module = on_lead(Fragile("cuda:1", lambda: torch.empty(2**45, device="cuda:1")))
    model = spread(module)
    with pytest.raises(torch.OutOfMemoryError) as raised:
        model(inputs())
    assert "cuda:1" in shown(raised.value)
    module.where = None
    model(inputs())


def test_the_arguments_of_an_exception_stay_as_they_were() -> None:
    module = on_lead(Fragile("cuda:1", lambda: {}["missing"]))
    model = spread(module)
    for _ in range(2):
        with pytest.raises(KeyError) as raised:
            model(inputs())
        assert raised.value.args == ("missing",)
        place = "in the replica on cuda:1, which was given argument 0 (3, 4) float64"
        assert place in shown(raised.value)


def test_an_exception_that_is_raised_often_says_its_place_once() -> None:
    error = ValueError("always the same")

    def raise_it() -> None:
        raise error

    model = spread(on_lead(Fragile("cuda:1", raise_it)))
    for _ in range(3):
        with pytest.raises(ValueError, match="always the same"):
            model(inputs())
    assert shown(error).count("in the replica on cuda:1") == 1


@pytest.mark.parametrize("kind", ["alone", "with a cause", "with a context"])
def test_python_3_10_shows_the_place_before_what_led_to_the_exception(kind: str) -> None:
    error, first = KeyError("missing"), ValueError("the first of them")
    if kind == "with a cause":
        error.__cause__ = first
    elif kind == "with a context":
        error.__context__ = first
    for _ in range(2):
        add_as_cause(error, "in the replica on cuda:1")
    lines = shown(error).splitlines()
    assert error.args == ("missing",)
    assert lines[0].endswith("Note: in the replica on cuda:1")
    assert lines[-1] == "KeyError: 'missing'"
    assert ("ValueError: the first of them" in lines) == (kind != "alone")


def test_an_exception_of_several_arguments_stays_of_its_class() -> None:
    class PeculiarError(Exception):
        def __init__(self, first: int, second: int) -> None:
            super().__init__(first, second)
            self.second = second

    def act() -> None:
        raise PeculiarError(1, 2)

    with pytest.raises(PeculiarError) as raised:
        spread(on_lead(Fragile("cuda:1", act)))(inputs())
    assert raised.value.second == 2


def test_an_interrupt_comes_through() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    module = on_lead(Fragile("cuda:1", interrupt))
    model = spread(module)
    with pytest.raises(KeyboardInterrupt):
        model(inputs())
    module.where = None
    model(inputs())


def test_threads_end_with_the_model() -> None:
    before = threading.active_count()
    models = [spread(on_lead(nn.Linear(4, 2))) for _ in range(3)]
    for model in models:
        model(inputs()).sum().backward()
    del models, model
    deadline = time.monotonic() + 5
    while threading.active_count() > before + 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    # One pool for all models may remain, but not a thread for each model.
    assert threading.active_count() <= before + 1


def test_parameters_on_another_device() -> None:
    module = nn.Sequential(nn.Linear(4, 4).to("cuda:0"), nn.Linear(4, 2).to("cuda:1"))
    with pytest.raises(RuntimeError, match=r"(?s)1\.weight.*cuda:1.*cuda:0"):
        spread(module)(inputs().float())


def test_parameters_on_meta() -> None:
    with pytest.raises(RuntimeError, match=r"meta"):
        spread(nn.Linear(4, 2, device="meta"))(inputs().float())


def test_a_batch_whose_parts_disagree() -> None:
    model = spread(on_lead(Fragile("nowhere", fail)))
    with pytest.raises(ValueError, match=r"(?s)7.*'mask'.*5|5.*'mask'.*7"):
        model(inputs(), mask=torch.ones(5, device="cuda:0"))


def test_targets_that_do_not_fit_the_batch() -> None:
    model = spread(on_lead(nn.Linear(4, 2)), loss=nn.MSELoss())
    with pytest.raises(ValueError, match=r"(?s)7.*target.*6"):
        model(inputs(), target=torch.zeros(6, 2, dtype=torch.float64, device="cuda:0"))


@pytest.mark.parametrize("dim", [2, -3])
def test_a_dimension_that_does_not_exist(dim: int) -> None:
    with pytest.raises((ValueError, IndexError), match=rf"(?s){dim}.*\(7, 4\)|\(7, 4\).*{dim}"):
        spread(on_lead(nn.Linear(4, 2)), dim=dim)(inputs())


def test_a_device_twice() -> None:
    with pytest.raises(ValueError, match=r"cuda:0"):
        anyrig.DataParallel(on_lead(nn.Linear(4, 2)), [0, 0])


def test_a_device_that_is_not_there() -> None:
    count = torch.cuda.device_count()
    with pytest.raises((ValueError, RuntimeError), match=str(count)):
        anyrig.DataParallel(on_lead(nn.Linear(4, 2)), [0, count])


def test_no_devices() -> None:
    with pytest.raises((ValueError, RuntimeError), match="device"):
        anyrig.DataParallel(on_lead(nn.Linear(4, 2)), [])


@pytest.mark.parametrize(
    "shares",
    [[1], [1, 2, 3], [0, 0], [-1, 2], [float("nan"), 1], "fast", ["a", "b"], [1, float("inf")]],
    ids=str,
)
def test_bad_shares(shares: Any) -> None:
    with pytest.raises(ValueError, match="share"):
        spread(on_lead(nn.Linear(4, 2)), plan=Replicas(shares=shares))


@pytest.mark.parametrize("plan", ["magic", Replicas, {"shares": "even"}], ids=str)
def test_what_is_no_plan(plan: Any) -> None:
    with pytest.raises(anyrig.errors.SpreadError, match=r"is not a plan; use Replicas\(\), Shards"):
        spread(on_lead(nn.Linear(4, 2)), plan=plan)


def test_a_target_without_a_loss() -> None:
    with pytest.raises(TypeError, match=r"'target'"):
        spread(on_lead(nn.Linear(4, 2)))(inputs(), target=inputs()[:, :2])


def test_a_criterion_without_reduction_gives_the_loss_of_each_sample() -> None:
    module = on_lead(nn.Linear(4, 2))
    criterion = nn.MSELoss(reduction="none")
    x = inputs()
    losses = spread(module, loss=criterion)(x, target=x[:, :2])
    torch.testing.assert_close(losses, criterion(module(x), x[:, :2]))


def test_what_is_no_module() -> None:
    with pytest.raises(anyrig.errors.AnyrigError, match=r"(?i)module"):
        spread(lambda x: x)


def test_a_spread_model_is_not_spread_again() -> None:
    model = spread(on_lead(nn.Linear(4, 2)))
    with pytest.raises(anyrig.errors.AnyrigError, match="already"):
        spread(model)


def test_outputs_of_different_forms() -> None:
    class Moody(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return x if str(x.device) == "cuda:0" else {"x": x}

    with pytest.raises(ValueError, match="different"):
        spread(Moody())(inputs())
