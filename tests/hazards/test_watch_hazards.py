"""`watch_hazards` warns or raises, changes no numbers, and leaves nothing behind."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import _global_forward_pre_hooks
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import anyrig
from anyrig.errors import HazardError
from anyrig.hazards import HazardKind, HazardWarning, watch_hazards
from anyrig.hazards.tensor_numbers import TensorNumbers
from anyrig.virtual import installation

DEVICES = pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda:1", marks=pytest.mark.gpus(2))]
)
ONE_DEVICE = pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpus(1))]
)


def needs_sums(device: str) -> bool:
    """Return whether saved values are watched by sums only: not on virtual GPUs."""
    return device == "cpu" or installation() is None


def overwrite(device: str) -> Tensor:
    x = torch.ones(3, device=device, requires_grad=True)
    y = x.exp()
    y.data.mul_(2)
    y.sum().backward()
    assert x.grad is not None
    return x.grad


@DEVICES
def test_a_warning_names_the_line_that_wrote(device: str) -> None:
    with (
        pytest.warns(
            HazardWarning, match=r"(?s)overwritten by mul_ .* test_watch_hazards.py:\d+"
        ) as caught,
        watch_hazards(sums=needs_sums(device)),
    ):
        overwrite(device)
    assert [warning.filename for warning in caught] == [__file__]


@DEVICES
def test_an_error_comes_from_the_backward_pass(device: str) -> None:
    with (
        pytest.raises(HazardError, match="overwritten"),
        watch_hazards(raise_errors=True, sums=True),
    ):
        overwrite(device)
    overwrite(device)  # not watched any more


@DEVICES
def test_the_numbers_stay_the_same(device: str) -> None:
    plain = overwrite(device)
    with watch_hazards(warn=False, sums=needs_sums(device)):
        watched = overwrite(device)
    assert torch.equal(plain, watched)


def with_new_input(x: Tensor) -> Tensor:
    h = x * 2
    y = h**2  # uses the new memory of `h` in the backward pass
    h.data = torch.full_like(h, 5.0)
    return y


def with_new_output(x: Tensor) -> Tensor:
    y = x.exp()  # uses the old memory of `y`
    y.data = torch.full_like(y, 5.0)
    return y


@DEVICES
@pytest.mark.parametrize(
    ("compute", "kinds"), [(with_new_input, [HazardKind.OVERWRITTEN]), (with_new_output, [])]
)
def test_assigned_memory_is_used_as_without_a_watch(
    compute: Callable[[Tensor], Tensor], kinds: list[HazardKind], device: str
) -> None:
    def gradient() -> Tensor:
        x = torch.ones(3, device=device, requires_grad=True)
        (found,) = torch.autograd.grad(compute(x).sum(), [x])
        return found

    plain = gradient()
    with watch_hazards(warn=False, sums=needs_sums(device)) as hazards:
        assert torch.equal(plain, gradient())
    assert [hazard.kind for hazard in hazards] == kinds


@DEVICES
def test_gradcheck_writes_to_its_inputs_and_restores_them(device: str) -> None:
    x = torch.rand(3, dtype=torch.float64, device=device, requires_grad=True)
    with watch_hazards(warn=False, sums=needs_sums(device)) as hazards:
        assert torch.autograd.gradcheck(torch.sin, x)
        assert torch.autograd.gradgradcheck(torch.sin, x)
        assert list(hazards) == []
        overwrite(device)
    assert [hazard.kind for hazard in hazards] == [HazardKind.OVERWRITTEN]


@DEVICES
def test_what_pytorch_notices_is_raised_as_before(device: str) -> None:
    def spoil() -> None:
        y = torch.ones(3, device=device, requires_grad=True) * 2
        z = (y * y).sum()
        y.add_(1)
        z.backward()

    with pytest.raises(RuntimeError, match="modified by an inplace operation") as plain:
        spoil()
    with (
        watch_hazards(sums=needs_sums(device)) as hazards,
        pytest.raises(RuntimeError, match="modified by an inplace operation") as watched,
    ):
        spoil()
    assert not hazards
    assert str(watched.value).split("[")[0] == str(plain.value).split("[")[0]


@pytest.mark.virtual_only("sums, which real GPUs need, are taken in the thread of the watch")
@pytest.mark.gpus(1)
def test_other_threads_are_watched() -> None:
    with watch_hazards(warn=False) as hazards:
        thread = threading.Thread(target=overwrite, args=("cuda",))
        thread.start()
        thread.join()
    assert len(hazards) == 1


@ONE_DEVICE
def test_a_part_that_stays_the_same_is_no_hazard(device: str) -> None:
    with watch_hazards(warn=False, sums=needs_sums(device)) as hazards:
        x = torch.ones(4, 4, device=device, requires_grad=True)
        y = x[:, 0] * x[:, 2]
        x.data[:, 1] = 5
        y.sum().backward()
    assert not hazards


@ONE_DEVICE
@pytest.mark.parametrize("both_saved", [False, True])
@pytest.mark.parametrize(
    ("saved", "written", "is_hazard"),
    [("whole", "part", True), ("part", "whole", True), ("part", "rest", False)],
)
def test_memory_that_two_storages_share_is_watched(
    saved: str, written: str, is_hazard: bool, both_saved: bool, device: str
) -> None:
    x = torch.ones(4, device=device, requires_grad=True)
    memory = torch.ones(8, device=device)
    part = torch.from_dlpack(memory[4:])  # a storage that begins in the middle of the other one
    tensors = {"whole": memory[4:], "part": part, "rest": memory[:4]}
    with watch_hazards(warn=False, sums=needs_sums(device)) as hazards:
        y = x * tensors[saved]
        unused = x * tensors[written] if both_saved else None
        tensors[written].data.mul_(2)
        y.sum().backward()
    del unused
    assert [hazard.kind for hazard in hazards] == [HazardKind.OVERWRITTEN] * is_hazard


@ONE_DEVICE
@pytest.mark.parametrize("is_saved", [True, False])
def test_nested_tensors_are_watched(is_saved: bool, device: str) -> None:
    parts = [torch.ones(length, 4, device=device) for length in (2, 3)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns that they are a prototype
        nested, other = (torch.nested.nested_tensor(parts, requires_grad=True) for _ in range(2))
    with watch_hazards(warn=False, sums=needs_sums(device)) as hazards:
        y = nested * 2
        z = torch.nested.to_padded_tensor(y * y, 0.0).sum()
        storage = (y if is_saved else other).untyped_storage()
        torch.empty(0, device=device).set_(storage, 8, (12,)).mul_(2)  # the second part
        z.backward()
    what = [hazard.what for hazard in hazards]
    assert len(what) == is_saved
    for text in what:
        assert "a nested tensor of 2 parts" in text
        assert "overwritten by mul_" in text


@pytest.mark.gpus(1)
def test_parts_of_a_nested_tensor_that_lie_apart_are_not_watched() -> None:
    parts = [torch.ones(length, 4, device="cuda") for length in (2, 3)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns that they are a prototype
        one, other = (torch.nested.nested_tensor(parts, requires_grad=True) for _ in range(2))
    with watch_hazards(warn=False) as hazards:
        product = one.matmul(other.transpose(1, 2))
        loss = torch.nested.to_padded_tensor(product, 0.0).sum()
        torch.empty(0, device="cuda").set_(other.untyped_storage(), 8, (12,)).mul_(2)
        loss.backward()
    assert not hazards


@ONE_DEVICE
def test_storages_between_a_write_and_the_memory_around_them_hide_nothing(device: str) -> None:
    x = torch.ones(12, device=device, requires_grad=True)
    memory = torch.ones(12, device=device)
    middle, end = (torch.from_dlpack(memory[begin : begin + 4]) for begin in (4, 8))
    with watch_hazards(warn=False, sums=needs_sums(device)) as hazards:
        y = x * memory
        unused = x[:4] * middle
        end.data.mul_(2)
        y.sum().backward()
    del unused
    assert [hazard.kind for hazard in hazards] == [HazardKind.OVERWRITTEN]


@pytest.mark.gpus(1)
@pytest.mark.parametrize("operator", ["native_batch_norm", "_batch_norm_with_update"])
def test_running_statistics_may_be_updated(operator: str) -> None:
    x = torch.rand(4, 3, device="cuda", requires_grad=True)
    weight, bias, mean, variance = torch.ones(4, 3, device="cuda").unbind()
    update = getattr(torch.ops.aten, operator)
    training = () if operator == "_batch_norm_with_update" else (True,)
    with watch_hazards(warn=False) as hazards:
        outputs = [
            update(x, weight, bias, mean, variance, *training, 0.1, 1e-5)[0] for _ in range(2)
        ]
        sum(outputs).square().sum().backward()
    assert not hazards


@pytest.mark.filterwarnings("ignore::anyrig.parallel.BatchStatisticsWarning")
@pytest.mark.gpus(2)
def test_replicas_of_a_model_called_twice_raise_no_alarm() -> None:
    model = anyrig.spread(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), "cuda:0,1")
    with watch_hazards(warn=False) as hazards:
        x = torch.rand(8, 4, device="cuda")
        (model(x) + model(2 * x)).sum().backward()
    assert not hazards


@pytest.mark.gpus(1)
def test_memory_is_freed_as_without_a_watch() -> None:
    def train() -> int:
        model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64)).cuda()
        before = torch.cuda.memory_allocated()
        for _ in range(3):
            model(torch.ones(64, 64, device="cuda")).exp().sum()  # graphs without a backward pass
        return torch.cuda.memory_allocated() - before

    train()  # makes cuBLAS's workspace
    assert train() == 0
    with watch_hazards():
        assert train() == 0


@pytest.mark.parametrize("error", [SystemExit, ValueError])
def test_a_program_that_exits_is_judged_at_its_end(error: type[BaseException]) -> None:
    def train() -> None:
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        optimizer = torch.optim.SGD(model[1].parameters())
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        raise error

    with pytest.raises(error), watch_hazards(warn=False) as hazards:
        train()
    kinds = [hazard.kind for hazard in hazards]
    assert kinds == ([HazardKind.UNOWNED] if error is SystemExit else [])


@pytest.mark.parametrize("built_again", ["before the watch", "while it is watched"])
def test_an_optimizer_of_a_model_that_was_built_again(built_again: str) -> None:
    first = nn.Linear(5, 3)
    optimizer = torch.optim.SGD(first.parameters(), 0.1)
    model = nn.Linear(5, 3)
    with watch_hazards(warn=False) as hazards:
        if built_again == "while it is watched":
            model = nn.Linear(5, 3)
        for _ in range(4):
            model(torch.ones(2, 5)).sum().backward()
            optimizer.step()
            model.zero_grad()
    assert [hazard.kind for hazard in hazards] == [HazardKind.REPLACED]
    del first


@DEVICES
def test_nothing_is_left_behind(device: str) -> None:
    def state() -> list[object]:
        return [
            torch.autograd.backward,
            *(vars(Tensor).get(name) for name in ("data", "detach", "numpy")),
            nn.functional.dropout,
            len(_global_optimizer_pre_hooks) + len(_global_optimizer_post_hooks),
            _get_current_dispatch_mode_stack(),
        ]

    before = state()
    with watch_hazards(sums=needs_sums(device)):
        assert state() != before
    assert state() == before


class Dropped(nn.Module):
    """A model whose forward a pipeline records, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = nn.functional.dropout(torch.tanh(layer(x)), 0.1)
        return x


@pytest.mark.gpus(2)
def test_a_module_is_divided_into_stages_as_without_a_watch() -> None:
    with watch_hazards(warn=False) as hazards:
        model = anyrig.spread(Dropped(), "cuda:0,1", plan=anyrig.Pipeline(), loss=nn.MSELoss())
        x = torch.rand(8, 4, device="cuda")
        for _ in range(2):
            model(x, target=x).backward()
    assert not hazards


def test_no_hook_is_left_behind_by_an_error() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout())

    def evaluate() -> None:
        with torch.no_grad():
            model(torch.ones(1, 2))
        raise KeyError

    before = len(_global_forward_pre_hooks), len(model._forward_pre_hooks)
    with pytest.raises(KeyError), watch_hazards():
        evaluate()
    assert (len(_global_forward_pre_hooks), len(model._forward_pre_hooks)) == before


def test_a_compiled_function_runs_while_watched() -> None:
    @torch.compile(backend="eager", fullgraph=True)
    def forward(x: Tensor) -> Tensor:
        hidden = nn.functional.dropout(x * 2, 0.5)
        with torch.no_grad():
            shift = nn.functional.dropout(x, 0.5)
        return hidden + hidden.detach() + shift

    with watch_hazards(warn=False) as hazards:
        forward(torch.ones(2, 4, requires_grad=True)).sum().backward()
    assert not hazards


def test_a_tensor_never_gets_the_number_of_one_that_is_gone() -> None:
    numbers = TensorNumbers()
    # Most of these tensors are at the address of the one before.
    found = [numbers.number(torch.ones(1)) for _ in range(8)]
    assert len({*found}) == 8
    assert {numbers.tensor(number) for number in found} == {None}


def test_two_watches_are_refused() -> None:
    with watch_hazards(), pytest.raises(HazardError, match="already"), watch_hazards():
        pass


@pytest.mark.gpus(1)
def test_functional_transforms_work_while_watched() -> None:
    with watch_hazards():
        x = torch.ones(3, device="cuda")
        assert torch.func.grad(lambda value: (value * value).sum())(x).tolist() == [2, 2, 2]


@pytest.mark.parametrize("first", ["values", "optimizer"])
def test_new_values_by_assignment_are_a_reason_for_a_new_optimizer(first: str) -> None:
    model = nn.Linear(2, 1)
    with watch_hazards(warn=False) as hazards:
        for number in range(6):
            values = [torch.full_like(each, float(number)) for each in model.parameters()]
            for what in ("values", "optimizer") if first == "values" else ("optimizer", "values"):
                if what == "optimizer":
                    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
                    continue
                for parameter, value in zip(model.parameters(), values, strict=True):
                    parameter.data = value
            model(torch.ones(3, 2)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert not [each for each in hazards if each.kind is HazardKind.REBUILT]
