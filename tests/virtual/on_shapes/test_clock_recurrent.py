"""Recurrent layers take the time of cuDNN's: few large products, and a small one per step."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from gpu_rates import BACKWARD_LAUNCH_SECONDS, LAUNCH_SECONDS, PRECISIONS, VALUES, gpu_seconds
from torch import Tensor, nn

from anyrig.virtual import clock

STEPS, SAMPLES, WIDTH = 30, 64, 1024
# Columns of a factorization that a step waits for the previous one: records/recurrent_record.cpp.
WAIT = 20 * gpu_seconds("memory", access=17, rows=1, kernels=0)


@pytest.fixture(autouse=True)
def tf32() -> Iterator[None]:
    """Allow TF32 and wait for the GPU, whatever other tests of this process have left."""
    torch.cuda.synchronize()
    before = torch.backends.cudnn.rnn.fp32_precision
    torch.backends.cudnn.rnn.fp32_precision = "tf32"
    yield
    torch.backends.cudnn.rnn.fp32_precision = before


def product(m: int, n: int, k: int, times: int = 1, precision: str = "tfloat32") -> float:
    """Return the seconds of `times` equal products one after the other."""
    read, written = 4 * (m * k + k * n), 4 * m * n
    return gpu_seconds(
        "product",
        precision=PRECISIONS.index(precision),
        m=m,
        n=n,
        k=k,
        flops=2 * m * n * k * times,
        share=times,
        bytes_read=read * times,
        bytes_written=written * times,
        footprint_bytes=read + written,
        kernels=times,
    )


def cells(read: int, written: int) -> float:
    """Return the seconds of the element-wise kernels and waits of the sequence below."""
    unit_bytes = 4 * SAMPLES * WIDTH
    return STEPS * WAIT + gpu_seconds(
        "memory",
        bytes_read=read * unit_bytes * STEPS,
        bytes_written=written * unit_bytes * STEPS,
        footprint_bytes=(read + written) * unit_bytes,
        kernels=STEPS,
    )


def sequence(steps: int = STEPS, samples: int = SAMPLES, width: int = WIDTH) -> Tensor:
    return torch.empty(steps, samples, width, device="cuda", requires_grad=True)


def states() -> tuple[Tensor, Tensor]:
    return (
        torch.empty(1, SAMPLES, WIDTH, device="cuda"),
        torch.empty(1, SAMPLES, WIDTH, device="cuda"),
    )


def lstm(**options: int) -> nn.LSTM:
    return nn.LSTM(WIDTH, WIDTH, **options).cuda()


def charged(work: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds of the GPU and the FLOPs that `work` takes."""
    before = clock().devices[0]
    work()
    after = clock().devices[0]
    return after.compute_seconds - before.compute_seconds, after.flops - before.flops


def backward_of(layer: nn.RNNBase, x: Tensor) -> tuple[float, float]:
    result = layer(x)[0]
    gradient = torch.empty_like(result)
    return charged(lambda: result.backward(gradient))


def test_the_products_of_the_input_are_one_and_those_of_the_state_one_a_step() -> None:
    layer, x, before = lstm(), sequence(), states()
    expected = (
        product(STEPS * SAMPLES, 4 * WIDTH, WIDTH)
        + product(SAMPLES, 4 * WIDTH, WIDTH, STEPS)
        + cells(read=9, written=6)
    )
    seconds, flops = charged(lambda: layer(x, before))
    assert seconds == pytest.approx(expected, rel=1e-6)
    assert flops == 2 * STEPS * SAMPLES * 4 * WIDTH * (WIDTH + WIDTH)


def test_the_gradient_of_a_weight_is_one_product_over_all_steps() -> None:
    layer = lstm()
    by_data = (
        product(STEPS * SAMPLES, WIDTH, 4 * WIDTH)
        + product(SAMPLES, WIDTH, 4 * WIDTH, STEPS)
        + cells(read=8, written=5)
    )
    by_weights = 2 * product(4 * WIDTH, WIDTH, STEPS * SAMPLES)
    assert backward_of(layer, sequence())[0] == pytest.approx(by_data + by_weights, rel=1e-6)
    layer.requires_grad_(False)
    assert backward_of(layer, sequence())[0] == pytest.approx(by_data, rel=1e-6)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_backward_pass_takes_one_to_three_times_its_forward_pass(
    kind: type[nn.RNNBase],
) -> None:
    layer, x = kind(2048, 2048).cuda(), sequence(samples=128, width=2048)
    forward, flops = charged(lambda: layer(x))
    backward, backward_flops = backward_of(layer, x)
    assert 1 < backward / forward < 3
    assert backward_flops == 2 * flops


def test_without_cudnn_each_step_has_operators_of_its_own() -> None:
    layer, x = lstm(), sequence()
    fused = backward_of(layer, x)[0]
    with torch.backends.cudnn.flags(enabled=False):
        assert backward_of(layer, x)[0] > 1.5 * fused


def test_layers_run_side_by_side_except_behind_a_bidirectional_one() -> None:
    x = sequence(samples=8)
    one, _ = charged(lambda: lstm()(x))
    four, _ = charged(lambda: lstm(num_layers=4)(x))
    assert 1.2 * one < four < 3 * one
    both, _ = charged(lambda: lstm(bidirectional=True)(x))
    assert one < both < 1.8 * one
    # The steps of the second layer follow those of the first.
    twice, _ = charged(lambda: lstm(bidirectional=True, num_layers=2)(x))
    assert twice > both + STEPS * WAIT


def test_more_layers_than_steps() -> None:
    x = sequence(steps=2)
    _, flops = charged(lambda: lstm(num_layers=5)(x))
    assert flops == 5 * 2 * 2 * SAMPLES * 4 * WIDTH * 2 * WIDTH


def test_a_projection_shortens_the_state() -> None:
    layer, x = nn.LSTM(WIDTH, WIDTH, proj_size=256).cuda(), sequence()
    _, flops = charged(lambda: layer(x))
    rows = STEPS * SAMPLES
    assert flops == 2 * rows * (4 * WIDTH * (WIDTH + 256) + 256 * WIDTH)
    assert backward_of(layer, x)[1] == 2 * flops


def test_packed_sequences_count_the_steps_that_each_sample_has() -> None:
    lengths = torch.tensor([100, 70, 30])
    x = torch.empty(100, 3, WIDTH, device="cuda")
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths)
    _, flops = charged(lambda: lstm()(packed))
    assert flops == 2 * 200 * 4 * WIDTH * 2 * WIDTH


def test_the_host_launches_two_kernels_a_step_and_one_a_layer() -> None:
    layer, x, first = lstm(), sequence(), states()
    torch.cuda.synchronize()
    before = clock().host_seconds
    with torch.no_grad():
        layer(x, first)
    launches = clock().host_seconds - before - LAUNCH_SECONDS
    assert launches == pytest.approx(2 * STEPS * VALUES["host.launch_seconds"], rel=1e-3)


def test_the_programs_tf32_setting_for_recurrent_layers_counts() -> None:
    layer, x = lstm(), sequence(samples=512)
    fast, _ = charged(lambda: layer(x))
    torch.backends.cudnn.rnn.fp32_precision = "ieee"
    assert charged(lambda: layer(x))[0] > 2 * fast


def test_autocast_computes_in_half_precision() -> None:
    layer, x = lstm(), sequence(samples=512)
    single, _ = charged(lambda: layer(x))
    with torch.autocast("cuda"):
        half, _ = charged(lambda: layer(x))
    assert half < 0.8 * single


def test_layers_around_it_take_their_own_time() -> None:
    def flops_of(*layers: nn.Module) -> float:
        def step() -> None:
            value = sequence(steps=5)
            for layer in layers:
                value = layer(value)
                value = value[0] if isinstance(value, tuple) else value
            value.backward(torch.empty_like(value))

        return charged(step)[1]

    linear, recurrent = nn.Linear(WIDTH, WIDTH).cuda(), lstm(num_layers=2)
    together = flops_of(linear, recurrent, linear, recurrent, linear)
    assert together == 3 * flops_of(linear) + 2 * flops_of(recurrent)


def test_a_single_launch_starts_the_backward_pass() -> None:
    layer, x = lstm(), sequence(steps=1)
    result = layer(x)[0]
    gradient = torch.empty_like(result)
    torch.cuda.synchronize()
    before = clock().host_seconds
    result.backward(gradient)
    # Four products, two for the data, and the cell: one call of an operator.
    launches = clock().host_seconds - before - BACKWARD_LAUNCH_SECONDS
    assert launches < 10 * VALUES["host.launch_seconds"]
