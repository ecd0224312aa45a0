"""Bytes by kind add up to the allocator's figure and equal figures computed by hand."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterable

import pytest
import torch
from footprint_of_device import on
from torch import Tensor, nn
from trainings import BATCH, MODELS, OPTIMIZERS, WAYS, Training, prepare

from anyrig.memory import Kind, Moment, track
from cpu_kernels import need_bfloat16_lstm

CUDA = pytest.param("cuda", marks=pytest.mark.gpus(1))
BLOCK_BYTES = 512


def bytes_of(tensors: Iterable[Tensor], device: str) -> int:
    """Return the bytes of tensors' storages; a CUDA block is a multiple of 512 bytes."""
    rounding = BLOCK_BYTES if device == "cuda" else 1
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(-(-count // rounding) * rounding for count in storages.values())


def gradients(training: Training, device: str) -> int:
    copies = [torch.empty_like(parameter) for parameter in training.model.parameters()]
    return bytes_of(copies, device)


def state(training: Training, device: str) -> int:
    tensors = [
        value
        for values in training.optimizer.state.values()
        for value in values.values()
        if isinstance(value, Tensor) and value.device.type == device
    ]
    return bytes_of(tensors, device)


class Elsewhere:
    """The bytes by kind that other tests of this process left alive."""

    def __init__(self, device: str) -> None:
        gc.collect()
        with track() as footprint:
            pass
        found = [each for each in footprint.devices if str(each.device).startswith(device)]
        self._kinds = Counter(found[0].end.by_kind() if found else {})

    def leave_out(self, moment: Moment) -> Counter[Kind]:
        """Return a moment's bytes by kind without the bytes of other tests."""
        return Counter(moment.by_kind()) - self._kinds


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", MODELS)
def test_kinds_equal_what_is_computed_by_hand(
    model: str, optimizer: str, way: str, device: str
) -> None:
    if (model, way, device) == ("lstm", "bfloat16", "cpu"):
        need_bfloat16_lstm()
    elsewhere = Elsewhere(device)
    training = prepare(model, optimizer, way, device)
    training.step()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    with track() as footprint:
        training.step()
        training.step()
    found = on(device, footprint)
    for moment in (found.start, found.peak, found.end):
        assert sum(holding.bytes for holding in moment.holdings) == moment.allocated_bytes
        everything = moment.by_kind().values()
        assert sum(everything) == (moment.reserved_bytes or moment.allocated_bytes)
        kinds = elsewhere.leave_out(moment)
        assert kinds[Kind.PARAMETERS] == bytes_of(training.model.parameters(), device)
        assert kinds[Kind.BUFFERS] == bytes_of(training.model.buffers(), device)
        assert kinds[Kind.OPTIMIZER_STATE] == state(training, device)
    assert elsewhere.leave_out(found.peak)[Kind.GRADIENTS] <= gradients(training, device)
    assert Kind.GRADIENTS not in elsewhere.leave_out(found.end)
    if device == "cuda":
        assert found.start.allocated_bytes == before
        assert found.end.allocated_bytes == torch.cuda.memory_allocated()
        assert found.end.reserved_bytes == torch.cuda.memory_reserved()
        assert found.peak.allocated_bytes == torch.cuda.max_memory_allocated()


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("model", MODELS)
def test_gradients_are_whole_after_a_backward_pass(model: str, device: str) -> None:
    elsewhere = Elsewhere(device)
    training = prepare(model, "sgd", "plain", device)
    with track() as footprint:
        x, y = training.samples.to(device), training.targets.to(device)
        nn.functional.cross_entropy(training.model(x), y).backward()
    kinds = elsewhere.leave_out(on(device, footprint).end)
    assert kinds[Kind.GRADIENTS] == gradients(training, device)
    assert kinds[Kind.PARAMETERS] == bytes_of(training.model.parameters(), device)
    # On the CPU, the program made the batch before tracking began.
    assert kinds[Kind.BATCH] == bytes_of([x, y] if device == "cuda" else [x], device)


@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_activations_of_an_mlp(device: str) -> None:
    elsewhere = Elsewhere(device)
    training = prepare("mlp", "sgd", "plain", device)
    x, y = training.samples.to(device), training.targets.to(device)
    with track() as footprint:
        loss = nn.functional.cross_entropy(training.model(x), y)
        held = (128, 128, 10, 1)  # each ReLU's result, the log-probabilities, the loss
        expected = bytes_of([torch.empty(BATCH, n) for n in held[:3]], device)
        loss.backward()
        del loss
    del x, y
    kinds = on(device, footprint)
    assert elsewhere.leave_out(kinds.end)[Kind.ACTIVATIONS] == 0
    highest = max(kinds.curve.bytes_of[Kind.ACTIVATIONS])
    small = 4 * BLOCK_BYTES  # the loss and the weights of its mean
    assert expected <= highest <= expected + small
