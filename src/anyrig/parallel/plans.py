"""What a user says about how a module is spread: one plan, validated when it is made.

::

    plan       each device or rank computes           and has
    Replicas   a part of each batch                   the whole module
    Shards     its own samples, layer by layer        a part of every parameter
    Pipeline   all samples, for neighbouring layers   these layers
    Exact      its logical shards of each batch       what the plan within has

`anyrig.spread` chooses a plan if none is given, and `anyrig.explain` says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from ..errors import SpreadError
from .accumulation import refuse_with_accumulate
from .engines.exact.logical_shards import check_logical_shards
from .engines.exact.loss import require_exact_loss
from .engines.pipeline.schedules.named import check_schedule_name
from .shares.shares import Shares, read_shares

if TYPE_CHECKING:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    from .asked import Asked
    from .engines.pipeline.split.arguments import Call

_CHECKPOINT = ("never", "except_last", "always")
_DDP = ("bucket_cap_mb", "find_unused_parameters", "gradient_as_bucket_view")
_DECIDED = {
    "module": "it is the first argument of spread",
    "device_ids": "the module is on the rank's device",
    "output_device": "outputs stay on the rank's device",
    "dim": "it is an argument of spread",
    "process_group": "all ranks of the default group take part",
    "device_mesh": "all ranks of the default group take part",
    "broadcast_buffers": "buffers travel in the backward pass, from a rank that has samples",
    "forward_sync_buffers": "buffers travel in the backward pass, from a rank that has samples",
    "static_graph": "each step may use other parameters, and use them in another order",
    "init_sync": "rank 0's parameters and buffers are broadcast",
}


@dataclass(frozen=True)
class Replicas:
    """The whole module on each device or rank, and a part of each batch.

    Attributes:
        shares: how much of a batch each device gets: ``"even"``; ``"speed"``: by published rates,
            corrected by the durations of the first steps and fixed afterwards; ``"memory"``:
            such that all devices are equally full, by the peaks of the first steps; or one number
            for each device. ``"auto"``: even on equal devices, and by published rates on unequal
            ones; nothing is measured. In a process group, `distribute` divides by them.
        sync_batch_norm: compute the statistics of batch normalization from the whole batch instead
            of each device's samples; replaces these layers in the module. In a process group the
            new layers are `torch.nn.SyncBatchNorm`, on GPUs only.
        local_statistics: accept numbers that each device takes from its own samples, as under DDP:
            batch normalization, which the first step otherwise warns of, and samples that the
            module relates to each other, which it otherwise refuses.
        processes: compute each part in a process of its own, which this process starts and ends:
            their number, this process included; True for one for each device. On the CPU, in a
            script or notebook without a launcher. By default the threads of this process drive all
            devices.
        ddp: in a process group, arguments for PyTorch's `DistributedDataParallel`:
            ``find_unused_parameters``, ``bucket_cap_mb``, ``gradient_as_bucket_view``. In one
            process they have no effect.

    Raises:
        SharesError: `shares` is neither a policy nor numbers.
        SpreadError: `ddp` has another argument, or `processes` is not a positive number, or is used
            with `sync_batch_norm` or with measured shares.
    """

    shares: str | Sequence[float] | Shares = "auto"
    sync_batch_norm: bool = False
    local_statistics: bool = False
    processes: bool | int = False
    ddp: Mapping[str, Any] = field(default_factory=dict)

    noun: ClassVar[str] = "replicas"

    def __post_init__(self) -> None:
        read_shares(self.shares)
        _check_processes(self)
        for name in self.ddp:
            if name in _DDP:
                continue
            why = "it is not supported"
            if name in _DECIDED:
                why = f"spread decides it: {_DECIDED[name]}"
            raise SpreadError(f"ddp= does not take {name!r}: {why}. It takes {', '.join(_DDP)}")

    def refuse(self, asked: Asked) -> None:
        """Raise SpreadError for an argument of `spread` that this plan cannot follow: none."""


@dataclass(frozen=True)
class Shards:
    """A part of every parameter on each rank of a process group, by PyTorch's `fully_shard`.

    ::

        replicas=1   rank 0  1  2  3      each has a quarter of every parameter
        replicas=2   rank 0  1            each has a half of every parameter
                          2  3            the same halves again

    On a single device the module is called unchanged.

    Attributes:
        blocks: the classes of the layers that are gathered one at a time; None finds them.
        mixed_precision: the dtypes in which parameters are gathered and gradients are reduced.
        offload: keep shards and the optimizer's state on the CPU while they are not used.
        replicas: the number of sets of neighbouring ranks. Each set has all parameters, divided
            among its ranks; with one set for each node, parameters are gathered within nodes only.
            Gradients are averaged over all ranks.
        reshard_after_forward: whether a block's gathered parameters are freed after its forward;
            or the number of ranks over which they are then sharded; None frees the parameters of
            all blocks but the root.
    """

    blocks: Sequence[type[torch.nn.Module]] | None = None
    mixed_precision: MixedPrecisionPolicy | None = None
    offload: bool = False
    replicas: int = 1
    reshard_after_forward: bool | int | None = None

    noun: ClassVar[str] = "shards"
    local_statistics: ClassVar[bool] = False

    def refuse(self, asked: Asked) -> None:
        """Raise SpreadError for an argument of `spread` that this plan cannot follow."""
        refuse_with_accumulate(asked.accumulate, "Shards", "use plan=Replicas()")
        if self.mixed_precision is not None and asked.precision is not None:
            raise SpreadError(
                "precision= computes under autocast and keeps the dtype of parameters, but "
                "Shards(mixed_precision=…) casts the parameters; use one of the two"
            )


@dataclass(frozen=True)
class Pipeline:
    """Neighbouring layers on each device or rank, for a module that is too large for one.

    Batches pass in micro-batches, so that the devices compute concurrently.

    Attributes:
        micro_batches: into how many parts each batch is cut; ``"auto"``: the fastest number by
            counted work if `example` shows the batch, else four for each device, and one if a
            layer needs the whole batch, such as batch normalization. With one, one device
            computes at a time.
        schedule: the order in which micro-batches are computed: ``"gpipe"``, ``"1f1b"``,
            ``"interleaved"``, ``"zero-bubble"``, ``"zero-bubble-h2"``, ``"zero-bubble-few"`` or
            ``"zero-bubble-v"``. All but gpipe need `loss`. ``"auto"``: zero-bubble-few over ranks
            on CPUs, and 1f1b elsewhere, if possible; else gpipe.
        checkpoint: whether activations are computed again in the backward pass instead of kept:
            ``"never"``, for each micro-batch but the last (``"except_last"``), or ``"always"``.
        split_points: the names of submodules at which a stage may begin; by default all places
            that few values cross.
        example: (args, kwargs) of a call. Arguments that are None, bools or strings decide which
            code of the module runs; by default they have their defaults.
        replicas: in a process group, the number of pipelines, each of neighbouring ranks, that
            share the global batch. Gradients are those of all samples.

    Raises:
        SpreadError: an attribute has none of its values.
    """

    micro_batches: int | str = "auto"
    schedule: str = "auto"
    checkpoint: str = "never"
    split_points: Sequence[str] | None = None
    example: Call | None = None
    replicas: int = 1

    noun: ClassVar[str] = "pipeline"
    local_statistics: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check_micro_batches(self.micro_batches)
        check_schedule_name(self.schedule)
        if self.checkpoint not in _CHECKPOINT:
            valid = ", ".join(map(repr, _CHECKPOINT))
            raise SpreadError(f"checkpoint={self.checkpoint!r} is unknown; use one of {valid}")
        _check_split_points(self.split_points)
        check_example(self.example)

    def refuse(self, asked: Asked) -> None:
        """Raise SpreadError for an argument of `spread` that this plan cannot follow: none."""

    def recomputes(self, micro_batch: int, micro_batches: int) -> bool:
        """Return whether a micro-batch computes its activations again in the backward pass."""
        if self.checkpoint == "except_last":
            return micro_batch < micro_batches - 1
        return self.checkpoint == "always"


@dataclass(frozen=True)
class Exact:
    """Each global batch in a fixed number of logical shards, and their sums in a fixed order.

    Results have the same bits on any number of ranks that divides the number of shards. Needs
    `loss`, and a loader from ``anyrig.distribute(loader, model)``. `explain` says what it costs.

    Attributes:
        shards: the number of logical shards, such as 12.
        within: where the parameters are: the whole module on each rank, or `Shards`.

    Raises:
        SpreadError: `shards` is not a positive integer, or `within` has other attributes than
            `Shards.blocks` and `Shards.reshard_after_forward`.
    """

    shards: int
    within: Replicas | Shards = field(default_factory=Replicas)

    local_statistics: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_logical_shards(self.shards, 1)
        plain: Replicas | Shards = Replicas()
        if isinstance(self.within, Shards):
            plain = Shards(
                blocks=self.within.blocks, reshard_after_forward=self.within.reshard_after_forward
            )
        if self.within != plain:
            raise SpreadError(
                "Exact adds up gradients in the dtype of parameters, on their device and over all "
                f"ranks, with even shares: within={self.within} asks for something else. Use "
                'Replicas() or Shards(blocks=…), and precision="bfloat16" for autocast'
            )

    @property
    def noun(self) -> str:
        """What each rank has."""
        return self.within.noun

    def refuse(self, asked: Asked) -> None:
        """Raise SpreadError for an argument of `spread` that this plan cannot follow."""
        require_exact_loss(asked.loss)
        if asked.accumulate:
            raise SpreadError("Exact cannot be combined with accumulate=; leave it out")
        if asked.precision in ("float16", torch.float16):
            raise SpreadError(
                "Exact computes gradients before a GradScaler scales the loss, so float16 "
                'gradients would vanish; use precision="bfloat16"'
            )


Plan = Replicas | Shards | Pipeline | Exact


def with_example(plan: Plan, example: Call | None) -> Plan:
    """Return the plan with `example`, if it is a pipeline without an example of its own."""
    if isinstance(plan, Pipeline) and plan.example is None:
        return replace(plan, example=example)
    return plan


def require_plan(given: object) -> None:
    """Raise SpreadError unless `given` is a plan or None."""
    if given is not None and not isinstance(given, Plan):
        name = given.__name__ if isinstance(given, type) else repr(given)
        raise SpreadError(
            f"plan={name} is not a plan; use Replicas(), Shards(), Pipeline() or Exact(12), "
            "or leave it out"
        )


def _check_processes(plan: Replicas) -> None:
    """Raise SpreadError unless replicas in processes are possible as planned."""
    number = plan.processes
    if number is False:
        return
    if not isinstance(number, int) or number < 1:
        raise SpreadError(
            f"processes={number!r} is not a number of processes; use 2 or more, or True for one "
            "for each device"
        )
    if plan.sync_batch_norm:
        raise SpreadError(
            "sync_batch_norm=True exchanges statistics within layers, which replicas in processes "
            "do not; leave out processes=, or put the layers in eval()"
        )
    if plan.shares in ("speed", "memory"):
        raise SpreadError(
            f"shares={plan.shares!r} measures devices, but processes share one CPU; use "
            'shares="even" or one number for each process'
        )


def _check_micro_batches(given: object) -> None:
    is_number = isinstance(given, int) and not isinstance(given, bool) and given >= 1
    if given != "auto" and not is_number:
        raise SpreadError(
            f'micro_batches={given!r} is neither "auto" nor a positive integer; with '
            "several devices, use at least twice as many micro-batches as devices"
        )


def _check_split_points(given: object) -> None:
    if given is None:
        return
    if not isinstance(given, list | tuple) or not all(isinstance(name, str) for name in given):
        raise SpreadError(
            f"split_points={given!r} is not a list of submodules' names; write "
            'split_points=["layers.4", "layers.8"], or ["3"] for part 3 of a Sequential'
        )


def check_example(given: object) -> None:
    """Raise SpreadError unless `given` is None or the arguments of a call."""
    if given is None:
        return
    if isinstance(given, tuple) and len(given) == 2:
        args, kwargs = given
        if isinstance(args, list | tuple) and isinstance(kwargs, Mapping):
            return
    raise SpreadError(
        f"example= was given {_describe(given)}, but takes the arguments of a call: a tuple of the "
        "positional arguments and a dict of the others, as in example=((x,), {}) or "
        '((x,), {"mask": None})'
    )


def _describe(given: object) -> str:
    if isinstance(given, torch.Tensor):
        return f"a tensor of shape {tuple(given.shape)}"
    if isinstance(given, list | tuple):
        return f"a {type(given).__name__} of {', '.join(map(_describe, given)) or 'nothing'}"
    return f"{type(given).__name__}"
