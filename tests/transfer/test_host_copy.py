from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from anyrig.errors import MoveError
from anyrig.transfer import HostCopy, copy_to_host


@pytest.mark.parametrize("beside", [False, True])
def test_on_the_cpu_it_is_a_snapshot_made_at_once(beside: bool) -> None:
    x = torch.ones(3)
    copy = copy_to_host({"x": x, "again": [x], "step": 7}, beside=beside)
    x.zero_()
    assert isinstance(copy, HostCopy)
    assert copy.done()
    assert repr(copy) == "HostCopy(done)"
    assert copy.value["x"].tolist() == [1, 1, 1]
    assert copy.value["again"][0] is copy.value["x"]
    assert copy.value["step"] == 7
    assert copy.value is copy.value
    assert copy.wait(timeout_seconds=0) is copy.value


def test_waiting_with_a_limit_asks_at_most_a_millisecond_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("anyrig.transfer.host_copy.time.sleep", pauses.append)

    class Event:
        def query(self) -> bool:
            return len(pauses) >= 12

    copy: HostCopy[str] = HostCopy("copied", (Event(),))  # type: ignore[arg-type]
    assert not copy.done()
    assert copy.wait(timeout_seconds=60) == "copied"
    assert copy.done()
    assert pauses == [min(2**k * 1e-5, 1e-3) for k in range(12)]


def test_it_is_detached() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    value = copy_to_host([weight, weight * 2]).value
    assert [type(tensor) for tensor in value] == [torch.Tensor, torch.Tensor]
    assert not any(tensor.requires_grad for tensor in value)


def test_a_state_dict() -> None:
    module = torch.nn.BatchNorm1d(2)
    state = copy_to_host(module.state_dict()).value
    module.weight.data.zero_()
    assert state["weight"].tolist() == [1, 1]
    assert state._metadata == module.state_dict()._metadata
    module.load_state_dict(state)


def test_a_state_without_tensors_passes() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    assert copy_to_host(optimizer.state_dict()).value == optimizer.state_dict()


def test_modules_are_refused_since_they_would_move() -> None:
    module = torch.nn.Linear(1, 1)
    with pytest.raises(MoveError, match=r"cannot copy Linear at \['model'\] .* state_dict\(\)"):
        copy_to_host({"model": module})


def test_tensors_out_of_reach_are_refused() -> None:
    with pytest.raises(MoveError, match="SimpleNamespace at the value"):
        copy_to_host(SimpleNamespace(x=torch.ones(1)))


def test_the_handle_cannot_be_used_as_its_value() -> None:
    copy = copy_to_host([torch.ones(1)])
    with pytest.raises(TypeError):
        copy[0]  # type: ignore[index]
    with pytest.raises(TypeError):
        iter(copy)  # type: ignore[call-overload]
