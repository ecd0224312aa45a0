"""Rehearsals of plans that exist as a formula only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from anyrig.planning.arrangement import PIPELINE, REPLICAS, VARIABLE, Arrangement
from anyrig.planning.arrangements import arrangements_on
from anyrig.planning.kept_results import KeptResults
from anyrig.planning.rehearsed_value import Order
from anyrig.planning.workload import Workload
from anyrig.rehearsal.comparison.rehearsed_apart import RehearsedApart
from anyrig.virtual.rig import VirtualRig

GIB = 2**30
SAMPLES = 64
OUT_OF_MEMORY = {"kind": "OutOfMemoryError", "text": "CUDA out of memory", "line": "train.py:3"}


@dataclass(frozen=True)
class Cluster(KeptResults):
    """Results of a program, from what it takes in total on the rig and what each plan adds.

    Attributes:
        busy_seconds: for how long all GPUs compute.
        state_gib: parameters, gradients and optimizer's state.
        activations_gib: the activations of the whole batch.
        collective_seconds: what ranks that hold the same parameters add.
        launch_seconds: what each micro-batch adds.
        obeys: whether the program follows the plan.
        unused: the GPUs that pipelines in one process leave out.
    """

    busy_seconds: float = 0.1
    state_gib: float = 4.0
    activations_gib: float = 8.0
    collective_seconds: float = 0.02
    launch_seconds: float = 0.001
    obeys: bool = True
    unused: tuple[int, ...] = ()

    def seconds_of(self, one: Arrangement, gpus: int) -> float:
        workload = Workload(self.busy_seconds)
        least = workload.least_seconds(one, gpus)
        assert least is not None
        if one.plan == PIPELINE:
            added = self.collective_seconds if one.replicas > 1 else 0.0
            return least + one.micro_batches * self.launch_seconds + added
        return least + self.collective_seconds * (1 if one.processes > 1 else 3)

    def bytes_of(self, one: Arrangement, gpus: int) -> float:
        workload = Workload(0.0, self.state_gib * GIB, self.activations_gib * GIB)
        return workload.least_bytes(one, gpus)

    def find(self, order: Order) -> RehearsedApart | None:
        rig = VirtualRig.parse(order.rig)
        if order.are_alike:
            rig = rig.repeated(order.processes // len(rig.devices))
        gpus = len(rig.devices)
        text = order.environment[VARIABLE] if self.obeys else "Replicas()"
        processes = order.processes if self.obeys else 1
        one = next(
            each
            for each in arrangements_on(rig)
            if (str(each), each.processes) == (text, processes)
        )
        limit = rig.devices[0].memory_bytes
        needed, seconds = self.bytes_of(one, gpus), self.seconds_of(one, gpus)
        count = 1 if order.are_alike else gpus
        kinds = {"parameters": self.state_gib * GIB, "activations": 0.0}
        if one.plan != REPLICAS:
            kinds["parameters"] /= gpus / one.replicas
        if one.plan != PIPELINE:
            kinds["activations"] = self.activations_gib * GIB / gpus
        busy = self.busy_seconds / seconds
        peak = {"total_bytes": needed, "context_bytes": 0, "collective_bytes": 0}
        device = {
            "capacity_bytes": limit,
            "peak": {**peak, "headroom_bytes": limit - needed},
            "busy_share": busy,
            "waiting_share": 1 - busy,
            "idle_share": 0.0,
        }
        samples = SAMPLES
        if one.plan == PIPELINE and order.processes > 1:  # all ranks of a pipeline load the same
            samples *= gpus // one.replicas
        unused = self.unused if one.plan == PIPELINE and order.processes == 1 else ()
        facts: dict[str, Any] = {
            "devices": [
                {**device, "index": index} for index in range(count) if index not in unused
            ],
            "memory": [{"kinds_at_peak": kinds}] * count,
            "steps": [{"samples": samples}],
            "typical_step": {"seconds": seconds, "samples_per_second": samples / seconds},
            "assumed_ranks": {"ranks": gpus, "nodes": 1} if order.are_alike else None,
            "error": OUT_OF_MEMORY if needed > limit else None,
        }
        return RehearsedApart(1 if needed > limit else 0, facts, None)
