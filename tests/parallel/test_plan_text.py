"""`ANYRIG_PLAN`: a plan as text, read without evaluating anything."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import anyrig
from anyrig.errors import SpreadError
from anyrig.parallel.plan_text import PRECISION_VARIABLE, VARIABLE, plan_of_environment, read_plan
from anyrig.parallel.plans import Exact, Pipeline, Plan, Replicas, Shards


@pytest.mark.parametrize(
    ("text", "plan"),
    [
        ("Replicas()", Replicas()),
        (" Replicas(shares=[3, 1.5]) ", Replicas(shares=[3, 1.5])),
        ("Shards(replicas=2, reshard_after_forward=False)", Shards(None, None, False, 2, False)),
        ("Pipeline(micro_batches=8, schedule='1f1b')", Pipeline(8, "1f1b")),
        ('Pipeline(split_points=["a.1", "b"])', Pipeline(split_points=["a.1", "b"])),
        ("Exact(shards=12, within=Shards())", Exact(12, Shards())),
    ],
)
def test_plans_are_calls_with_literals(text: str, plan: Plan) -> None:
    assert read_plan(text) == plan
    assert plan_of_environment({VARIABLE: text}) == (plan, f"ANYRIG_PLAN is {text.strip()}; ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Replica()", r"'Replica\(\)' is not a plan; write one as in Pipeline\(micro_batches=8\)"),
        ("Replicas", "'Replicas' is not a plan"),
        ("Shards(", r"'Shards\(' is not a plan"),
        ("anyrig.Shards()", r"'anyrig.Shards\(\)' is not a plan"),
        ("Pipeline(8)", "takes its values by name only"),
        ("Pipeline(**{'micro_batches': 8})", r"\*\* is not valid"),
        ("Pipeline(micro_batches=print(1))", r"'print\(1\)' is not a plan"),
        ("Pipeline(micro_batches=1 + n)", r"'1 \+ n' is not a number, a string, a list or a plan"),
        ("Pipeline(micro=8)", "does not take these values: .*micro"),
        ("Pipeline(micro_batches=0)", "micro_batches=0 is neither"),
        ("Replicas(shares='half')", "half"),
        ("(" * 900, "is not a plan"),
        ("Shards(" + " " * 1000 + ")", "at most 1000 characters, not 1,008"),
        ("Shards(replicas='\0')", "is not a plan"),
    ],
)
def test_other_texts_are_refused_with_what_to_write(text: str, message: str) -> None:
    with pytest.raises(SpreadError, match=message) as raised:
        plan_of_environment({VARIABLE: text})
    assert str(raised.value).startswith("the environment variable ANYRIG_PLAN is ")
    assert str(raised.value).endswith("; correct or unset it")


def test_spread_reads_the_variable_unless_it_is_given_a_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(VARIABLE, "Pipeline(micro_batches=2)")
    layout = anyrig.explain(anyrig.spread(nn.Linear(2, 2), "cpu"))
    assert layout.plan == Pipeline(2)
    assert layout.reason.startswith("ANYRIG_PLAN is Pipeline(micro_batches=2); ")
    given = anyrig.explain(anyrig.spread(nn.Linear(2, 2), "cpu", Replicas()))
    assert given.plan == Replicas()
    assert "ANYRIG_PLAN" not in given.reason
    monkeypatch.setenv(VARIABLE, " ")
    assert anyrig.explain(anyrig.spread(nn.Linear(2, 2), "cpu")).plan == Replicas()
    monkeypatch.setenv(VARIABLE, "Exact(shards=2)")
    with pytest.raises(SpreadError, match="loss"):
        anyrig.spread(nn.Linear(2, 2), "cpu")


@pytest.mark.gpus(2)
def test_the_plan_of_the_variable_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "Pipeline(micro_batches=2)")
    model = anyrig.spread(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), loss=nn.MSELoss())
    x = torch.ones(4, 4, device="cuda:0")
    model(x, target=x).backward()
    assert anyrig.explain(model).way == "pipeline"


class ReadsArguments(nn.Sequential):
    """Calls its layers as models of transformers do, whose arguments have defaults."""

    def forward(self, x: torch.Tensor | None = None) -> torch.Tensor:
        if x is None:
            raise ValueError("x is missing")
        return super().forward(x.view(x.shape[0], -1))


@pytest.mark.gpus(2)
def test_an_example_is_for_the_plan_of_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    def model() -> nn.Module:
        return ReadsArguments(nn.Linear(4, 4), nn.Linear(4, 4))

    x = torch.ones(4, 4)
    monkeypatch.setenv(VARIABLE, 'Pipeline(micro_batches=2, schedule="gpipe")')
    with pytest.raises(SpreadError, match=r"give spread those of a call, example=\(args, kwargs\)"):
        anyrig.spread(model())
    spread = anyrig.spread(model(), example=((), {"x": x}))
    layout = anyrig.explain(spread)
    assert (layout.way, len(layout.devices)) == ("pipeline", 2)
    assert spread(x=x).shape == (4, 4)
    own = Pipeline(2, "gpipe", example=((x,), {}))
    given = anyrig.explain(anyrig.spread(model(), plan=own, example=((), {"x": x}))).plan
    assert isinstance(given, Pipeline)
    assert given.example is own.example
    monkeypatch.setenv(VARIABLE, "Replicas()")
    assert anyrig.explain(anyrig.spread(model(), example=((x,), {}))).plan == Replicas()
    with pytest.raises(SpreadError, match="example= was given a tensor of shape"):
        anyrig.spread(model(), example=x)  # type: ignore[arg-type]


def test_spread_reads_the_precision_unless_it_is_given_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(PRECISION_VARIABLE, "bfloat16")
    model = anyrig.spread(nn.Linear(4, 4), "cpu")
    assert model(torch.ones(4, 4)).dtype == torch.bfloat16
    assert "ANYRIG_PRECISION is bfloat16; " in anyrig.explain(model).reason
    given = anyrig.spread(nn.Linear(4, 4), "cpu", precision="float16")
    assert given(torch.ones(4, 4)).dtype == torch.float16
    assert "ANYRIG_PRECISION" not in anyrig.explain(given).reason
    monkeypatch.setenv(PRECISION_VARIABLE, "int8")
    with pytest.raises(SpreadError, match="ANYRIG_PRECISION is 'int8'; set it to bfloat16 or"):
        anyrig.spread(nn.Linear(4, 4), "cpu")
