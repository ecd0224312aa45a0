"""Why cases of the product are refused, and which cases are known to fail."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from product_axes import BATCHES, DEVICES, PROCESSES, TRAININGS
from product_cases import UNEVEN_MEANS, Case


class Reason(NamedTuple):
    """A refusal that is expected: a pattern of its message, and the cases in which it may come."""

    pattern: str
    text: str
    holds: Callable[[Case], bool]


def _is_several(case: Case) -> bool:
    return DEVICES[case.devices] is not None and case.devices not in ("1", "pipeline")


def _in_ranks(case: Case) -> bool:
    return case.devices in ("ranks", "shards")


def _over_ranks(case: Case) -> bool:
    return DEVICES[case.devices] is None


def _in_pipeline(case: Case) -> bool:
    return case.devices.startswith("pipeline")


_NO_SAMPLE = ("one", "none", "nothing")

REASONS = (
    Reason(
        r"a Hidden that cannot be divided: it has a tensor .* nothing says which samples",
        "several devices in one process: an object of a custom class is not divided",
        lambda case: _is_several(case) and case.batch.startswith("own class"),
    ),
    Reason(
        r"a Hidden with a tensor on cpu in \.x, where the module on cuda:0 cannot use it",
        "one device: an object without `to` is not moved",
        lambda case: case.devices == "1" and case.batch.startswith("own class"),
    ),
    Reason(
        r"a Hidden with a tensor of shape .* nothing says how many samples it has",
        "ranks: nothing counts the samples of an object of a custom class",
        lambda case: _in_ranks(case) and case.batch == "own class",
    ),
    Reason(
        r"the gradients are computed in several processes, so create_graph=True has no graph",
        "processes: gradients of gradients",
        lambda case: case.devices in PROCESSES and case.training in ("penalty", "double backward"),
    ),
    Reason(
        r"(the forward keeps a tensor in Net\.kept|Net or its loss holds a tensor .* with a graph)",
        "processes: a forward that keeps a tensor in an attribute",
        lambda case: case.devices in PROCESSES and case.output.endswith("attribute"),
    ),
    Reason(
        r"holds a tensor with a gradient in an object that is not a container",
        "processes: an object of a custom class that has tensors with gradients",
        lambda case: case.devices in PROCESSES,
    ),
    Reason(
        r"a nested tensor requires gradients, which do not cross from one process to another",
        "processes: a nested tensor that requires gradients",
        lambda case: (
            case.devices in PROCESSES
            and case.batch == "nested tensor"
            and case.training in ("penalty", "double backward")
        ),
    ),
    Reason(
        r"arrived in another process, but cannot be read there",
        "processes: a nested tensor, or an object that does not survive pickling",
        lambda case: case.devices in PROCESSES and case.batch in ("nested tensor", "attrs"),
    ),
    Reason(
        r"a result of the model cannot be sent to another process: .*generator",
        "processes: a generator is not sent",
        lambda case: case.devices in PROCESSES and case.output == "generator",
    ),
    Reason(
        r"cannot gather the value: a generator yields its values later",
        "several devices in one process: a generator is not joined",
        lambda case: _is_several(case) and case.output == "generator",
    ),
    Reason(
        r"cannot gather the value: it is a (Hidden|function), and nothing says how",
        "several devices in one process: an object of a custom class is not joined",
        lambda case: _is_several(case) and case.output in ("own class", "closure"),
    ),
    Reason(
        r"this rank has no samples, and its arguments do not show what a sample is",
        "ranks: a rank without samples gets empty lists or nested tensors in the first step",
        lambda case: (
            _in_ranks(case)
            and case.batch in ("list of dicts", "nested tensor", "packed sequence")
            and case.rows in _NO_SAMPLE
        ),
    ),
    Reason(
        r"this rank has no samples, and the module returned a .* cannot be taken out",
        "shards: a rank without samples returns an object of a custom class",
        lambda case: case.devices == "shards" and case.rows in _NO_SAMPLE,
    ),
    Reason(
        r"^RankMismatchError: rank 0 came to the backward pass of .* while rank 1 came to",
        "shards: a rank without samples takes no part in the backward pass of a penalty",
        lambda case: (
            case.devices == "shards"
            and case.output in ("list", "tuple")
            and case.training == "penalty"
            and case.rows in _NO_SAMPLE
        ),
    ),
    Reason(
        r"which parameters have no gradient .*plan=Replicas\(ddp=dict\(find_unused_parameters=True",
        "ranks: a rank without samples has no gradients of gradients",
        lambda case: (
            case.devices == "ranks"
            and case.training in ("double backward", "penalty")
            and case.rows in _NO_SAMPLE
        ),
    ),
    Reason(
        r"in shards has not come through a tensor that the module returned",
        "shards: the loss is computed of what the module did not return",
        lambda case: case.devices == "shards",
    ),
    Reason(
        r"FSDP2 makes containers anew of what a module in shards gets and returns",
        "shards: FSDP2 rebuilds dicts of a custom class whose tensors require gradients",
        lambda case: case.devices == "shards" and case.batch == "mapping with batch_size",
    ),
    Reason(
        r"there are no stand-ins for a Entries, and FSDPNet does not compute an empty batch",
        "shards: the same, on a rank without samples",
        lambda case: case.devices == "shards" and case.batch == "mapping with batch_size",
    ),
    Reason(
        r"a nested tensor of \d+ parts that requires a gradient, in the strided",
        "ranks: a nested tensor of the strided layout requires a gradient",
        lambda case: (
            case.batch == "nested tensor"
            and _in_ranks(case)
            and case.training in ("penalty", "double backward")
        ),
    ),
    Reason(
        r"cannot be divided into stages: .* holds values of a call, and only tuples, lists, dicts",
        "pipelines: the output is an object whose tensors are not followed",
        lambda case: (
            _in_pipeline(case)
            and case.output in ("own class", "own class with cat", "set", "generator", "closure")
        ),
    ),
    Reason(
        r"cannot be divided into stages: forward changes the attribute 'kept'",
        "pipelines: the forward keeps a value in an attribute",
        lambda case: _in_pipeline(case) and "attribute" in case.output,
    ),
    Reason(
        r"cannot be divided into stages: an operation does not work on values that are not known",
        "pipelines: a packed sequence or a nested tensor cannot be recorded",
        lambda case: _in_pipeline(case) and case.batch in ("packed sequence", "nested tensor"),
    ),
    Reason(
        r"divided with an example of different shapes, dtypes or devices, on which its code dep",
        "pipelines: the code depends on values, or on the number of samples",
        lambda case: (
            _in_pipeline(case) and case.batch in ("strings beside a tensor", "list of dicts")
        ),
    ),
    Reason(
        r"an argument is a Hidden with a tensor on cpu in \.x, where the module on cuda:\d cannot",
        "pipelines: an object without `to` is not moved",
        lambda case: _in_pipeline(case) and case.batch.startswith("own class"),
    ),
    Reason(
        r"a Hidden that cannot be divided: it has a tensor .* nothing says which samples",
        "pipelines: an object of a custom class is not divided",
        lambda case: _in_pipeline(case) and case.batch.startswith("own class"),
    ),
    Reason(
        UNEVEN_MEANS,
        "pipelines: a mean over unevenly ignored targets is one term of the loss",
        lambda case: _in_pipeline(case) and case.training == "loss= over targets",
    ),
    Reason(
        r"uses a value that the module has computed and kept",
        "several devices in one process: a loss= reads an attribute of the module",
        lambda case: (
            _is_several(case)
            and case.output in ("attribute", "number in an attribute")
            and TRAININGS[case.training].loss is not None
        ),
    ),
    Reason(
        r"create_graph=True is impossible in a pipeline over ranks",
        "pipelines over ranks: gradients of gradients",
        lambda case: (
            case.devices == "pipeline over ranks"
            and case.training in ("penalty", "double backward")
        ),
    ),
    Reason(
        r"a tensor of shape .* that requires grad and is neither a parameter .* nor an argument",
        "pipelines over ranks: an input within an object requires gradients",
        lambda case: (
            case.devices == "pipeline over ranks"
            and case.training in ("penalty", "double backward")
        ),
    ),
    Reason(
        r"cannot move Hidden at .*: it holds a Tensor in \.x and has no method `to`",
        "pipelines over ranks: an object without `to` is not moved",
        lambda case: case.devices == "pipeline over ranks" and case.batch.startswith("own class"),
    ),
    Reason(
        r"ranks need the same samples: call anyrig.distribute\(loader, model\)",
        "pipelines over ranks: the loader was distributed without the model",
        lambda case: case.devices == "pipeline over ranks" and BATCHES[case.batch].from_loader,
    ),
    Reason(
        r"^RankMismatchError: rank \d waits at .* last reached a barrier at product_ranks"
        r"|^OtherRankError: rank \d waited for rank \d at values of stage",
        "the other rank has refused the step",
        _over_ranks,
    ),
)


class Fault(NamedTuple):
    """Cases that are not run because they fail in another way than they should."""

    text: str
    holds: Callable[[Case], bool]


FAULTS = (
    Fault(
        "shards: PyTorch's error, on a rank without samples, for a penalty on what the module did "
        "not return",
        lambda case: (
            case.devices == "shards"
            and case.rows in _NO_SAMPLE
            and "attribute" in case.output
            and case.training in ("penalty", "double backward")
        ),
    ),
    Fault(
        "shards: torch.autograd.grad with respect to parameters ends in PyTorch's error: the graph "
        "does not have the shards",
        lambda case: case.devices == "shards" and case.training == "autograd.grad",
    ),
)


def reason_of(case: Case, message: str) -> str | None:
    """Return the text of the reason for a refusal; None if none is listed."""
    for reason in REASONS:
        if reason.holds(case) and re.search(reason.pattern, message, re.DOTALL):
            return reason.text
    return None


def fault_of(case: Case) -> str | None:
    """Return what is known to fail in a case; None if nothing is."""
    return next((fault.text for fault in FAULTS if fault.holds(case)), None)
