"""Private names of PyTorch that `anyrig.hazards` uses."""

from __future__ import annotations

from ..name import PrivateName

_VALUES = "gradients and values that change behind the program"

HAZARDS = (
    PrivateName("torch.Tensor._base", _VALUES),
    PrivateName("torch.Tensor._version", _VALUES),
    PrivateName("torch._C._current_autograd_node", _VALUES),
    PrivateName("torch._ops.OpOverload._schema", _VALUES),
    PrivateName("torch.autograd.gradcheck._gradcheck_helper", "programs that gradcheck"),
    PrivateName("torch.nn.Module._parameters", "parameters that are replaced"),
    PrivateName("torch.utils._python_dispatch.TorchDispatchMode", "values that are overwritten"),
)
