"""What a pipeline refuses; and a failure leaves nothing behind."""

from __future__ import annotations

import gc
import re
import time
from dataclasses import replace
from typing import Any

import pytest
import torch
from beside_one_device import TOLERANCE, Beside, batch, perceptron, rig_of
from torch import Tensor, nn

import anyrig
from anyrig.errors import BatchError, SpreadError
from anyrig.hardware import spec_of_key
from anyrig.parallel.plans import Pipeline

pytestmark = pytest.mark.gpus(4)

LOSS = nn.CrossEntropyLoss()


class Failing(nn.Module):
    """Fails in the forward or in the backward pass of a chosen call."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(7, 6))
        self.fails: str | None = None
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.fails == "forward" and self.calls == 3:
            raise KeyError("no such thing")
        y = x * self.weight[0]
        if self.fails == "backward" and y.requires_grad and self.calls == 3:
            y.register_hook(self.fail)
        return y

    def fail(self, gradient: Tensor) -> None:
        raise KeyError("no such gradient")


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_a_failing_stage_is_named_and_leaves_nothing(schedule: str, where: str) -> None:
    failing = Failing()
    module = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6), failing, nn.Linear(6, 5))
    pair = Beside(module, 4, LOSS, schedule=schedule, micro_batches=4)
    x, y = batch(8)
    pair.model(x, target=y).backward()
    pair.several.zero_grad()
    layer: Any = pair.several[2]
    layer.fails, layer.calls = where, 0
    used = allocated()
    parameters = list(pair.several.parameters())
    with pytest.raises(KeyError) as caught:
        pair.model(x, target=y).backward()
    if (schedule, where) != ("gpipe", "backward"):
        (note,) = caught.value.__notes__
        given = "backward" if where == "backward" else " (2, 6) float64"
        assert note.startswith("[anyrig: in stage 2 of 0 to 3 (2) on cuda:2, micro-batch 2 of 0 ")
        assert given in note
    assert all(map(lambda a, b: a is b, parameters, pair.several.parameters()))
    del caught
    pair.several.zero_grad()  # a failure leaves some gradients, as on one device
    deadline = time.monotonic() + 20
    while allocated() != used and time.monotonic() < deadline:
        time.sleep(0.01)  # autograd's threads of other devices may still be working
    assert allocated() == used
    layer.fails = None
    assert pair.step(x, y) < TOLERANCE


def allocated() -> list[int]:
    gc.collect()
    return [torch.cuda.memory_allocated(index) for index in range(4)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"micro_batches": 0}, "micro_batches=0 is neither"),
        ({"micro_batches": "many"}, "micro_batches='many' is neither"),
        ({"schedule": "2f2b"}, "schedule='2f2b' is unknown; use one of 'auto', '1f1b'"),
        ({"checkpoint": True}, "checkpoint=True is unknown; use one of 'never'"),
        ({"replicas": 2}, "the number of pipelines in a process group, but one process has one"),
        ({"split_points": ["o.1"]}, "has no submodule 'o.1'; the nearest names are"),
        ({"split_points": [3]}, "split_points=[3] is not a list of submodules' names; write spl"),
        ({"split_points": "a.1"}, "split_points='a.1' is not a list of submodules' names"),
        ({"example": torch.ones(2, 3)}, "example= was given a tensor of shape (2, 3), but takes"),
        ({"example": (1,)}, "example= was given a tuple of int, but takes the arguments of a"),
    ],
)
def test_options_that_do_not_fit(options: dict[str, Any], message: str) -> None:
    for devices in (2, 1):
        with pytest.raises(SpreadError, match=re.escape(message)):
            anyrig.spread(perceptron(), rig_of(devices), plan=Pipeline(**options), loss=LOSS)


def test_1f1b_needs_a_loss() -> None:
    with pytest.raises(SpreadError, match='without loss=; use schedule="gpipe"'):
        anyrig.spread(perceptron(), rig_of(2), plan=Pipeline(schedule="1f1b"))


def test_a_module_with_too_few_blocks() -> None:
    with pytest.raises(SpreadError, match="1 block that can be"):
        anyrig.spread(nn.Sequential(nn.Linear(2, 2)), rig_of(2), plan=Pipeline())
    model = anyrig.spread(perceptron(3), rig_of(4), plan=Pipeline())
    text = str(anyrig.explain(model))
    assert "1 device of the rig left out, as Sequential has 3 blocks" in text
    assert model(batch(4)[0].float()).shape == (4, 5)


def test_one_device_calls_the_module_unchanged() -> None:
    for plan in (Pipeline(), Pipeline(micro_batches=1)):
        model = anyrig.spread(perceptron(), rig_of(1), plan=plan, loss=LOSS)
        text = str(anyrig.explain(model))
        assert "alone on cuda:0" in text
        assert "a pipeline has one stage there, and uses no micro-batches" in text


def test_arguments_of_different_sizes() -> None:
    model: Any = anyrig.spread(perceptron().double(), rig_of(2), plan=Pipeline(), loss=LOSS)
    with pytest.raises(BatchError, match="8 samples along dimension 0 in argument 0"):
        model(batch(8)[0], target=batch(5)[1])


def test_a_moved_module() -> None:
    module = perceptron()
    model = anyrig.spread(module, rig_of(2), plan=Pipeline())
    module.to("cuda:0")
    with pytest.raises(SpreadError, match="is on cuda:0, but stage 1, which uses it, computes on"):
        model(batch(4)[0].float())


def change_kind(module: nn.Sequential) -> None:
    module[1] = nn.Linear(6, 6)


def change_alike(module: nn.Sequential) -> None:
    module[1][0] = nn.Linear(6, 6).to(module[1][0].weight)


def remove(module: nn.Sequential) -> None:
    del module[2]


def append(module: nn.Sequential) -> None:
    module.append(nn.Linear(5, 5))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (change_kind, "layer '1' of Sequential was replaced (Sequential by Linear)"),
        (change_alike, "layer '1.0' of Sequential was replaced (Linear by Linear)"),
        (remove, "layer '2' of Sequential was re"),
        (append, "layer '3' of Sequential was added"),
    ],
)
def test_layers_that_change_after_the_spread(change: Any, message: str) -> None:
    module = nn.Sequential(
        nn.Linear(6, 6), nn.Sequential(nn.Linear(6, 6), nn.ReLU()), nn.Linear(6, 5)
    )
    model: Any = anyrig.spread(module, rig_of(2), plan=Pipeline(), loss=LOSS)
    x, y = batch(8)
    model(x.float(), target=y).backward()
    change(module)
    with pytest.raises(SpreadError, match=re.escape(message)) as caught:
        model(x.float(), target=y)
    assert "Spread the module again" in str(caught.value)


def test_a_compiled_module_names_the_remedy() -> None:
    with pytest.raises(SpreadError, match=r"this Sequential as a whole.* Compile its layers, befo"):
        anyrig.spread(torch.compile(perceptron(), backend="eager"), rig_of(2), plan=Pipeline())
    model = anyrig.spread(perceptron(), rig_of(2), plan=Pipeline())
    compiled = torch.compile(model, backend="eager")
    with pytest.raises(
        SpreadError, match=r"a pipeline of Sequential on 2 devices.* Compile its la"
    ):
        compiled(batch(4)[0].float())


def test_a_loss_that_turns_out_not_to_be_reduced() -> None:
    def loss(output: Tensor, target: Tensor) -> Tensor:
        return nn.functional.cross_entropy(output, target, reduction="none")

    model: Any = anyrig.spread(perceptron().double(), rig_of(2), plan=Pipeline(), loss=loss)
    x, y = batch(8)
    with pytest.raises(SpreadError, match='use schedule="gpipe"'):
        model(x, target=y)


def normalized() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 6), nn.Linear(6, 5))


def test_batch_normalization_needs_the_whole_batch() -> None:
    pair = Beside(normalized(), 3, LOSS)
    text = str(anyrig.explain(pair.model))
    assert "micro-batches: 1, as BatchNorm1d in training mode" in text
    assert "    device 2  ....F0B0--........\n" in text
    assert pair.step(*batch(9)) < TOLERANCE
    assert pair.compare_states() < TOLERANCE
    for module in (pair.one, pair.several):
        module.eval()
    assert "micro-batches: 12, 4 for each of 3 devices" in str(anyrig.explain(pair.model))
    assert pair.step(*batch(9)) < TOLERANCE

    pair = Beside(normalized(), 3, LOSS, micro_batches=4)
    with pytest.raises(SpreadError, match=r"BatchNorm1d in training mode .* micro_batches=1"):
        pair.model(batch(9)[0], target=batch(9)[1])


def test_batch_normalization_without_running_statistics_always_needs_the_whole_batch() -> None:
    module = normalized()
    module[1] = nn.BatchNorm1d(6, track_running_stats=False)
    pair = Beside(module, 3, LOSS)
    pair.one.eval(), pair.several.eval()
    assert pair.step(*batch(9)) < TOLERANCE
    text = str(anyrig.explain(pair.model))
    assert "micro-batches: 1, as BatchNorm1d without running statistics takes" in text
    pair = Beside(module.eval(), 3, LOSS, micro_batches=4)
    with pytest.raises(SpreadError, match="BatchNorm1d without running statistics takes"):
        pair.model(batch(9)[0], target=batch(9)[1])


class Counting(nn.Module):
    """Scales by the number of its calls so far, in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.calls += 1
        return x * self.calls


def test_a_layer_that_writes_a_buffer_needs_the_whole_batch() -> None:
    module = nn.Sequential(nn.Linear(6, 6), Counting(), nn.Linear(6, 6), nn.Linear(6, 5))
    pair = Beside(module, 3, LOSS)
    for _ in range(3):
        assert pair.step(*batch(9)) < TOLERANCE
    assert pair.compare_states() < TOLERANCE
    text = str(anyrig.explain(pair.model))
    assert "micro-batches: 1, as the forward pass writes the buffer 'calls' of a Counting" in text

    pair = Beside(module, 3, LOSS, micro_batches=2)
    with pytest.raises(SpreadError, match="writes the buffer 'calls' of a Counting, once for each"):
        pair.model(batch(9)[0], target=batch(9)[1])
    assert pair.several.state_dict()["1.calls"] == 0
    pair.one.eval(), pair.several.eval()
    assert pair.step(*batch(9)) < TOLERANCE
    pair.several.train()
    with pytest.raises(SpreadError, match="writes the buffer 'calls' of a Counting, once for each"):
        pair.model(batch(9)[0], target=batch(9)[1])


def test_a_module_of_1_8_devices_is_refused_on_one() -> None:
    total = torch.cuda.mem_get_info(0)[1]
    width = 2**14
    layers = int(1.8 * total / (2 * 4 * width * width))  # parameters and gradients

    def build() -> nn.Sequential:
        with torch.device("meta"):
            return nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers)))

    with pytest.raises(SpreadError, match=r"cuda:0 has .* are missing; use 2 or more such devices"):
        anyrig.spread(build(), "cuda:0", plan=Pipeline(), loss=nn.MSELoss())
    frozen = build().eval().requires_grad_(False)
    with pytest.raises(Exception, match="meta"):  # the module would fit, but has no memory
        anyrig.spread(frozen, "cuda:0", plan=Pipeline())


def test_a_module_that_does_not_fit_names_the_missing_bytes() -> None:
    small = [replace(device, total_bytes=2**20) for device in rig_of(2)]
    module = perceptron(40, 128)  # 2.5 MiB, and as much for gradients
    with pytest.raises(
        SpreadError, match=r"are missing; 6 devices like cuda:0 with 1.00 MiB"
    ) as caught:
        anyrig.spread(module, anyrig.Rig(tuple(small), "test"), plan=Pipeline(), loss=LOSS)
    assert re.search(r"need (\S+) MiB or more \((\S+) MiB of .*, \2 MiB of grad", str(caught.value))
    assert {str(parameter.device) for parameter in module.parameters()} == {"cpu"}


def test_stages_on_unequal_devices_follow_published_rates() -> None:
    gpus = ("A100-80GB", "T4")
    devices = [
        replace(device, name=gpu, spec=spec_of_key(gpu))
        for device, gpu in zip(rig_of(2), gpus, strict=True)
    ]
    module = perceptron(12, 64)
    example = ((torch.randn(32, 64),), {})
    model = anyrig.spread(
        module, anyrig.Rig(tuple(devices), "test"), plan=Pipeline(example=example), loss=LOSS
    )
    plan = anyrig.explain(model).pipeline
    assert plan is not None
    sizes = [len(stage.blocks) for stage in plan.stages]
    assert sum(sizes) == 12
    assert sizes[0] >= 9
    assert "divided by published rates: 2 stages" in str(plan)


def test_without_published_rates_every_device_gets_as_many_bytes() -> None:
    example = ((torch.randn(32, 64),), {})
    model = anyrig.spread(
        perceptron(12, 64),
        anyrig.Rig(tuple(replace(device, name="Gpu", spec=None) for device in rig_of(4)), "test"),
        plan=Pipeline(example=example),
        loss=LOSS,
    )
    plan = anyrig.explain(model).pipeline
    assert plan is not None
    assert [len(stage.blocks) for stage in plan.stages] == [3, 3, 3, 3]
    assert "by the bytes of parameters, as no rates of Gpu are published" in str(plan)


def test_micro_batches_are_counted_for_the_devices_that_are_used() -> None:
    gpus = ("A100-80GB", "T4")
    devices = [
        replace(device, name=gpu, spec=spec_of_key(gpu))
        for device, gpu in zip(rig_of(2), gpus, strict=True)
    ]
    model = anyrig.spread(
        perceptron(2, 64),
        anyrig.Rig(tuple(devices), "test"),
        plan=Pipeline(example=((torch.randn(32, 64),), {})),
        loss=LOSS,
    )
    layout = anyrig.explain(model)
    assert len(layout.devices) == 1
    assert "micro-batches: 1, " in str(layout)
    assert "1 device of the rig left out, as the slowest stage" in layout.reason


def test_a_penalty_in_the_loss() -> None:
    module = perceptron().double()

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return LOSS(output, target) + module[-1].weight.square().sum()

    x, y = batch(8)
    model: Any = anyrig.spread(module, rig_of(2), plan=Pipeline(), loss=loss)
    with pytest.raises(SpreadError, match=r"tensor of shape \(5, 6\) that requires grad"):
        model(x, target=y)
    model = anyrig.spread(module, rig_of(2), plan=Pipeline(schedule="gpipe"), loss=loss)
    model(x, target=y).backward()
    with_penalty = module[-1].weight.grad.clone()
    module.zero_grad()
    LOSS(model(x), y.to("cuda:1")).backward()
    difference = with_penalty - module[-1].weight.grad - 2 * module[-1].weight.detach()
    assert float(difference.abs().max()) < TOLERANCE
