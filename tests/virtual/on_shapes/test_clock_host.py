"""The timelines of host threads: backward passes launch concurrently, and later launches follow."""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from gpu_rates import LAUNCH_SECONDS
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from anyrig.virtual import clock

LINKS = 200  # in a chain: as many backward launches, with hardly any work


def chain(device: int) -> Tensor:
    x = torch.empty(8, device=device, requires_grad=True)
    for _ in range(LINKS):
        x = x.sin()
    return x.sum()


def host_seconds(work: Callable[[], object]) -> float:
    before = clock().host_seconds
    work()
    return clock().host_seconds - before


def backward_seconds(*devices: int) -> float:
    losses = [chain(device) for device in devices]
    gradients = [torch.ones_like(loss) for loss in losses]
    return host_seconds(lambda: torch.autograd.backward(losses, gradients))


def test_backward_passes_of_two_devices_launch_concurrently() -> None:
    one, two = backward_seconds(0), backward_seconds(0, 1)
    assert one > LINKS * LAUNCH_SECONDS
    assert two == pytest.approx(one, rel=0.02)


def test_a_backward_pass_waits_where_a_stream_holds_1024_launches() -> None:
    x = torch.empty(2**26, device=0, requires_grad=True)  # a kernel takes as long as 30 launches
    scaled, kernels = x, 2400
    for _ in range(kernels):
        scaled = scaled * 2
    gradient = torch.empty_like(x)
    torch.cuda.synchronize()
    launching = host_seconds(lambda: scaled.backward(gradient))
    waiting = host_seconds(torch.cuda.synchronize)
    assert waiting / (launching + waiting) == pytest.approx(1024 / kernels, rel=0.02)


class Doubled(torch.autograd.Function):
    """Launches one kernel in its backward, from Python."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 2


def of_python(device: int) -> Tensor:
    x = torch.empty(8, device=device, requires_grad=True)
    for _ in range(LINKS):
        x = Doubled.apply(x)
    return x


def of_hooks(device: int) -> Tensor:
    x = torch.empty(8, device=device, requires_grad=True)
    for _ in range(LINKS):
        x = x.view_as(x)
        x.register_hook(lambda gradient: gradient * 2)
    return x


def recomputed(device: int) -> Tensor:
    def block(x: Tensor) -> Tensor:
        for _ in range(LINKS):
            x = x + 1  # whose own backward launches nothing
        return x * x

    x = torch.empty(8, device=device, requires_grad=True)
    return checkpoint(block, x, use_reentrant=False)


@pytest.mark.parametrize("program", [of_python, of_hooks, recomputed])
def test_python_code_in_backward_passes_takes_turns(program: Callable[[int], Tensor]) -> None:
    def seconds(*devices: int) -> float:
        losses = [program(device) for device in devices]
        gradients = [torch.ones_like(loss) for loss in losses]
        return host_seconds(lambda: torch.autograd.backward(losses, gradients))

    one, two = seconds(0), seconds(0, 1)
    assert one > 0.999 * LINKS * LAUNCH_SECONDS  # sums of floats
    assert two == pytest.approx(2 * one, rel=0.03)


def test_python_code_takes_turns_by_the_clock_and_not_by_real_time() -> None:
    """A thread that is far ahead on the clock takes the lock first, in real time."""
    has_computed = threading.Event()
    launched: list[float] = []

    def late(gradient: Tensor) -> Tensor:
        doubled = gradient * 2
        has_computed.set()
        return doubled

    def early(gradient: Tensor) -> Tensor:
        assert has_computed.wait(60)
        doubled = gradient * 2
        launched.append(clock().host_seconds)
        return doubled

    first = torch.empty(8, device=0, requires_grad=True)
    x = first.view_as(first)
    x.register_hook(late)
    for _ in range(LINKS):
        x = x.sin()
    y = torch.empty(8, device=1, requires_grad=True).view(8)
    y.register_hook(early)
    ones = [torch.ones_like(x), torch.ones_like(y)]
    begin = clock().host_seconds
    torch.autograd.backward([x, y], ones)
    assert launched[0] - begin < LINKS * LAUNCH_SECONDS / 2


def test_a_backward_pass_starts_at_its_callers_time_and_the_caller_continues_after_it() -> None:
    loss = chain(1)
    gradient = torch.ones_like(loss)
    torch.cuda._sleep(10**9)
    torch.cuda.synchronize()  # the host's clock is far ahead of cuda:1's thread
    before = clock()
    loss.backward(gradient)
    after = clock()
    assert after.host_seconds >= before.host_seconds + LINKS * LAUNCH_SECONDS
    end = torch.ones(1, device="cuda:0") + 1
    streams = clock().devices[end.get_device()].streams
    assert max(stream.done_seconds for stream in streams) > after.host_seconds


def test_a_backward_pass_within_another_goes_on_at_its_threads_time() -> None:
    with torch.cuda.stream(torch.cuda.Stream(0)):  # a stream would keep its launches in order
        inner = chain(0)
        one = torch.ones_like(inner)
    x = torch.empty(8, device=0, requires_grad=True).view(8)
    x.register_hook(lambda gradient: inner.backward(one))
    for _ in range(LINKS):
        x = x.sin()
    gradient = torch.ones_like(x)
    assert host_seconds(lambda: x.backward(gradient)) > 2 * LINKS * LAUNCH_SECONDS


def test_launches_on_a_stream_are_in_order() -> None:
    # The part on cuda:1 is launched first; the thread of cuda:0 launches the next part after it.
    x = torch.empty(8, device="cuda:0", requires_grad=True)
    y = x
    for _ in range(LINKS):
        y = y.sin()
    z = y.to("cuda:1")
    for _ in range(LINKS):
        z = z.sin()
    loss = z.sum()
    gradient = torch.ones_like(loss)
    assert host_seconds(lambda: loss.backward(gradient)) > 2 * LINKS * LAUNCH_SECONDS


def test_steps_of_a_loop_take_the_same_time() -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(8))).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x = torch.empty(16, 64, device="cuda")
    moments = []
    for _ in range(6):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
        moments.append(clock().host_seconds)
    steps = [later - sooner for sooner, later in itertools.pairwise(moments[1:])]
    assert all(step == pytest.approx(steps[0], rel=1e-6) for step in steps)
    assert steps[0] > 0


def test_recomputation_in_a_backward_pass() -> None:
    def block(x: Tensor) -> Tensor:
        return x.sin().cos().sin()

    x = torch.empty(8, device="cuda", requires_grad=True)
    loss = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=True).sum()
    gradient = torch.ones_like(loss)
    launches = host_seconds(lambda: loss.backward(gradient)) / LAUNCH_SECONDS
    assert launches > 6  # three recomputed, and three gradients


def test_eight_threads_train_on_eight_devices() -> None:
    rounds, errors = 5, []
    before = clock()

    def train(device: int) -> None:
        try:
            last = 0.0
            for _ in range(rounds):
                chain(device).backward()
                now = clock().host_seconds
                assert now >= last
                last = now
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=train, args=(device,)) for device in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not errors
    assert not any(thread.is_alive() for thread in threads)
    after = clock()
    computed = [
        new.compute_seconds - old.compute_seconds
        for old, new in zip(before.devices, after.devices, strict=True)
    ]
    assert computed[:8] == pytest.approx([computed[0]] * 8)
    launches = rounds * 2 * LINKS
    assert after.host_seconds - before.host_seconds > launches * LAUNCH_SECONDS


SLEEP_SECONDS = 0.05


def sleep_on(device: int) -> None:
    with torch.cuda.device(device):
        torch.cuda._sleep(round(SLEEP_SECONDS * 1.41e9))
        torch.cuda.current_stream().synchronize()


def in_threads(*works: Callable[[], object]) -> None:
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)


def test_two_threads_wait_concurrently() -> None:
    ready: queue.SimpleQueue[int] = queue.SimpleQueue()

    def second() -> None:
        ready.get()
        sleep_on(1)

    def first() -> None:
        ready.put(0)
        sleep_on(0)

    assert host_seconds(lambda: in_threads(second, first)) == pytest.approx(SLEEP_SECONDS, rel=0.01)


def test_a_longer_wait_lets_a_shorter_wait_end_first() -> None:
    order: queue.SimpleQueue[str] = queue.SimpleQueue()
    ready: queue.SimpleQueue[int] = queue.SimpleQueue()

    def short() -> None:
        ready.get()
        for _ in range(3):
            with torch.cuda.device(1):
                torch.cuda._sleep(round(SLEEP_SECONDS / 10 * 1.41e9))
                torch.cuda.current_stream().synchronize()
        order.put("short")

    def long() -> None:
        ready.put(0)
        sleep_on(0)
        order.put("long")

    passed = host_seconds(lambda: in_threads(short, long))
    assert [order.get(), order.get()] == ["short", "long"]
    assert passed == pytest.approx(SLEEP_SECONDS, rel=0.01)


def test_launches_after_a_join_follow_the_waits_of_the_thread() -> None:
    assert host_seconds(lambda: [in_threads(lambda: sleep_on(0)) for _ in range(3)]) == (
        pytest.approx(3 * SLEEP_SECONDS, rel=0.01)
    )


def wait_ten_times(gpu_seconds: float) -> list[float]:
    """Return how long waits for a GPU take while another thread is busy."""
    done = threading.Event()

    def spin() -> None:
        while not done.is_set():
            pass

    def wait() -> None:
        for _ in range(10):
            torch.cuda._sleep(round(gpu_seconds * 1.41e9))
            started = time.monotonic()
            torch.cuda.current_stream().synchronize()
            took.append(time.monotonic() - started)
        done.set()

    took: list[float] = []
    in_threads(spin, wait)
    return took


def test_a_wait_ends_while_another_thread_is_busy() -> None:
    # At most 50 ms each, plus Python's time to hand over the GIL.
    assert sum(wait_ten_times(SLEEP_SECONDS)) < 10


def test_a_short_wait_gives_way_no_longer_than_on_a_gpu() -> None:
    assert min(wait_ten_times(1e-6)) < 0.04  # Python's time to hand over the GIL, and not 50 ms
