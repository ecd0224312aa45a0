from types import SimpleNamespace

import pytest
import torch
from torch import nn

from anyrig.errors import MixedDevicesError
from anyrig.transfer import device_of

CPU, META = torch.device("cpu"), torch.device("meta")


@pytest.mark.parametrize(
    "value",
    [
        torch.zeros(2),
        nn.Linear(2, 2),
        nn.BatchNorm1d(3, affine=False),
        nn.Sequential(nn.BatchNorm1d(3, affine=False)),  # with buffers in a submodule only
        {"x": [torch.zeros(2), ("a", None)], "model": nn.Linear(2, 2)},
        nn.utils.rnn.pack_sequence([torch.zeros(2)]),
    ],
)
def test_one_device(value: object) -> None:
    assert device_of(value) == CPU


def test_a_module_on_another_device() -> None:
    assert device_of(nn.Linear(2, 2, device="meta")) == META


def test_parts_on_several_devices_are_named() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta"))
    with pytest.raises(MixedDevicesError) as error:
        device_of({"models": [model]})
    assert str(error.value) == (
        "this dict lies on 2 devices: ['models'][0].0.weight on cpu, "
        "['models'][0].1.weight on meta. Move all of it to one with move(value, device)"
    )


@pytest.mark.parametrize("value", [3, "text", [], nn.ReLU(), {"a": None}])
def test_nothing_that_lies_anywhere(value: object) -> None:
    with pytest.raises(MixedDevicesError, match="has no device"):
        device_of(value)


def test_an_object_lies_where_it_says() -> None:
    assert device_of(SimpleNamespace(device=META)) == META
    assert device_of([SimpleNamespace(device="meta"), torch.zeros(1)]) == CPU
    words = r"this list lies on 2 devices: \[0\] on meta, \[1\]\.running_mean on cpu\. Move all"
    with pytest.raises(MixedDevicesError, match=words):
        device_of([torch.zeros(1, device="meta"), nn.BatchNorm1d(2, affine=False)])
