"""A forged values.pt: verify finds it, or load takes it or refuses it with nothing changed.

The manifest has the hashes of the forged file: an attacker who can write one can write the other.
"""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import anyrig
from anyrig.checkpoint.digest import hash_file
from anyrig.checkpoint.integrity import check_integrity
from anyrig.checkpoint.manifest import MANIFEST_NAME, FileFact, encode_manifest, read_manifest
from anyrig.checkpoint.values_file import (
    decode_text,
    decode_values,
    encode_as_text,
    encode_values,
)
from anyrig.errors import CheckpointDamagedError, CheckpointError

CASES = 80
JUNK: list[Any] = [
    *(None, 5, -1, 2.5, "x", [], {}, [1], [[]], {"a": 1}, {1: 2}, True, (1, 2), float("nan")),
    *({"params": []}, torch.ones(3), torch.ones(2, 2, dtype=torch.int8)),
    torch.eye(3).to_sparse(),
]
_MISSING = object()


def make_objects() -> dict[str, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    model.register_buffer("odd", torch.ones(2, dtype=torch.complex128))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = anyrig.save(tmp_path_factory.mktemp("series"), step=1, note=[1], **make_objects())
    return folder, decode_values(folder / "values.pt")


def forge(folder: Path, values: dict[str, Any]) -> Path:
    path = folder / "values.pt"
    path.write_bytes(encode_values(values))
    manifest = read_manifest(folder)
    fact = FileFact(path.stat().st_size, hash_file(path))
    content = encode_manifest(replace(manifest, files={**manifest.files, path.name: fact}))
    (folder / MANIFEST_NAME).write_bytes(content)
    return folder


def changed(values: dict[str, Any], place: tuple[Any, ...], new: Any) -> dict[str, Any]:
    values = copy.deepcopy(values)
    inner: Any = values
    for key in place[:-1]:
        inner = inner[key]
    if new is _MISSING:
        del inner[place[-1]]
    else:
        inner[place[-1]] = new
    return values


def places_in(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if place:
        yield place
    inner: Any = value.keys() if isinstance(value, dict) else ()
    for key in range(len(value)) if isinstance(value, list) else inner:
        yield from places_in(value[key], (*place, key))


def test_no_forged_value_ends_in_a_raw_error_or_a_half_load(
    saved: tuple[Path, dict[str, Any]],
) -> None:
    folder, values = saved
    places = [*places_in(values)]
    cases = [(place, junk) for place in places for junk in [*JUNK, _MISSING]]
    choice = random.Random(0)
    refused = 0
    for place, junk in choice.sample(cases, CASES):
        forge(folder, changed(values, place, junk))
        findings = check_integrity(folder)[0].findings
        objects = make_objects()
        before = {name: value.clone() for name, value in objects["model"].state_dict().items()}
        try:
            anyrig.load(folder, verify=False, **objects)
        except CheckpointError:
            refused += 1
            state = objects["model"].state_dict()
            assert all(torch.equal(state[name], before[name]) for name in before), place
        else:
            assert place[0] in ("given", "random") or not findings, (place, findings)
    assert refused > CASES / 3


FORM = {
    "no modules": (("modules",), _MISSING, "modules is a NoneType, not a dict"),
    "modules in a list": (("modules",), [1], "modules is a list, not a dict"),
    "a parameter's parts": (
        ("optimizers", "", "tensors", "0.weight"),
        "exp_avg",
        r"\['tensors'\]\['0.weight'\] is a str, not a list",
    ),
    "a lost part": (
        ("optimizers", "", "tensors", "0.weight"),
        ["exp_avg"],
        "only the optimizer's file has a tensor '0.weight.exp_avg_sq'",
    ),
    "an added part": (
        ("optimizers", "", "tensors", "0.weight"),
        ["exp_avg", "exp_avg_sq", "step", "more"],
        "only its values name a tensor '0.weight.more'",
    ),
    "a group without parameters": (
        ("optimizers", "", "groups", 0, "params"),
        [],
        "has a state of '.*', which is in none of its groups",
    ),
    "a value that is a tensor": (
        ("modules", "model", "0.weight"),
        3,
        "has a value '0.weight', which is a tensor, too",
    ),
    "a step of another save": (("given", "step"), 7, "has the step 7, and the manifest 1"),
    "a step that is a text": (
        ("given", "step"),
        "x",
        r"given\['step'\] is 'x', not a whole number",
    ),
    "a step below 0": (("given", "step"), -1, r"given\['step'\] is -1, not a whole number"),
    "a step that is a truth": (("given", "step"), True, r"given\['step'\] is True, not a whole"),
    "states in a list": (("states",), [], "states is a list, not a dict"),
    "a name that is a number": (("states", 5), 1, "states has the key 5, which is not a string"),
    "a module's values in a list": (("modules", "model"), [], r"modules\['model'\] is a list"),
    "nothing given": (("given",), None, "given is a NoneType, not a dict"),
    "a random state that is a number": (
        ("random", 0, "state"),
        5,
        r"random\[0\]\['state'\] is a int, not a string",
    ),
    "random numbers in a dict": (("random",), {}, "random is a dict, not a list"),
    "groups in a dict": (("optimizers", "", "groups"), {}, r"\['groups'\] is a dict, not a list"),
    "a parameter that is a number": (
        ("optimizers", "", "groups", 0, "params", 0),
        5,
        r"\['params'\]\[0\] is a int, not a string",
    ),
    "a parameter's values in a list": (
        ("optimizers", "", "values", "0.weight"),
        [],
        r"\['values'\]\['0.weight'\] is a list, not a dict",
    ),
    "a class that is a number": (
        ("optimizers", "", "class"),
        5,
        r"\['class'\] is a int, not a string",
    ),
    "a type that is a number": (
        ("optimizers", "", "dtypes", "0.weight"),
        5,
        r"\['dtypes'\]\['0.weight'\] is a int, not a string",
    ),
    "shards that are numbers": (
        ("optimizers", "", "in_shards", "0.weight"),
        [5],
        r"\['in_shards'\]\['0.weight'\]\[0\] is a int, not a string",
    ),
    "random numbers of more ranks": (("random",), [], "number of ranks 0, and the manifest 1"),
    "a text for a random state": (
        ("random", 0, "state"),
        "?!",
        "cannot be read|would run code",
    ),
}


@pytest.mark.parametrize("kind", FORM)
def test_verify_finds_what_load_could_not_use(
    kind: str, saved: tuple[Path, dict[str, Any]]
) -> None:
    folder, values = saved
    place, new, message = FORM[kind]
    forge(folder, changed(values, place, new))
    (finding, *_) = check_integrity(folder)[0].findings
    assert re.search(message, str(finding)), str(finding)


@pytest.mark.parametrize("part", ["python", "torch", "numpy", "devices"])
def test_altered_random_numbers_change_nothing(
    part: str, saved: tuple[Path, dict[str, Any]]
) -> None:
    folder, values = saved
    numbers = decode_text(values["random"][0]["state"], folder)
    numbers[part] = ["MT19937", [1, 2], 0, 0, 0.0] if part == "numpy" else [torch.ones(3)]
    text = encode_as_text(numbers)
    forge(folder, changed(values, ("random", 0, "state"), text))
    assert "random numbers were altered" in str(check_integrity(folder)[0].findings[0])
    objects, state = make_objects(), torch.get_rng_state()
    objects["model"][0].weight.data.zero_()
    python = random.getstate()
    with pytest.raises(CheckpointDamagedError, match="random numbers were altered"):
        anyrig.load(folder, verify=False, **objects)
    assert not objects["model"][0].weight.any()
    assert torch.equal(torch.get_rng_state(), state)
    assert random.getstate() == python
