"""The stages of `torch.distributed.pipelining`, whose ranks hold different parts of a model."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.fx import GraphModule

from ..errors import VerificationError
from ..observe.census import find_instances
from .records import RankRecord


def stages_of_parameters() -> dict[int, int]:
    """Return the index of the stage of each parameter of this process, by the parameter's id."""
    return {
        id(parameter): stage.stage_index
        for stage in _stages()
        for parameter in stage.submod.parameters()
    }


def stage_of(module: nn.Module) -> int | None:
    """Return the index of the stage whose module this is; None if it belongs to no stage."""
    return next((stage.stage_index for stage in _stages() if stage.submod is module), None)


def traced_stages() -> list[nn.Module]:
    """Return the modules of stages that `pipeline()` has traced.

    Unlike the modules around them, they name parameters as the whole model does.
    """
    return [stage.submod for stage in _stages() if isinstance(stage.submod, GraphModule)]


def ranks_of_first_stage(rig: Sequence[RankRecord]) -> Sequence[RankRecord]:
    """Return the ranks that have the first stage of a pipeline; all ranks if there are no others.

    Only these ranks get samples of the data, so only their samples can be compared.
    """
    if not any(facts.stage for record in rig for facts in record.parameters.values()):
        return rig
    return [
        record for record in rig if any(facts.stage == 0 for facts in record.parameters.values())
    ]


def check_names_of_stages(rig: Sequence[RankRecord]) -> None:
    """Check that no two stages of a pipeline have parameters of the same name.

    Raises:
        VerificationError: two stages share a name, which then matches two parameters.
    """
    stages: dict[str, set[int]] = {}
    for record in rig:
        for name, facts in record.parameters.items():
            if facts.stage is not None:
                stages.setdefault(name, set()).add(facts.stage)
    for name, several in stages.items():
        if len(several) > 1:
            first, second, *_ = sorted(several)
            raise VerificationError(
                f"the pipeline stages {first} and {second} both have a parameter {name}, so it is "
                "not known which parameter of the whole model each is; give each layer the name "
                'that it has in the whole model, such as nn.ModuleDict({"4": layer}) in place of '
                "a list that begins at zero in each stage"
            )


def _stages() -> list[Any]:
    pipelining = sys.modules.get("torch.distributed.pipelining")
    if pipelining is None:
        return []
    kind = pipelining.PipelineStage.__base__  # also of the stages that `pipeline()` makes
    return find_instances(kind)[kind]
