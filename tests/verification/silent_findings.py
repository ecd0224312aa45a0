"""Public silent findings, rebuilt small: training programs that run, and train something else.

Each function is one rank's program, and says which report it rebuilds. More than 400 lines: one
list of findings, with what `anyrig verify` must report of each.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from anyrig import Rig

SAMPLES, FEATURES, CLASSES = 16, 6, 5
STEPS = 2


def _rank() -> int:
    return dist.get_rank()


def _ranks() -> int:
    return dist.get_world_size()


def _data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(STEPS * SAMPLES, FEATURES, generator=generator)
    return inputs, torch.randint(CLASSES, (STEPS * SAMPLES,), generator=generator)


def _tokens() -> tuple[torch.Tensor, torch.Tensor]:
    """Samples, the later of which have more ignored labels."""
    inputs, labels = _data()
    for sample in range(len(labels)):
        if sample % SAMPLES >= 10 and sample % 3:
            labels[sample] = -100
    return inputs, labels


def _net(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, CLASSES))


def _loader(batch: int, data: tuple[torch.Tensor, torch.Tensor] | None = None) -> DataLoader:
    """A loader with a part of the batch on each rank."""
    dataset = TensorDataset(*(data or _data()))
    sampler = DistributedSampler(dataset, _ranks(), _rank(), shuffle=False)
    return DataLoader(dataset, batch // _ranks(), sampler=sampler)


def _reduce(parameters: object, operation: dist.ReduceOp = dist.ReduceOp.SUM, by: int = 1) -> None:
    for parameter in parameters:
        dist.all_reduce(parameter.grad, operation)
        parameter.grad /= by


def _train(model: nn.Module, loader: DataLoader, after_backward: object = None) -> None:
    inner = getattr(model, "module", model)
    optimizer = torch.optim.SGD(inner.parameters(), 0.1)
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        if after_backward is not None:
            after_backward(inner)
        optimizer.step()


def sums_over_ranks(_: Rig) -> None:
    """Gradients all-reduced by hand and never divided, as in many tutorials."""
    _train(_net(), _loader(SAMPLES), lambda model: _reduce(model.parameters()))


def divides_by_half_of_the_ranks(_: Rig) -> None:
    """Megatron-LM 673 and 906: the loss scaled for context parallelism, the mean over others."""
    _train(
        _net(),
        _loader(SAMPLES),
        lambda model: _reduce(model.parameters(), by=max(1, _ranks() // 2)),
    )


def divides_twice(_: Rig) -> None:
    """A loss over the samples of the whole batch, which DDP averages again."""
    model = DistributedDataParallel(_net())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for x, y in _loader(SAMPLES):
        optimizer.zero_grad()
        (nn.functional.cross_entropy(model(x), y, reduction="sum") / SAMPLES).backward()
        optimizer.step()


def averages_tokens_by_rank(_: Rig) -> None:
    """torchtitan 2206, Megatron-LM 7452 (3): ranks with unequal numbers of valid tokens."""
    _train(DistributedDataParallel(_net()), _loader(SAMPLES, _tokens()))


def averages_tokens_by_micro_batch(_: Rig) -> None:
    """transformers 34242: the mean over micro-batches with unequal numbers of tokens."""
    model = DistributedDataParallel(_net())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for number, (x, y) in enumerate(_loader(SAMPLES // 2, _tokens())):
        (nn.functional.cross_entropy(model(x), y) / 2).backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()


class Experts(nn.Module):
    """A dense layer, and experts that are divided among the ranks."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.dense = nn.Linear(FEATURES, CLASSES)
        own = slice(_rank() * 4 // _ranks(), (_rank() + 1) * 4 // _ranks())
        self.experts = nn.Parameter(torch.randn(4, FEATURES, CLASSES)[own].clone())
        self.scales = torch.tensor([1.0, 2.0, 3.0, 4.0])[own]

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        # Each expert gets every sample; the ranks add up what theirs return.
        return self.dense(x), torch.einsum("bf,efc,e->bc", x, self.experts, self.scales)


def _train_experts(clip: object, *, scale_of_experts: float = 1.0) -> None:
    """Train with all samples on each rank, and the experts' outputs added up over the ranks."""
    model = Experts()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    inputs, labels = _data()
    for step in range(STEPS):
        optimizer.zero_grad()
        x, y = inputs[step * SAMPLES :][:SAMPLES], labels[step * SAMPLES :][:SAMPLES]
        dense, own = model(x)
        total = own.detach().clone()
        dist.all_reduce(total)
        logits = dense + own + (total - own.detach())
        nn.functional.cross_entropy(logits, y).backward()
        model.experts.grad *= scale_of_experts
        clip(model)
        optimizer.step()


def _squares(parameter: torch.Tensor) -> torch.Tensor:
    return parameter.grad.square().sum()


def _clip(model: nn.Module, norm: torch.Tensor, most: float = 0.05) -> None:
    for parameter in model.parameters():
        parameter.grad *= torch.clamp(most / norm, max=1.0)


def clips_by_the_norm_of_one_rank(_: Rig) -> None:
    """Automodel 3816 and 3830: the norm is not reduced over the ranks that hold experts."""

    def clip(model: Experts) -> None:
        _clip(model, (_squares(model.dense.weight) + _squares(model.experts)).sqrt())

    _train_experts(clip)


def clips_by_the_mean_of_norms(_: Rig) -> None:
    """DeepSpeed 8469: the norms of ranks that hold other experts are averaged."""

    def clip(model: Experts) -> None:
        norm = (_squares(model.dense.weight) + _squares(model.experts)).sqrt()
        dist.all_reduce(norm)
        _clip(model, norm / _ranks())

    _train_experts(clip)


def clips_without_the_parts_of_other_ranks(_: Rig) -> None:
    """Megatron-LM 7452 (8): all parts but the first rank's are missing from the norm."""

    def clip(model: Experts) -> None:
        own = _squares(model.experts) * (_rank() == 0)
        dist.all_reduce(own)
        _clip(model, (_squares(model.dense.weight) + own).sqrt())

    _train_experts(clip)


def doubles_experts(_: Rig) -> None:
    """PyTorch 160285: the gradients of experts are multiplied by the ranks, others are not."""
    _train_experts(lambda model: None, scale_of_experts=_ranks())


def replaces_a_parameter_after_wrapping(_: Rig) -> None:
    """PyTorch 104336: a wrapped model whose parameters change gets no reduction for them."""
    model = DistributedDataParallel(_net(), find_unused_parameters=True)
    last = model.module[2]
    last.bias = nn.Parameter(last.bias.detach().clone())
    _train(model, _loader(SAMPLES))


def calls_the_wrapped_module(_: Rig) -> None:
    """kohya-ss/sd-scripts 924: the module inside DistributedDataParallel is called."""
    model = DistributedDataParallel(_net())
    _train(model.module, _loader(SAMPLES))


def accumulates_without_the_last_reduction(_: Rig) -> None:
    """no_sync() around every micro-batch, the last one included."""
    model = DistributedDataParallel(_net())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for number, (x, y) in enumerate(_loader(SAMPLES // 2)):
        with model.no_sync():
            (nn.functional.cross_entropy(model(x), y) / 2).backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()


class Normed(nn.Module):
    """A layer norm in front of a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.norm = nn.LayerNorm(FEATURES)
        self.head = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(x))


def leaves_norms_of_a_sequence_unreduced(_: Rig) -> None:
    """TTrace, bigcode Megatron-LM 35: partial gradients under sequence parallelism."""
    model = Normed()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    inputs, labels = _data()
    for step in range(STEPS):
        optimizer.zero_grad()
        own = slice(step * SAMPLES + _rank(), (step + 1) * SAMPLES, _ranks())
        loss = nn.functional.cross_entropy(model(inputs[own]), labels[own], reduction="sum")
        (loss / SAMPLES).backward()
        _reduce(model.head.parameters())
        optimizer.step()


def loads_the_same_samples(_: Rig) -> None:
    """No DistributedSampler: every rank trains on the whole batch."""
    _train(
        DistributedDataParallel(_net()), DataLoader(TensorDataset(*_data()), SAMPLES, shuffle=False)
    )


def loads_the_same_samples_for_shards(_: Rig) -> None:
    """No DistributedSampler with FSDP2: every rank trains on the whole batch."""
    _train(fully_shard(_net()), DataLoader(TensorDataset(*_data()), SAMPLES, shuffle=False))


def takes_overlapping_parts(_: Rig) -> None:
    """Parts of a batch that overlap: some samples count twice, others not at all."""
    model = DistributedDataParallel(_net())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    inputs, labels = _data()
    for step in range(STEPS):
        optimizer.zero_grad()
        part = SAMPLES // _ranks()
        begin = step * SAMPLES + max(0, _rank() * part - (_rank() > 0) * part // 2)
        x, y = inputs[begin : begin + part], labels[begin : begin + part]
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def drops_the_rest_of_the_batch(_: Rig) -> None:
    """Equal parts of a batch that the ranks do not divide: the last samples are left out."""
    model = DistributedDataParallel(_net())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    inputs, labels = _data()
    for step in range(STEPS):
        optimizer.zero_grad()
        part = (SAMPLES - 1) // _ranks()
        begin, end = step * 15 + _rank() * part, step * 15 + (_rank() + 1) * part
        nn.functional.cross_entropy(model(inputs[begin:end]), labels[begin:end]).backward()
        optimizer.step()


def begins_with_other_values(_: Rig) -> None:
    """Ranks with seeds of their own, whose gradients alone are averaged."""
    _train(_net(seed=_rank()), _loader(SAMPLES), lambda one: _reduce(one.parameters(), by=_ranks()))


def draws_the_same_dropout(_: Rig) -> None:
    """One seed on all ranks while the model trains."""
    model = nn.Sequential(_net(), nn.Dropout(0.5))
    torch.manual_seed(0)
    _train(DistributedDataParallel(model), _loader(SAMPLES))


def normalises_by_rank(_: Rig) -> None:
    """BatchNorm over the samples of one rank."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.Linear(8, CLASSES))
    _train(DistributedDataParallel(model), _loader(SAMPLES))


def unscales_by_scales_of_its_own(_: Rig) -> None:
    """PyTorch 136009: gradient scalers whose scales differ between ranks."""

    def unscale(model: nn.Module) -> None:
        for parameter in model.parameters():
            parameter.grad *= 2.0 ** _rank()

    _train(DistributedDataParallel(_net()), _loader(SAMPLES), unscale)


class Gathered(nn.Module):
    """A first layer whose outputs are gathered by a collective without a gradient."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = nn.Linear(FEATURES, 8)
        self.last = nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        if _ranks() > 1:
            parts = [torch.empty_like(hidden) for _ in range(_ranks())]
            dist.all_gather(parts, hidden.detach())
            hidden = torch.cat(parts)
        return self.last(hidden)


def gathers_without_a_gradient(_: Rig) -> None:
    """torch.distributed.all_gather in a forward pass, through which no gradient flows."""
    model = Gathered()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    inputs, labels = _data()
    for step in range(STEPS):
        optimizer.zero_grad()
        part = SAMPLES // _ranks()
        begin = step * SAMPLES + _rank() * part
        y = labels[step * SAMPLES :][:SAMPLES]
        nn.functional.cross_entropy(model(inputs[begin : begin + part]), y).backward()
        optimizer.step()


def scales_the_learning_rate(_: Rig) -> None:
    """The learning rate times the number of ranks, for the same global batch."""
    model = DistributedDataParallel(_net())
    optimizer = torch.optim.SGD(model.parameters(), 0.1 * _ranks())
    for x, y in _loader(SAMPLES):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def learns_nothing(_: Rig) -> None:
    """A learning rate of zero: both runs agree."""
    model = DistributedDataParallel(_net())
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    for x, y in _loader(SAMPLES):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def has_no_gradient(_: Rig) -> None:
    """An optimizer's step without a backward pass."""
    model = _net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for x, y in _loader(SAMPLES):
        nn.functional.cross_entropy(model(x), y)
        optimizer.step()


def has_a_constant_loss(_: Rig) -> None:
    """A loss whose value is always zero."""
    model = DistributedDataParallel(_net())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for x, _y in _loader(SAMPLES):
        optimizer.zero_grad()
        output = model(x).mean()
        (output - output.detach()).backward()
        optimizer.step()


def loads_other_samples(_: Rig) -> None:
    """Samples drawn by each rank, which one device cannot repeat."""
    model = DistributedDataParallel(_net())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    torch.manual_seed(_rank())
    for _step in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(4, FEATURES)).square().mean().backward()
        optimizer.step()


TIMES = "\u00d7"

# What each finding must be reported as: the cause, the tensor, a part of the text.
EXPECTED: dict[str, tuple[str, str | None, str]] = {
    "sums_over_ranks": (
        "factor",
        "2.weight",
        TIMES + "4 what one device computes: summed over",
    ),
    "divides_by_half_of_the_ranks": ("factor", "2.weight", TIMES + "2 what one device"),
    "divides_twice": ("factor", "2.weight", TIMES + "1/4 what one device"),
    "averages_tokens_by_rank": ("unequal-counts", "2.weight", "unequal numbers of tokens"),
    "averages_tokens_by_micro_batch": ("unequal-counts", "2.weight", "ranks and micro-batches"),
    "clips_by_the_norm_of_one_rank": ("local-norm", "dense.weight", "rank 3 by"),
    "clips_by_the_mean_of_norms": ("factor", "dense.weight", "clipped by another norm"),
    "clips_without_the_parts_of_other_ranks": ("factor", "dense.weight", "clipped by another norm"),
    "doubles_experts": ("factor", "experts", "only the gradient of experts is " + TIMES + "4"),
    "replaces_a_parameter_after_wrapping": ("never-reduced", "2.bias", "of 2.bias was never"),
    "calls_the_wrapped_module": ("never-reduced", "2.weight", "all parameters was never reduced"),
    "accumulates_without_the_last_reduction": ("never-reduced", "2.weight", "all parameters"),
    "leaves_norms_of_a_sequence_unreduced": ("partial-sum", "norm.weight", "never summed"),
    "loads_the_same_samples": ("same-samples", None, "all 4 ranks compute the same samples"),
    "loads_the_same_samples_for_shards": ("same-samples", None, "all 4 ranks compute the same"),
    "takes_overlapping_parts": ("samples", "2.weight", "of the batch twice"),
    "drops_the_rest_of_the_batch": ("samples", "2.weight", "of the batch not at all"),
    "begins_with_other_values": ("initial-values", "0.weight", "ranks 0 and 1 begin"),
    "draws_the_same_dropout": ("same-dropout", None, "same random state"),
    "normalises_by_rank": ("batch-norm", "2.weight", "the batch norm 1 uses"),
    "unscales_by_scales_of_its_own": ("local-norm", "2.weight", "rank 3 by 8"),
    "gathers_without_a_gradient": ("no-gradient", "first.weight", "no gradient on the rig"),
    "scales_the_learning_rate": ("learning-rate", "0.weight", "each update is " + TIMES + "4"),
    "learns_nothing": ("no-update", None, "learning rate is zero"),
    "has_a_constant_loss": ("constant-loss", None, "the loss is 0 in each of 2 steps"),
    "has_no_gradient": ("no-gradient-at-all", None, "no parameter gets a gradient"),
}
CANNOT_BE_COMPARED = {"loads_other_samples": "samples, and one device"}


def run_rank(folder: str) -> None:
    """Verify every finding on this rank; rank 0 writes the verdicts to a file of `folder`."""
    import json
    import time
    from pathlib import Path

    from anyrig.processes.group.membership import join_group
    from anyrig.verification import verify

    torch.set_num_threads(1)
    join_group(timeout_seconds=60)
    verdicts = {}
    for name in (*EXPECTED, *CANNOT_BE_COMPARED):
        begin = time.perf_counter()
        verdict = verify(globals()[name], steps=STEPS)
        verdicts[name] = {
            **verdict.as_json(),
            "text": str(verdict),
            "seconds": time.perf_counter() - begin,
        }
    if os.environ["RANK"] == "0":
        Path(folder, "verdicts.json").write_text(json.dumps(verdicts))
    dist.destroy_process_group()
