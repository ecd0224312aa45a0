"""The table of names and shapes that do not fit, with the nearest names and wrappers' prefixes."""

from pathlib import Path

import pytest
from torch import nn

import anyrig
from anyrig.checkpoint.mismatch import check_names, find_mismatch, nearest_name
from anyrig.checkpoint.wrapper_prefix import (
    WrapperPrefixes,
    find_prefixes,
    remove_wrappers,
    shared_prefix,
)
from anyrig.errors import CheckpointError, KeyMismatchError

MODEL = {"conv.weight": (8, 3, 3, 3), "conv.bias": (8,), "fc.weight": (10, 512), "scale": ()}


def test_equal_names_and_shapes_are_no_mismatch() -> None:
    assert find_mismatch(MODEL, dict(reversed(MODEL.items()))) is None
    check_names(MODEL, {name: list(shape) for name, shape in MODEL.items()}, "a.pt")


def test_the_table_names_missing_unexpected_and_wrongly_shaped_tensors() -> None:
    found = {
        "conv.weight": (8, 1, 3, 3),
        "conv.bias": (8,),
        "fc1.weight": (10, 512),
        "epoch": (),
        "scale": (),
    }
    with pytest.raises(KeyMismatchError) as caught:
        check_names(MODEL, found, "runs/a.pt")
    assert isinstance(caught.value, CheckpointError)
    assert str(caught.value).splitlines() == [
        "runs/a.pt does not fit the model.",
        "The model has 4 tensors; in the file 1 missing, 2 unexpected, 1 of another shape.",
        "missing     fc.weight    expected 10x512                  nearest: fc1.weight (10x512)",
        "unexpected  fc1.weight   found 10x512                     nearest: fc.weight (10x512)",
        "unexpected  epoch        found scalar",
        "shape       conv.weight  expected 8x3x3x3, found 8x1x3x3",
    ]


@pytest.mark.parametrize(
    ("prefix", "wrapper"),
    [
        ("module.", "DataParallel or DistributedDataParallel"),
        ("_orig_mod.", "torch.compile"),
        ("module._orig_mod.", "DataParallel or DistributedDataParallel and torch.compile"),
        ("_fsdp_wrapped_module.", "FullyShardedDataParallel"),
        ("_checkpoint_wrapped_module.", "checkpoint_wrapper"),
        ("module.net.", "another module"),
        ("model.", "a module that holds the model, such as a LightningModule"),
        ("net.encoder.", "another module"),
    ],
)
def test_a_prefix_of_every_name_is_recognised_and_explained(prefix: str, wrapper: str) -> None:
    longer = {prefix + name: shape for name, shape in MODEL.items()}
    of_file = find_mismatch(MODEL, longer)
    assert of_file is not None
    assert f"Every name of the file begins with '{prefix}', which {wrapper} adds" in str(of_file)
    of_model = find_mismatch(longer, MODEL)
    assert of_model is not None
    assert f"Every name of the model begins with '{prefix}'" in str(of_model)


def test_a_prefix_that_explains_nothing_is_not_named() -> None:
    assert find_prefixes(["a", "b"], ["module.c", "module.d"]) is None
    assert find_prefixes(["a", "b"], ["module.a", "other.b"]) is None
    assert find_prefixes(["module.a", "b"], ["module.a", "b", "c"]) is None
    assert find_prefixes([], ["module.a"]) is None


def test_one_missing_name_does_not_hide_the_prefix() -> None:
    found = [f"module.{name}" for name in MODEL if name != "scale"]
    assert find_prefixes(MODEL, found) == WrapperPrefixes("module.", "")


@pytest.mark.parametrize(
    ("count", "shared", "is_found"), [(4, 2, True), (4, 1, False), (5, 2, False)]
)
def test_a_prefix_explains_at_least_half_of_the_names(
    count: int, shared: int, is_found: bool
) -> None:
    expected = [f"w{number}" for number in range(count)]
    found = [f"module.{name}" for name in expected[:shared]] + ["module.other"]
    assert find_prefixes(expected, found) == (WrapperPrefixes("module.", "") if is_found else None)


def test_both_sides_can_have_a_prefix() -> None:
    model = {f"module.{name}": shape for name, shape in MODEL.items()}
    found = {f"model.{name}": shape for name, shape in MODEL.items()}
    assert find_prefixes(model, found) == WrapperPrefixes("model.", "module.")
    assert str(find_mismatch(model, found)).splitlines()[1:4] == [
        "Every name of the file begins with 'model.', which a module that holds the model, such as "
        "a LightningModule adds.",
        "Every name of the model begins with 'module.', which DataParallel or "
        "DistributedDataParallel adds.",
        "Without them, the names agree.",
    ]


def test_wrappers_of_pytorch_are_removed_wherever_they_stand() -> None:
    model = nn.DataParallel(nn.Sequential(nn.Linear(2, 2)))
    assert shared_prefix(model.state_dict().keys()) == "module."
    assert shared_prefix(["module.module.a"]) == "module.module."
    assert shared_prefix(["module.a", "b"]) == shared_prefix([]) == ""
    assert remove_wrappers("_orig_mod.layers.0._checkpoint_wrapped_module.w") == "layers.0.w"
    assert remove_wrappers("a._fsdp_wrapped_module.w") == "a.w"
    assert remove_wrappers("module.w") == "module.w"


def test_a_model_of_another_architecture_gives_a_short_table() -> None:
    expected = {f"encoder.{index}.attention.query.weight": (8, 8) for index in range(3000)}
    found = {f"blocks.{index}.attention.key.weight": (8, 8) for index in range(3000)}
    text = str(find_mismatch(expected, found))
    assert len(text.splitlines()) == 1 + 2 * 13
    assert "missing     … and 2988 more" in text


def test_twelve_rows_of_each_kind_are_shown() -> None:
    for count, more in ((12, False), (13, True)):
        expected = {f"{number}" * 3: (number,) for number in range(count)}
        text = str(find_mismatch(expected, {}))
        assert len(text.splitlines()) == 1 + 12 + more
        assert ("missing  … and 1 more" in text) == more
        assert text.startswith(f"The model has {count} tensors; in the file {count} missing.")
    assert str(find_mismatch({"a": (1,)}, {})).startswith("The model has 1 tensor; in the file 1")


def test_nothing_alike_has_no_nearest_name() -> None:
    assert nearest_name("conv.weight", ["epoch", "zzz"]) is None
    assert nearest_name("conv.weight", []) is None


def test_load_shows_the_table(tmp_path: Path) -> None:
    anyrig.save(tmp_path, model=nn.ModuleDict({"body": nn.Linear(3, 2), "head": nn.Linear(2, 4)}))
    other = nn.ModuleDict({"body": nn.Linear(3, 2), "heads": nn.Linear(2, 4)})
    with pytest.raises(KeyMismatchError, match=r"Nothing was loaded\n") as caught:
        anyrig.load(tmp_path, model=other)
    assert sorted(str(caught.value).splitlines()[1:]) == [
        "The model has 4 tensors; in the file 2 missing, 2 unexpected.",
        "missing     heads.bias    expected 4    nearest: head.bias (4)",
        "missing     heads.weight  expected 4x2  nearest: head.weight (4x2)",
        "unexpected  head.bias     found 4       nearest: heads.bias (4)",
        "unexpected  head.weight   found 4x2     nearest: heads.weight (4x2)",
    ]
    other = nn.ModuleDict({"body": nn.Linear(3, 9), "head": nn.Linear(2, 4)})
    with pytest.raises(KeyMismatchError, match=r"\nshape  body\.weight  expected 9x3, found 2x3"):
        anyrig.load(tmp_path, model=other)
