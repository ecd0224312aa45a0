"""Operands on several devices: the messages of each CUDA operator."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

DEVICE = "cuda:1"


@pytest.fixture
def here() -> Tensor:
    return torch.ones(3, 3, device=DEVICE)


REFUSED: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "iterator, with the host": (
        lambda x: x + torch.ones(3),
        "Expected all tensors to be on the same device, but found at least two devices, "
        "cuda:1 and cpu!",
    ),
    "iterator, with another GPU": (
        lambda x: x + x.to("cuda:2"),
        "but found at least two devices, cuda:1 and cuda:2!",
    ),
    "structured": (
        lambda x: x @ torch.ones(3, 3),
        "but got mat2 is on cpu, different from other tensors on cuda:1 "
        r"\(when checking argument in method wrapper_CUDA_mm\)",
    ),
    "unstructured": (
        lambda x: x.index_select(0, torch.tensor([0])),
        "but got index is on cpu, different from other tensors on cuda:1 "
        r"\(when checking argument in method wrapper_CUDA__index_select\)",
    ),
    "a list": (
        lambda x: torch.cat([x, x.cpu()]),
        r"but got tensors is on cpu, .* wrapper_CUDA_cat\)",
    ),
    "an optional argument": (
        lambda x: functional.layer_norm(x, (3,), torch.ones(3)),
        r"but got weight is on cpu, .* wrapper_CUDA__native_layer_norm\)",
    ),
    "the host first": (
        lambda x: torch.mm(torch.ones(3, 3), x),
        r"but got mat2 is on cuda:1, different from other tensors on cpu .*wrapper_CUDA_mm\)",
    ),
    "an index": (
        lambda x: x[torch.tensor([0], device="cuda:2")],
        r"indices should be either on cpu or on the same device as the indexed tensor \(cuda:1\)",
    ),
    "an index of the GPU into the host": (
        lambda x: torch.ones(3)[torch.tensor([0], device=x.device)],
        r"indices should be either on cpu or on the same device as the indexed tensor \(cpu\)",
    ),
    "a mask of the GPU over the host": (
        lambda x: torch.ones(3)[x[0] > 0],
        r"indices should be either on cpu or on the same device as the indexed tensor \(cpu\)",
    ),
    "values of the GPU into the host": (
        lambda x: torch.ones(3).index_put_((torch.tensor([0, 1, 2]),), x[0]),
        "but found at least two devices, cuda:1 and cpu!",
    ),
    "values of the host to be added": (
        lambda x: x.index_put_((torch.tensor([0]),), torch.ones(3), accumulate=True),
        "^expected device cuda:1 but got device cpu for value tensor$",
    ),
    "an index of the GPU to select from the host": (
        lambda x: torch.ones(3).index_select(0, torch.tensor([0], device=x.device)),
        "but got index is on cuda:1, different from other tensors on cpu",
    ),
    "an index of the GPU to gather from the host": (
        lambda x: torch.ones(3).gather(0, torch.tensor([0], device=x.device)),
        "but got index is on cuda:1, different from other tensors on cpu",
    ),
    "an index of the GPU to scatter into the host": (
        lambda x: torch.ones(3).scatter_(0, torch.tensor([0], device=x.device), 2.0),
        "but got index is on cuda:1, different from other tensors on cpu",
    ),
    "an index of the GPU to add into the host": (
        lambda x: torch.ones(3).index_add_(0, torch.tensor([0], device=x.device), torch.ones(1)),
        "but got index is on cuda:1, different from other tensors on cpu",
    ),
    "an index of the GPU to fill the host at": (
        lambda x: torch.ones(3).index_fill_(0, torch.tensor([0], device=x.device), 2.0),
        "but found at least two devices, cuda:1 and cpu!",
    ),
    "a mask of the GPU to fill the host by": (
        lambda x: torch.ones(3).masked_fill_(x[0] > 0, 2.0),
        "expected self and mask to be on the same device, but got mask on cuda:1 and self on cpu",
    ),
    "a value for an index, of the host": (
        lambda x: x.index_put_((torch.tensor([0]),), torch.ones(3)),
        "but found at least two devices, cuda:1 and cpu!",
    ),
    "a value for an index, of another GPU": (
        lambda x: x.index_put_((torch.tensor([0]),), torch.ones(1, device="cuda:2")),
        "but found at least two devices, cuda:1 and cuda:2!",
    ),
    "two numbers of the host in addcmul": (
        lambda x: torch.addcmul(x, torch.tensor(2.0), torch.tensor(3.0)),
        "Trying to pass too many CPU scalars to non-CPU kernel!",
    ),
    "a number of the host as self of addcmul": (
        lambda x: torch.addcmul(torch.tensor(2.0), x, x),
        "^CPU Scalar support for self argument is not supported when calling addcmul on CUDA "
        r"tensors\.$",
    ),
    "a number of the host as tensor1 of addcmul": (
        lambda x: x.addcmul_(torch.tensor(2.0), x),
        "^CPU Scalar support for tensor1 argument is not supported when calling addcmul on CUDA "
        r"tensors\. However, CPU Scalar support for tensor2 is supported, please swap your "
        r"tensor1 and tensor2 terms\.$",
    ),
    "a convolution, with the host": (
        lambda x: functional.conv2d(x[None, None], torch.ones(1, 1, 2, 2)),
        r"Input type \(torch.cuda.FloatTensor\) and weight type \(torch.FloatTensor\) should be",
    ),
    "a convolution, with another GPU": (
        lambda x: functional.conv2d(x[None, None], torch.ones(1, 1, 2, 2, device="cuda:2")),
        r"but got weight is on cuda:2, .* wrapper_CUDA__cudnn_convolution\)",
    ),
    "a convolution's bias of the host": (
        lambda x: functional.conv2d(x[None, None], x[None, None, :2, :2], torch.ones(1)),
        r"Input type \(torch.cuda.FloatTensor\) and bias type \(torch.FloatTensor\) should be",
    ),
    "a random draw": (
        lambda x: torch.multinomial(x, 2, out=torch.empty(0, dtype=torch.long)),
        r"but got self is on cuda:1, different from other tensors on cpu .*multinomial",
    ),
    "a loss": (
        lambda x: functional.nll_loss(x, torch.zeros(3, dtype=torch.long)),
        r"but got target is on cpu, .* wrapper_CUDA_nll_loss_forward\)",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(here: Tensor, case: str) -> None:
    call, words = REFUSED[case]
    with pytest.raises(RuntimeError, match=words.replace("cuda:1", DEVICE)):
        call(here)


def test_a_cpu_scalar_may_be_an_operand(here: Tensor) -> None:
    assert (here * torch.tensor(2.0)).device == here.device
    assert (torch.tensor(2.0) - here).device == here.device
    assert torch.maximum(here, torch.tensor(2.0)).device == here.device
    assert torch.where(here > 0, here, torch.tensor(2.0)).device == here.device
    assert torch.addcmul(here, here, torch.tensor(2.0)).tolist() == [[3.0] * 3] * 3
    here.mul_(torch.tensor(2.0)).masked_fill_(here > 2, torch.tensor(9.0)).sub_(torch.tensor(1.0))
    assert here.tolist() == [[1.0] * 3] * 3
    assert here[torch.tensor([0, 2])].shape == (2, 3)
    here[torch.tensor([0])] = torch.tensor(5.0)
    assert here.sum().item() == 21


def test_a_number_of_a_gpu_is_written_to_the_host_and_to_other_gpus(here: Tensor) -> None:
    number = torch.tensor(5.0, device="cuda:2")
    index = torch.tensor([1])
    for target in (torch.zeros(3), torch.zeros(3, device=DEVICE)):
        assert target.fill_(number) is target
        assert target.tolist() == [5.0] * 3
        target.zero_().index_put_((index,), number)
        assert target.tolist() == [0.0, 5.0, 0.0]
        target.index_put_((index,), number, accumulate=True)
        target[torch.tensor([True, False, False])] = number
        assert target.tolist() == [5.0, 10.0, 0.0]
    assert torch.tensor(0.0).fill_(number).item() == 5
    with pytest.raises(RuntimeError, match=f"but found at least two devices, {DEVICE} and cpu!"):
        torch.zeros(3).index_put_((index,), here[0, :1])


TWO_DEVICES = (
    "Expected all tensors to be on the same device, but found at least two devices, cuda:1 and cpu!"
)
NOT_OUT = "Expected out tensor to have device cuda:1, but got cpu instead"

# The output must be on the device of the computation, even for CPU scalars.
TARGETS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], str]] = {
    "in place": (lambda number, target: target.add_(number), TWO_DEVICES),
    "in place, a comparison": (lambda number, target: target.eq_(number), TWO_DEVICES),
    "in place, three operands": (
        lambda number, target: target.addcmul_(number, number),
        TWO_DEVICES,
    ),
    "in place, a mask": (
        lambda number, target: target.masked_fill_(number > 0, 2.0),
        "expected self and mask to be on the same device, but got mask on cuda:1 and self on cpu",
    ),
    "in place, a mask and a value": (
        lambda number, target: target.masked_fill_(number > 0, number),
        "masked_fill_: Expected inputs to be on same device",
    ),
    "out": (lambda number, target: torch.add(number, number, out=target), TWO_DEVICES),
    "out, one operand": (lambda number, target: torch.neg(number, out=target), TWO_DEVICES),
    "out, beside a number of the host": (
        lambda number, target: torch.mul(number, torch.tensor(2.0), out=target),
        TWO_DEVICES,
    ),
    "out, a sum": (lambda number, target: torch.sum(number[None], dim=0, out=target), NOT_OUT),
    "out, a mean": (lambda number, target: torch.mean(number[None], dim=0, out=target), NOT_OUT),
    "out, a product": (
        lambda number, target: torch.prod(number[None], dim=0, out=target),
        NOT_OUT,
    ),
}


@pytest.mark.parametrize("case", TARGETS)
def test_a_cpu_scalar_cannot_be_written_to(case: str) -> None:
    number, target = torch.tensor(3.0, device=DEVICE), torch.tensor(1.0)
    call, words = TARGETS[case]
    with pytest.raises(RuntimeError, match="^" + words.replace("cuda:1", DEVICE)):
        call(number, target)
    assert (target.device.type, target.item()) == ("cpu", 1.0)
    assert number.item() == 3


def test_a_cpu_scalar_in_a_list_cannot_be_written_to() -> None:
    number, target = torch.tensor(3.0, device=DEVICE), torch.tensor(1.0)
    with pytest.raises(RuntimeError, match=f"found at least two devices, {DEVICE} and cpu!"):
        torch._foreach_add_([target], [number])
    assert target.item() == 1


def test_a_cpu_scalar_cannot_be_written_to_by_an_empty_operation() -> None:
    empty = torch.ones(0, device=DEVICE)
    with pytest.raises(RuntimeError, match=f"at least two devices, {DEVICE} and cpu!"):
        torch.add(empty, empty, out=torch.tensor(1.0))


def test_numpy_is_refused(here: Tensor) -> None:
    with pytest.raises(TypeError, match=f"can't convert {DEVICE} device type tensor to numpy"):
        here.numpy()


def test_a_generator_of_the_host_is_refused() -> None:
    with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator"):
        torch.rand(2, device="cuda", generator=torch.Generator())


PLACES, MASK = [0, 2], [True, False, True]


def numbers(*values: object, device: str = DEVICE) -> Tensor:
    return torch.tensor([*values], device=device)


def put(target: Tensor, *index: Tensor | slice, values: Tensor, adds: bool = False) -> Tensor:
    if any(isinstance(each, slice) for each in index):
        target[index] = values
        return target
    return target.index_put_(index, values, accumulate=adds)


FIVE, TABLE = torch.tensor(5.0), torch.zeros(2, 3)
WRITES: dict[str, tuple[Callable[[], Tensor], list[object]]] = {
    "the host, at places of a GPU": (
        lambda: put(torch.zeros(3), numbers(*PLACES), values=FIVE),
        [5, 0, 5],
    ),
    "the host, by a mask of a GPU": (
        lambda: put(torch.zeros(3), numbers(*MASK), values=FIVE),
        [5, 0, 5],
    ),
    "the host, by a mask of a GPU, with several numbers": (
        lambda: put(torch.zeros(3), numbers(*MASK), values=torch.tensor([4.0, 6.0])),
        [4, 0, 6],
    ),
    "the host, with a number of a GPU": (
        lambda: put(torch.zeros(3), torch.tensor(PLACES), values=FIVE.to(DEVICE)),
        [5, 0, 5],
    ),
    "the host, places and number of a GPU": (
        lambda: put(torch.zeros(3), numbers(*PLACES), values=FIVE.to(DEVICE)),
        [5, 0, 5],
    ),
    "the host, added up": (
        lambda: put(torch.zeros(3), numbers(1, 1), values=torch.ones(2), adds=True),
        [0, 2, 0],
    ),
    "the host, with places of both": (
        lambda: put(TABLE.clone(), torch.tensor([1, 1]), numbers(*PLACES), values=FIVE),
        [[0, 0, 0], [5, 0, 5]],
    ),
    "the host, behind a slice": (
        lambda: put(TABLE.clone(), slice(1, None), numbers(*PLACES), values=FIVE),
        [[0, 0, 0], [5, 0, 5]],
    ),
    "the host, at int32 places": (
        lambda: put(torch.zeros(3), numbers(*PLACES).int(), values=FIVE),
        [5, 0, 5],
    ),
    "a GPU, at places of another": (
        lambda: put(torch.zeros(3, device=DEVICE), numbers(*PLACES, device="cuda:2"), values=FIVE),
        [5, 0, 5],
    ),
    "a GPU, by a mask of the host": (
        lambda: put(torch.zeros(3, device=DEVICE), torch.tensor(MASK), values=FIVE),
        [5, 0, 5],
    ),
    "a GPU, by its mask, with one number of the host": (
        lambda: put(torch.zeros(3, device=DEVICE), numbers(*MASK), values=torch.full((1,), 5.0)),
        [5, 0, 5],
    ),
    "the host, filled with a number of a GPU": (
        lambda: torch.zeros(3).index_fill_(0, torch.tensor(PLACES), FIVE.to(DEVICE)),
        [5, 0, 5],
    ),
    "a GPU, filled with a number of another": (
        lambda: torch.zeros(3, device=DEVICE).index_fill_(0, numbers(*PLACES), FIVE.to("cuda:2")),
        [5, 0, 5],
    ),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_write_moves_its_indices_and_its_number(name: str) -> None:
    write, left = WRITES[name]
    assert write().tolist() == left


def test_places_of_a_gpu_outside_a_host_tensor_are_an_error_of_the_host() -> None:
    for value in (FIVE, FIVE.to(DEVICE)):
        with pytest.raises(
            IndexError, match="index 9 is out of bounds for dimension 0 with size 3"
        ):
            put(torch.zeros(3), numbers(9), values=value)
