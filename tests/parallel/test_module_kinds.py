"""What a module may be made of, spread over two devices."""

from __future__ import annotations

import pytest
import torch
from calling_modules import inputs, spread
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from trained_models import on_lead

import anyrig
from anyrig.errors import BatchError
from anyrig.parallel.plans import Replicas

# Without cuDNN, as on a virtual GPU, PyTorch warns when a recurrent module reaches CUDA.
pytestmark = [
    pytest.mark.filterwarnings("ignore::anyrig.parallel.BatchStatisticsWarning"),
    pytest.mark.gpus(2),
    pytest.mark.filterwarnings("ignore:PyTorch was compiled without cuDNN"),
]


def test_frozen_parameters_get_no_gradient() -> None:
    module = on_lead(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)))
    module[0].requires_grad_(False)
    model = spread(module)
    model(inputs()).sum().backward()
    assert module[0].weight.grad is None
    assert module[1].weight.grad is not None
    # An unfrozen layer takes part from the next step on, until it is frozen again.
    module[0].requires_grad_(True)
    model.zero_grad()
    model(inputs()).sum().backward()
    assert module[0].weight.grad is not None
    module[0].requires_grad_(False)
    model.zero_grad()
    model(inputs()).sum().backward()
    assert module[0].weight.grad is None


def test_a_wholly_frozen_module_passes_gradients_to_its_inputs() -> None:
    module = on_lead(nn.Linear(4, 2)).requires_grad_(False)
    x = inputs().requires_grad_()
    spread(module)(x).sum().backward()
    torch.testing.assert_close(x.grad, module.weight.sum(0).expand(6, 4))
    assert module.weight.grad is None


class Branching(nn.Module):
    """Uses `right` only if a sample is positive, and never uses `never`."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.never = (nn.Linear(1, 1) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        y = self.left(x)
        return y + self.right(x) if (x > 0).any() else y


@pytest.mark.parametrize("signs", [(-1, -1), (-1, 1), (1, -1), (1, 1)])
def test_unused_parameters_get_no_gradient(signs: tuple[int, int]) -> None:
    module = on_lead(Branching())
    x = torch.tensor([[s] for s in signs for _ in range(2)], dtype=torch.float64, device="cuda:0")
    model = spread(module)
    for _ in range(2):
        model.zero_grad()
        model(x).sum().backward()
        assert module.never.weight.grad is None
        positive = x.clamp(min=0).sum()
        if positive > 0:
            torch.testing.assert_close(module.right.weight.grad, positive.view(1, 1))
        else:
            assert module.right.weight.grad is None
        torch.testing.assert_close(module.left.weight.grad, x.sum().view(1, 1))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.embedding(words)).square()


def test_shared_parameters_stay_shared() -> None:
    one, several = on_lead(Tied()), None
    several = on_lead(one)
    words = torch.arange(5, device="cuda:0").repeat(2)
    one(words).sum().backward()
    model = spread(several)
    model(words).sum().backward()
    assert len(list(model.parameters())) == 1
    torch.testing.assert_close(several.embedding.weight.grad, one.embedding.weight.grad)


def test_a_module_that_is_used_twice() -> None:
    layer = nn.Linear(4, 4)
    one = on_lead(nn.Sequential(layer, nn.Tanh(), layer))
    several = on_lead(one)
    assert several[0] is several[2]
    x = inputs()
    one(x).sum().backward()
    spread(several)(x).sum().backward()
    torch.testing.assert_close(several[0].weight.grad, one[0].weight.grad)


class Lists(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.listed = nn.ParameterList(nn.Parameter(torch.randn(4)) for _ in range(3))
        self.named = nn.ParameterDict({"a": torch.randn(4), "b": torch.randn(4)})

    def forward(self, x: Tensor) -> Tensor:
        for parameter in (*self.listed, *self.named.values(), self.named["a"], self.listed[0]):
            x = x * parameter
        return x


def test_lists_and_dicts_of_parameters() -> None:
    one = on_lead(Lists())
    several = on_lead(one)
    x = inputs()
    one(x).sum().backward()
    spread(several)(x).sum().backward()
    for found, expected in zip(several.parameters(), one.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad)


class Counting(nn.Module):
    """Has a buffer that it replaces, one of integers, one that is not saved, and one None."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("scale", torch.full((4,), 2.0), persistent=False)
        self.register_buffer("absent", None)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.seen = self.seen + len(x)  # replaced, not written into
        return x * self.scale


def test_a_module_with_buffers_only() -> None:
    module = on_lead(Counting())
    model = spread(module, plan=Replicas(shares=[1, 2]))
    for _ in range(2):
        x = inputs()
        torch.testing.assert_close(model(x), 2 * x)
    # The lead's buffers stay: it was called twice, with two samples each.
    assert module.calls.item() == 2
    assert module.seen.item() == 4


def test_buffers_are_written_where_the_lead_has_no_rows() -> None:
    module = on_lead(nn.Sequential(nn.BatchNorm1d(4, momentum=0.5), Counting()))
    model = spread(module, plan=Replicas(shares=[0, 1]))
    expected = on_lead(module)
    x = inputs()
    for _ in range(2):
        model(x)
        expected(x)
    torch.testing.assert_close(module.state_dict(), expected.state_dict())


def test_batches_are_counted_once() -> None:
    module = on_lead(nn.BatchNorm1d(4, momentum=0.5))
    model = spread(module)
    x = inputs()
    for _ in range(3):
        model(x)
    assert module.num_batches_tracked.item() == 3
    lead = on_lead(nn.BatchNorm1d(4, momentum=0.5))
    for _ in range(3):
        lead(x[:3])
    torch.testing.assert_close(module.running_mean, lead.running_mean)


def test_replicas_evaluate_with_the_statistics_of_the_lead() -> None:
    module = on_lead(nn.BatchNorm1d(4))
    model = spread(module)
    model(inputs())
    model.eval()
    x = inputs()
    torch.testing.assert_close(model(x), on_lead(module).eval()(x))


@pytest.mark.parametrize("cell", [nn.RNN, nn.GRU, nn.LSTM])
def test_recurrent_modules(cell: type[nn.Module]) -> None:
    # Warnings are errors here, including the warning about weights in several pieces of memory.
    one = on_lead(cell(4, 3, num_layers=2, batch_first=True))
    several = on_lead(one)
    model = spread(several)
    x = inputs(6).unsqueeze(1).expand(6, 5, 4).contiguous()
    for _ in range(2):
        one(x)[0].sum().backward()
        model(x)[0].sum().backward()
        for found, expected in zip(several.parameters(), one.parameters(), strict=True):
            torch.testing.assert_close(found.grad, expected.grad)
            with torch.no_grad():
                found.add_(1)
                expected.add_(1)


@pytest.mark.parametrize("total_length", [None, 5])
def test_sequences_padded_to_the_longest_of_each_part(total_length: int | None) -> None:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru = nn.GRU(4, 3, batch_first=True)

        def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
            packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
            padded, found = pad_packed_sequence(
                self.gru(packed)[0], batch_first=True, total_length=total_length
            )
            return padded, found.to(x.device)

    one = on_lead(Tagger())
    several = on_lead(one)
    x = inputs(6 * 5).view(6, 5, 4)
    lengths = torch.tensor([2, 1, 2, 4, 5, 1], device="cuda:0")
    expected, model = one(x, lengths), spread(several)
    if total_length is None:
        with pytest.raises(BatchError, match=r"\(3, 2, 3\), \(3, 5, 3\).*total_length=.*padding="):
            model(x, lengths)
        parts = model.scattered(x, lengths)
        found = anyrig.parallel.gather(parts, "cuda:0", padding=0.0)
    else:
        found = model(x, lengths)
    assert expected[0].shape == (6, 5, 3)
    torch.testing.assert_close(found, expected)
    expected[0].square().sum().backward()
    found[0].square().sum().backward()
    torch.testing.assert_close(several.gru.weight_hh_l0.grad, one.gru.weight_hh_l0.grad)


def test_the_hidden_state_of_a_recurrent_module_is_joined_along_the_batch() -> None:
    """With `dim=1` inputs and states are both split and joined along their second dimension."""
    module = on_lead(nn.GRU(4, 3))
    x = inputs(5 * 6).view(5, 6, 4)
    state = inputs(6, 3).view(1, 6, 3)
    found = spread(module, dim=1)(x, state)
    torch.testing.assert_close(found, module(x, state))


@pytest.mark.filterwarnings("ignore:Complex modules are a new feature")
@pytest.mark.parametrize(
    "dtype", [torch.half, torch.bfloat16, torch.complex64, torch.complex128], ids=str
)
def test_half_and_complex(dtype: torch.dtype) -> None:
    one = nn.Linear(4, 2).to("cuda:0", dtype)
    several = nn.Linear(4, 2).to("cuda:0", dtype)
    several.load_state_dict(one.state_dict())
    x = torch.randn(6, 4, device="cuda:0").to(dtype)
    expected, found = one(x), spread(several)(x)
    assert found.dtype is dtype
    # In half precision, sums depend on their order.
    tolerance = {"rtol": 0.05, "atol": 0.05} if dtype.itemsize == 2 else {}
    torch.testing.assert_close(found, expected, **tolerance)
    expected.abs().sum().backward()
    found.abs().sum().backward()
    torch.testing.assert_close(several.weight.grad, one.weight.grad, **tolerance)


def test_parameters_of_several_dtypes_and_memory_formats() -> None:
    module = nn.ModuleDict(
        {
            "wide": nn.Linear(4, 3).double(),
            "narrow": nn.Linear(3, 2).half(),
            "image": nn.Conv2d(2, 2, 3).to(memory_format=torch.channels_last),
        }
    ).cuda(0)

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = module

        def forward(self, x: Tensor, image: Tensor) -> tuple[Tensor, Tensor]:
            narrow = self.parts["narrow"](self.parts["wide"](x).half())
            return narrow, self.parts["image"](image)

    model = spread(Mixed())
    narrow, image = model(inputs(), torch.randn(6, 2, 5, 5, device="cuda:0"))
    assert (narrow.dtype, image.dtype) == (torch.half, torch.float32)
    (narrow.float().sum() + image.sum()).backward()
    assert all(p.grad.dtype is p.dtype for p in module.parameters())
    assert module["image"].weight.grad.is_contiguous(memory_format=torch.channels_last)


def test_sparse_gradients() -> None:
    one = on_lead(nn.Embedding(7, 3, sparse=True))
    several = on_lead(one)
    words = torch.randint(7, (6, 2), device="cuda:0")
    one(words).sum().backward()
    spread(several)(words).sum().backward()
    assert several.weight.grad.is_sparse
    torch.testing.assert_close(several.weight.grad.to_dense(), one.weight.grad.to_dense())


def test_a_module_without_parameters_or_inputs() -> None:
    class Constant(nn.Module):
        def forward(self) -> Tensor:
            return torch.eye(2, 3, device="cuda:0")

    torch.testing.assert_close(spread(Constant())(), torch.eye(2, 3, device="cuda:0"))


def test_gradients_of_inputs_on_the_cpu() -> None:
    module = on_lead(nn.Linear(4, 2))
    x = inputs().cpu().requires_grad_()
    spread(module)(x).sum().backward()
    torch.testing.assert_close(x.grad, module.weight.sum(0).expand(6, 4).cpu())


def test_second_derivatives() -> None:
    """A gradient penalty: the gradient of a gradient, also with respect to the parameters."""
    one = on_lead(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1)))
    several = on_lead(one)
    model = spread(several)
    x = inputs()
    for module, parameters in ((one, one), (model, several)):
        leaf = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(module(leaf).sum(), leaf, create_graph=True)
        parameters.zero_grad()
        slope.square().sum().backward()
    for found, expected in zip(several.parameters(), one.parameters(), strict=True):
        if expected.grad is not None:
            torch.testing.assert_close(found.grad, expected.grad)


def test_gradients_that_are_asked_for() -> None:
    """`torch.autograd.grad` with respect to parameters, which runs no hook of `backward()`."""
    one = on_lead(nn.Linear(4, 2))
    several = on_lead(one)
    x = inputs()
    expected = torch.autograd.grad(one(x).square().sum(), list(one.parameters()))
    loss = spread(several)(x).square().sum()
    found = torch.autograd.grad(loss, list(several.parameters()))
    torch.testing.assert_close(found, expected)
    assert several.weight.grad is None
