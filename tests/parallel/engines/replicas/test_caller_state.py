"""Replicas run with the settings of the thread that calls the model."""

from __future__ import annotations

import contextvars
import threading
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from trained_models import first_devices

import anyrig
from anyrig.parallel.engines.replicas.caller_state import CallerState
from anyrig.parallel.engines.replicas.side_by_side import device_threads

pytestmark = pytest.mark.gpus(2)

DEVICES = (torch.device("cuda:0"), torch.device("cuda:1"))
VARIABLE = contextvars.ContextVar("VARIABLE", default="none")


def ask(question: Any) -> Any:
    """Call `question` in the thread of the second device, as a replica is called."""
    state = CallerState(DEVICES)
    call: Future[Any] = Future()
    device_threads().start_all([(DEVICES[1], call, lambda: state.call(DEVICES[1], question))])
    return call.result()


def test_the_device_is_current_and_the_stream_the_callers() -> None:
    stream = torch.cuda.Stream(device=1)
    with torch.cuda.stream(stream):
        device, found = ask(lambda: (torch.cuda.current_device(), torch.cuda.current_stream(1)))
    assert (device, found) == (1, stream)
    with torch.cuda.stream(other := torch.cuda.Stream(device=0)):
        device, found = ask(lambda: (torch.cuda.current_device(), torch.cuda.current_stream(0)))
    assert (device, found) == (1, other)
    assert ask(lambda: torch.cuda.current_stream(1)) == torch.cuda.default_stream(1)


@pytest.mark.gpus(3)
@pytest.mark.parametrize("current", [0, 1, 2])
@pytest.mark.parametrize("shares", [[1, 1], [0, 1]], ids=str)
def test_the_callers_device_stays_current(current: int, shares: list[int]) -> None:
    model = anyrig.spread(
        nn.Linear(4, 2).cuda(), first_devices(2), plan=anyrig.Replicas(shares=shares)
    )
    x = torch.randn(6, 4, device="cuda:0")
    torch.cuda.set_device(current)
    try:
        model(x).sum().backward()
        after = torch.cuda.current_device()
    finally:
        torch.cuda.set_device(0)
    assert after == current


@pytest.mark.parametrize(
    "setting",
    [
        torch.no_grad,
        torch.enable_grad,
        torch.inference_mode,
        lambda: torch.autocast("cuda", torch.bfloat16),
        lambda: torch.autocast("cpu", torch.float16),
        lambda: torch.autocast("cuda", torch.float16, cache_enabled=False),
    ],
    ids=["no_grad", "enable_grad", "inference", "bfloat16", "cpu", "cache"],
)
def test_settings(setting: Any) -> None:
    def look() -> tuple[object, ...]:
        return (
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.is_autocast_cache_enabled(),
            *(torch.is_autocast_enabled(kind) for kind in ("cuda", "cpu")),
            *(torch.get_autocast_dtype(kind) for kind in ("cuda", "cpu")),
        )

    outside = ask(look)
    with setting():
        assert ask(look) == look()
    assert ask(look) == outside


def test_context_variables() -> None:
    token = VARIABLE.set("of the caller")
    try:
        assert ask(VARIABLE.get) == "of the caller"
        assert ask(lambda: VARIABLE.set("of the replica")) is not None
        assert VARIABLE.get() == "of the caller"
    finally:
        VARIABLE.reset(token)


class FunctionMode(TorchFunctionMode):
    def __init__(self, seen: list[int]) -> None:
        self.seen = seen

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        self.seen.append(threading.get_ident())
        return function(*args, **(kwargs or {}))


class DispatchMode(TorchDispatchMode):
    def __init__(self, seen: list[int]) -> None:
        super().__init__()
        self.seen = seen

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        self.seen.append(threading.get_ident())
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [FunctionMode, DispatchMode])
def test_modes(mode: Any) -> None:
    seen: list[int] = []
    with mode(seen):
        there = ask(lambda: (torch.ones(2) + 1, threading.get_ident())[1])
    assert there in seen
    seen.clear()
    ask(lambda: torch.ones(2) + 1)
    assert seen == []


def test_the_default_device() -> None:
    with torch.device("cuda:0"):  # the lead; a replica has its own
        assert ask(lambda: torch.ones(1).device) == torch.device("cuda:1")
    with torch.device("meta"):
        assert ask(lambda: torch.ones(1).device) == torch.device("meta")
    assert ask(lambda: torch.ones(1).device) == torch.device("cpu")


def test_saved_tensor_hooks() -> None:
    packed: list[torch.device] = []

    def pack(tensor: Tensor) -> Tensor:
        packed.append(tensor.device)
        return tensor

    model = anyrig.spread(nn.Linear(4, 4).to("cuda:0"), anyrig.Rig.parse("cuda:0,1"))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(torch.randn(4, 4, device="cuda:0")).sum().backward()
    assert set(packed) == set(DEVICES)
    packed.clear()
    model(torch.randn(4, 4, device="cuda:0")).sum().backward()
    assert packed == []


def test_everything_at_once_is_undone_after_an_error() -> None:
    def fail() -> None:
        raise ArithmeticError

    def look() -> tuple[bool, bool, torch.device]:
        return torch.is_grad_enabled(), torch.is_autocast_enabled("cuda"), torch.ones(1).device

    before = ask(look)
    with ExitStack() as stack:
        for setting in (torch.no_grad(), torch.autocast("cuda"), torch.device("cuda:1")):
            stack.enter_context(setting)
        with pytest.raises(ArithmeticError):
            ask(fail)
    assert ask(look) == before
