"""Random operators draw the numbers of an A100 with the same seed and advance its generator.

test_philox.py tests the kernels themselves; these tests cover their use by PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

DEVICE = "cuda:1"
FLOATING = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def threads() -> int:
    """Return how many threads the GPU runs at once: 221,184 on an A100."""
    properties = torch.cuda.get_device_properties(DEVICE)
    return properties.multi_processor_count * properties.max_threads_per_multi_processor


def offset() -> int:
    return torch.cuda.default_generators[torch.device(DEVICE).index].get_offset()


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def shown(values: Tensor) -> list[float]:
    return [round(value, 4) for value in values.flatten().tolist()]


def test_numbers_printed_on_gpus() -> None:
    # Sources: test_published_random_numbers.py.
    assert shown(torch.rand(5, device=DEVICE)) == [0.3990, 0.5167, 0.0249, 0.9401, 0.9459]
    assert shown(torch.rand(5, device=DEVICE)) == [0.9722, 0.7910, 0.4690, 0.3300, 0.3345]
    torch.manual_seed(42)
    assert shown(torch.randn(5, device=DEVICE)) == [0.1940, 2.1614, -0.1721, 0.8491, -1.9244]
    generator = torch.Generator(DEVICE).manual_seed(1)
    values = torch.randn(1, 49 * 12 * 112 * 144, device=DEVICE, generator=generator)
    last = {
        108: [0.1549, -0.6797, -0.1656],
        132: [-0.6970, -0.7780, 0.3267],  # not published: what a virtual H100 draws
    }
    multiprocessors = torch.cuda.get_device_properties(DEVICE).multi_processor_count
    assert shown(values[0, -3:]) == last.get(multiprocessors, shown(values[0, -3:]))


def test_layer_created_on_the_gpu_has_the_weights_of_a_gpu() -> None:
    torch.manual_seed(42)
    layer = torch.nn.Linear(1, 1, device=DEVICE)
    assert shown(layer.weight) == [0.2259]
    assert shown(layer.bias) == [0.9754]


# Offsets: DistributionTemplates.h, Dropout.cu, Randperm.cuh.
DRAWS: dict[str, tuple[Callable[[], object], int]] = {
    "rand": (lambda: torch.rand(4 * threads(), device=DEVICE), 4),
    "rand in two rounds": (lambda: torch.rand(4 * threads() + 1, device=DEVICE), 8),
    "double, two a thread": (lambda: torch.rand(2 * threads() + 2, device=DEVICE).double(), 4),
    "double in two rounds": (
        lambda: torch.rand(2 * threads() + 1, device=DEVICE, dtype=torch.double),
        8,
    ),
    "randn": (lambda: torch.randn(7, device=DEVICE), 4),
    "randint": (lambda: torch.randint(10, (7,), device=DEVICE), 4),
    "random_": (lambda: torch.empty(7, device=DEVICE).random_(), 4),
    "bernoulli of a number": (lambda: torch.empty(7, device=DEVICE).bernoulli_(0.5), 4),
    "bernoulli of a tensor": (lambda: torch.bernoulli(torch.ones(7, device=DEVICE) / 2), 12),
    "dropout": (lambda: functional.dropout(torch.ones(7, device=DEVICE)), 4),
    "dropout not training": (
        lambda: functional.dropout(torch.ones(7, device=DEVICE), training=False),
        0,
    ),
    "dropout of all": (lambda: functional.dropout(torch.ones(7, device=DEVICE), 1.0), 0),
    "dropout by default": (
        lambda: torch.native_dropout(torch.ones(7, device=DEVICE), 0.5, None),
        4,
    ),
    "randperm": (lambda: torch.randperm(10, device=DEVICE), 4 + 12),
    "multinomial": (lambda: torch.multinomial(torch.ones(7, device=DEVICE), 1), 4),
    "normal of tensors": (
        lambda: torch.normal(torch.zeros(7, device=DEVICE), torch.ones(7, device=DEVICE)),
        4,
    ),
    "complex": (lambda: torch.randn(7, device=DEVICE, dtype=torch.cfloat), 4),
    "nothing": (lambda: torch.rand(0, device=DEVICE), 0),
}


@pytest.mark.parametrize("name", DRAWS)
def test_generator_advances_as_on_cuda(name: str) -> None:
    draw, increment = DRAWS[name]
    draw()
    assert offset() == increment
    if torch.device(DEVICE).index > 0:
        assert torch.cuda.default_generators[0].get_offset() == 0


@pytest.mark.parametrize("dtype", FLOATING)
def test_half_precision_is_rounded_from_float(dtype: torch.dtype) -> None:
    generator = torch.Generator(DEVICE)

    def drawn(name: str, of: torch.dtype) -> Tensor:
        generator.manual_seed(5)
        empty = torch.empty(1000, device=DEVICE, dtype=of)
        return getattr(empty, name)(generator=generator).cpu()

    assert torch.equal(drawn("normal_", torch.float32).to(torch.half), drawn("normal_", torch.half))
    uniform = drawn("uniform_", dtype)
    assert uniform.dtype == dtype
    assert uniform.min() >= 0
    assert uniform.max() < 1
    assert abs(uniform.double().mean() - 0.5) < 0.03
    assert abs(drawn("normal_", dtype).double().std() - 1) < 0.1
    assert abs(drawn("exponential_", dtype).double().mean() - 1) < 0.15


def test_strided_tensors_are_filled_in_the_order_of_memory() -> None:
    plain = torch.rand(20, 30, device=DEVICE)
    torch.manual_seed(0)
    transposed = torch.empty(20, 30, device=DEVICE).t().uniform_()
    assert torch.equal(transposed.t(), plain)
    torch.manual_seed(0)
    whole = torch.zeros(20, 45, device=DEVICE)
    whole[:, 5:35].uniform_()  # not dense: a gap follows each row
    assert torch.equal(whole[:, 5:35], plain)
    assert whole[:, :5].count_nonzero() == whole[:, 35:].count_nonzero() == 0


def test_view_with_an_offset_is_filled_in_place() -> None:
    expected = torch.rand(5, device=DEVICE)
    torch.manual_seed(0)
    whole = torch.zeros(12, device=DEVICE)
    whole[4:9].uniform_()
    assert torch.equal(whole[4:9], expected)
    assert whole[:4].count_nonzero() == whole[9:].count_nonzero() == 0


@pytest.mark.parametrize("dtype", FLOATING)
@pytest.mark.parametrize("layout", ["plain", "transposed", "gaps"])
def test_dropout_scales_what_it_keeps(dtype: torch.dtype, layout: str) -> None:
    source = torch.randn(40, 60, device=DEVICE, dtype=dtype)
    if layout == "transposed":
        source = source.t()
    elif layout == "gaps":
        source = source[:, ::2]
    kept, mask = torch.native_dropout(source, 0.25, True)
    assert mask.dtype == torch.bool
    assert 0.6 < mask.float().mean() < 0.9
    scaled = source.double() * mask * (1 / 0.75)
    assert torch.allclose(kept.double(), scaled, rtol=1e-2 if dtype.itemsize == 2 else 1e-6)
    assert torch.equal(kept != 0, mask & (source != 0))


def test_dropout_visits_a_dense_tensor_in_memory_order() -> None:
    _, plain = torch.native_dropout(torch.ones(40, 60, device=DEVICE), 0.5, True)
    torch.manual_seed(0)
    _, transposed = torch.native_dropout(torch.ones(40, 60, device=DEVICE).t(), 0.5, True)
    assert torch.equal(transposed.t(), plain)


def test_dropout_depends_on_the_alignment_of_the_input() -> None:
    # A thread loads four floats (16 bytes) at once. A tensor at another alignment is loaded in
    # smaller vectors, so other threads draw its numbers.
    memory = torch.ones(4 + 4096, device=DEVICE)

    def mask_from(first: int) -> Tensor:
        torch.manual_seed(0)
        return torch.native_dropout(memory[first : first + 4096], 0.5, True)[1]

    assert torch.equal(mask_from(4), mask_from(0))
    assert not torch.equal(mask_from(1), mask_from(0))
    assert torch.equal(mask_from(1), mask_from(3))
    torch.manual_seed(0)
    whole = torch.rand(4096, device=DEVICE)
    assert torch.equal(mask_from(1), whole < 0.5)  # one element per load, in the order of `rand`


def test_dropout_with_probability_1_and_0() -> None:
    x = torch.ones(5, device=DEVICE)
    for p, train, kept in ((1.0, True, 0), (0.0, True, 1), (0.5, False, 1)):
        result, mask = torch.native_dropout(x, p, train)
        assert result.tolist() == [float(kept)] * 5
        assert mask.tolist() == [bool(kept)] * 5


def test_host_kernels_draw_new_numbers_each_time() -> None:
    # These kernels draw CPU numbers and advance the GPU's generator.
    rates = torch.full((50,), 9.0, device=DEVICE)
    for draw, taken in (
        (lambda: torch.poisson(rates), 20),
        (lambda: torch._standard_gamma(rates), 12),
        (lambda: torch._sample_dirichlet(rates), 12),
        (lambda: torch.binomial(rates, rates / 20), 44),
    ):
        torch.manual_seed(0)
        first, second = draw(), draw()
        assert not torch.equal(first, second)
        assert offset() == 2 * taken
        torch.manual_seed(0)
        assert torch.equal(draw(), first)


def test_dropout_backward_uses_the_mask() -> None:
    source = torch.ones(100, device=DEVICE, requires_grad=True)
    kept = functional.dropout(source, 0.5)
    kept.sum().backward()
    assert torch.equal(source.grad, kept.detach())


def test_checkpoint_repeats_dropout() -> None:
    source = torch.ones(1000, device=DEVICE, requires_grad=True)

    def run(x: Tensor) -> Tensor:
        return functional.dropout(x, 0.5)

    with torch.cuda.device(DEVICE):
        kept = torch.utils.checkpoint.checkpoint(run, source, use_reentrant=False)
        torch.rand(3, device=DEVICE)
        kept.sum().backward()
    assert torch.equal(source.grad, kept.detach())


@pytest.mark.parametrize("n", [1, 2, 100, 100_000])
def test_randperm_is_a_permutation(n: int) -> None:
    order = torch.randperm(n, device=DEVICE)
    assert torch.equal(order.sort().values, torch.arange(n, device=DEVICE))
    assert torch.randperm(n, device=DEVICE, dtype=torch.int32).dtype == torch.int32


def test_bernoulli_of_a_tensor_follows_its_probabilities() -> None:
    probabilities = torch.tensor([0.0, 0.25, 1.0], device=DEVICE).repeat(10_000, 1)
    drawn = torch.bernoulli(probabilities).mean(0)
    assert drawn[0] == 0
    assert drawn[2] == 1
    assert abs(drawn[1] - 0.25) < 0.02
    columns = torch.empty(3, 10_000, device=DEVICE).t()
    torch.manual_seed(0)
    assert abs(columns.bernoulli_(probabilities).mean(0)[1] - 0.25) < 0.02


def test_multinomial_follows_its_probabilities() -> None:
    probabilities = torch.tensor([0.0, 1.0, 3.0], device=DEVICE)
    drawn = torch.multinomial(probabilities.expand(20_000, 3), 1)
    assert abs((drawn == 2).float().mean() - 0.75) < 0.02
    assert drawn.min() == 1
    assert sorted(torch.multinomial(probabilities, 2).tolist()) == [1, 2]
    assert torch.multinomial(probabilities, 5, replacement=True).shape == (5,)


def test_integers_cover_their_range() -> None:
    assert torch.randint(-3, 4, (1000,), device=DEVICE).unique().tolist() == list(range(-3, 4))
    far = torch.randint(2**40, (1000,), device=DEVICE)
    assert far.max() > 2**39
    signed = torch.empty(1000, device=DEVICE, dtype=torch.long).random_(-(2**63), None)
    assert signed.min() < 0 < signed.max()
    assert torch.empty(1000, device=DEVICE, dtype=torch.bool).random_().unique().numel() == 2


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "an integer tensor": (
        lambda: torch.empty(3, device=DEVICE, dtype=torch.long).normal_(),
        "\"normal_kernel_cuda\" not implemented for 'Long'",
    ),
    "a negative deviation": (
        lambda: torch.empty(3, device=DEVICE).normal_(0, -1),
        "normal expects std >= 0.0",
    ),
    "turned bounds": (
        lambda: torch.empty(3, device=DEVICE).uniform_(2, 1),
        r"uniform_ expects to return a \[from, to\) range",
    ),
    "a generator of the host": (
        lambda: torch.rand(3, device=DEVICE, generator=torch.Generator()),
        "Expected a 'cuda' device type for generator but found 'cpu'",
    ),
    "memory that several elements share": (
        lambda: torch.empty(1, device=DEVICE).expand(3).bernoulli_(torch.ones(3, device=DEVICE)),
        "more than one element of the written-to tensor refers to a single memory location",
    ),
    "probabilities in whole numbers": (
        lambda: torch.empty(3, device=DEVICE).bernoulli_(torch.ones(3, dtype=torch.long)),
        "expected probabilities tensor to have floating type, got Long",
    ),
    "a chance above one": (
        lambda: torch.empty(3, device=DEVICE).bernoulli_(2.0),
        r"bernoulli_ expects p to be in \[0, 1\]",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_errors_have_cudas_messages(name: str) -> None:
    draw, words = REFUSED[name]
    with pytest.raises(RuntimeError, match=words):
        draw()


def test_fake_tensors_draw_no_numbers() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.rand(3, device=DEVICE)
        functional.dropout(fake)
        torch.empty(3, device=DEVICE).normal_()
        torch.randperm(3, device=DEVICE)
        torch.multinomial(fake, 1)
    assert fake.device == torch.device(DEVICE)
    assert offset() == 0
