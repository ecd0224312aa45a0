"""Quantised weights are saved and loaded with their bits, or refused by name before anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing._internal.two_tensor import TwoTensor

import anyrig
from anyrig.checkpoint.any_model import read_any_model
from anyrig.checkpoint.integrity import check_integrity
from anyrig.errors import CheckpointError, KeyMismatchError
from quantised_layers import LAYERS, CodedLinear, ScaledTensor, make_quantised, quantise

INPUTS = torch.arange(16.0).reshape(2, 8) / 16


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("used", [(), ("saved",), ("own",), ("saved", "own")], ids=str)
def test_a_model_computes_as_the_saved_one(
    kind: str, used: tuple[str, ...], tmp_path: Path
) -> None:
    saved, own = make_quantised(kind, 0), make_quantised(kind, 1)
    for name, model in (("saved", saved), ("own", own)):
        if name in used:
            model(INPUTS)
    optimizer = torch.optim.SGD(own.parameters(), 0.1)
    places = [id(each) for each in own.parameters()]
    folder = anyrig.save(tmp_path / "a", model=saved)
    assert check_integrity(folder)[0].findings == ()
    assert not torch.equal(own(INPUTS), saved(INPUTS))
    anyrig.load(tmp_path / "a", model=own)
    assert torch.equal(own(INPUTS), saved(INPUTS))
    assert [id(each) for each in own.parameters()] == places
    assert optimizer.param_groups[0]["params"][-1] is own[4].bias


def test_nested_and_tied_wrappers(tmp_path: Path) -> None:
    def make(seed: int) -> nn.Sequential:
        model = make_quantised("wrapper", seed)
        scaled = [quantise(nn.Linear(8, 8)).weight.data for _ in range(2)]
        model[0].weight = nn.Parameter(TwoTensor(*scaled), requires_grad=False)
        model[2].weight = model[0].weight
        return model

    saved, own = make(0), make(1)
    folder = anyrig.save(tmp_path / "a", model=saved)
    names = read_any_model(folder).tensors
    assert {"0.weight.a.codes", "0.weight.b.scale", "2.weight.a.codes"} <= names.keys()
    anyrig.load(folder, model=own)
    assert torch.equal(own[0].weight.b.codes, saved[0].weight.b.codes)
    assert torch.equal(own[0].weight.a.scale, saved[0].weight.a.scale)
    assert own[2].weight is own[0].weight


def other_context(model: nn.Sequential) -> None:
    quantise(model[0], "columns")


def plain(model: nn.Sequential) -> None:
    model[0] = nn.Linear(8, 8)


def other_class(model: nn.Sequential) -> None:
    model[0].weight = nn.Parameter(TwoTensor(torch.ones(8, 8), torch.ones(8, 8)))


def other_inner_type(model: nn.Sequential) -> None:
    scaled = model[0].weight
    model[0].weight = nn.Parameter(
        ScaledTensor(scaled.codes.to(torch.int16), scaled.scale), requires_grad=False
    )


@pytest.mark.parametrize("change", [other_context, plain, other_class, other_inner_type])
@pytest.mark.parametrize("of", ["saved", "own"])
def test_another_kind_of_weight_is_refused_by_name(change: Any, of: str, tmp_path: Path) -> None:
    saved, own = make_quantised("wrapper", 0), make_quantised("wrapper", 1)
    torch.manual_seed(2)
    own[0] = quantise(nn.Linear(8, 8)) if change is not other_context else own[0]
    if change is other_context:
        torch.manual_seed(0)
        saved[0], own[0] = nn.Linear(8, 8), nn.Linear(8, 8)
        quantise(saved[0]), quantise(own[0])
        model = saved if of == "saved" else own
        model[0] = quantise(nn.Linear(8, 8), "columns")
    else:
        change(saved if of == "saved" else own)
    anyrig.save(tmp_path / "a", model=saved)
    before = own(INPUTS)
    with pytest.raises(KeyMismatchError, match=r"0\.weight"):
        anyrig.load(tmp_path / "a", model=own, convert_dtypes=True)
    after = own(INPUTS)
    assert torch.equal(getattr(before, "a", before), getattr(after, "a", after))


def test_a_state_of_another_form_is_refused_by_name(tmp_path: Path) -> None:
    saved = nn.Sequential(CodedLinear(8, 8, blocksize=4))
    own = nn.Sequential(CodedLinear(4, 16, blocksize=4))
    own[0].bias = nn.Parameter(torch.zeros(8))
    anyrig.save(tmp_path / "a", model=saved)
    with pytest.raises(KeyMismatchError, match=r"has 0\.weight quantised with shape .*\[8, 8\]"):
        anyrig.load(tmp_path / "a", model=own)


def test_a_refused_load_leaves_the_state_beside_the_codes(tmp_path: Path) -> None:
    saved, own = make_quantised("codes with a state", 0), make_quantised("codes with a state", 1)

    def fail(*_: Any) -> None:
        raise RuntimeError("no")

    anyrig.save(tmp_path / "a", model=saved)
    own[4].register_load_state_dict_post_hook(fail)
    before = own(INPUTS)
    with pytest.raises(CheckpointError, match="Nothing was loaded"):
        anyrig.load(tmp_path / "a", model=own)
    assert torch.equal(own(INPUTS), before)


class HasWrappers(torch.optim.SGD):
    """Keeps a state of a class that cannot be made again, as torchao's 8-bit optimizers do."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        super().step()
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["exp_avg"] = TwoTensor(torch.ones_like(p), torch.ones_like(p))


class Empty(Tensor):
    """A tensor without memory that cannot be taken apart."""

    @staticmethod
    def __new__(cls) -> Empty:
        made: Empty = Tensor._make_wrapper_subclass(cls, (2, 2))
        return made

    @classmethod
    def __torch_dispatch__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return args[0]


def test_what_cannot_be_saved_is_refused_by_name_before_anything(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    optimizer = HasWrappers(model.parameters(), 0.1)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    with pytest.raises(CheckpointError, match=r"the optimizer's exp_avg of weight is a \S+TwoTens"):
        anyrig.save(tmp_path / "a", model=model, optimizer=optimizer)
    with pytest.raises(CheckpointError, match=r"the value state\['x'\] cannot be saved"):
        anyrig.save(tmp_path / "a", state={"x": TwoTensor(torch.ones(2), torch.ones(2))})
    model.register_buffer("odd", Empty())
    with pytest.raises(
        CheckpointError, match=r"the tensor odd of the model is a \S+Empty, which h"
    ):
        anyrig.save(tmp_path / "a", model=model)
    assert not (tmp_path / "a").exists() or not [*(tmp_path / "a").iterdir()]


class TestBitsandbytes:
    @pytest.mark.parametrize("bits", [4, 8])
    def test_layers_are_saved_and_loaded(self, bits: int, tmp_path: Path) -> None:
        library: Any = pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")

        def make(seed: int) -> nn.Module:
            torch.manual_seed(seed)
            layer = library.nn.Linear8bitLt(64, 64, has_fp16_weights=False)
            if bits == 4:
                layer = library.nn.Linear4bit(64, 64, quant_type="nf4")
            return nn.Sequential(layer, nn.ReLU()).to("cpu")

        saved, own = make(0), make(1)
        inputs = torch.randn(4, 64)
        own(inputs)
        anyrig.save(tmp_path / "a", model=saved)
        anyrig.load(tmp_path / "a", model=own)
        assert torch.equal(saved(inputs), own(inputs))


def test_weights_of_torchao_are_saved_and_loaded(tmp_path: Path) -> None:
    library: Any = pytest.importorskip("torchao.quantization", reason="torchao is not installed")

    def make(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
        library.quantize_(model, library.Int8WeightOnlyConfig())
        return model

    saved, own = make(0), make(1)
    inputs = torch.randn(4, 64)
    anyrig.save(tmp_path / "a", model=saved)
    anyrig.load(tmp_path / "a", model=own)
    assert torch.equal(saved(inputs), own(inputs))


@pytest.mark.parametrize("fact", ["shape", "dtype", "blocksize", "quant_type", "nested"])
def test_codes_of_another_kind_are_refused(fact: str, tmp_path: Path) -> None:
    anyrig.save(tmp_path, model=nn.Sequential(CodedLinear(8, 8)))
    other: Any = nn.Sequential(CodedLinear(8, 8))
    before = other[0].weight.quant_state
    setattr(before, fact, "another")
    with pytest.raises(
        KeyMismatchError, match=rf"has 0\.weight quantised with {fact} \S.* instead"
    ):
        anyrig.load(tmp_path, model=other)
    assert other[0].weight.quant_state is before
