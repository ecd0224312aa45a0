"""Every error anyrig raises on purpose, in one tree.

::

    AnyrigError
    ├── DeviceTextError      (ValueError)    a text such as "cuda:9" names no device here
    ├── NoDeviceError        (RuntimeError)  no device meets what was asked of it
    ├── DeviceFailedError    (RuntimeError)  a device is there, but answers with an error
    ├── MixedDevicesError    (ValueError)    one object lives on several devices, or on none
    ├── LeaseDirectoryError  (OSError)       the directory of device leases cannot be used
    ├── TooLateError         (RuntimeError)  CUDA has started; what was asked can no longer change
    ├── UnknownHardwareError (ValueError)    no facts are known for a card of this name
    ├── MoveError            (TypeError)     a value cannot be moved to a device
    ├── BatchError           (ValueError)    a batch cannot be split, or its parts cannot be joined
    ├── SharesError          (ValueError)    these are no shares of these devices
    ├── SpreadError          (RuntimeError)  a module cannot be spread over devices as it is
    ├── ShardSaveError       (TypeError)     one rank would save its shard as if it were the whole
    ├── ReplicaWaitError     (RuntimeError)  replicas timed out waiting for each other
    ├── BuildError           (RuntimeError)  the C++ part of virtual GPUs cannot be built or loaded
    │   └── NoCompilerError                  a compiler, or Python's headers, are not installed
    ├── VirtualRigError      (RuntimeError)  a virtual rig cannot be put into this process
    ├── LaunchError          (RuntimeError)  a group of ranks cannot be started, or did not meet
    │   └── GroupOptionError                 a flag of `anyrig run` has a value it cannot have
    ├── RankWaitError        (TimeoutError)  other ranks did not come in time
    ├── OtherRankError       (RuntimeError)  another rank failed in what this one waited for
    ├── RankMismatchError    (ValueError)    what the ranks gave does not fit together
    ├── MemoryTrackingError  (RuntimeError)  memory cannot be tracked or reported in this way
    └── ValueNeededError     (RuntimeError)  a shape-only rehearsal came to where a value decides

Each message says what happened, the values seen, and what to do next. Each class also derives
from the built-in exception that code written against plain PyTorch would catch.
"""

from __future__ import annotations

from collections.abc import Sequence


class AnyrigError(Exception):
    """Base of every error anyrig raises on purpose.

    Attributes:
        exit_code: the status with which a command ends when this error reaches its top level.
    """

    exit_code = 1


class DeviceTextError(AnyrigError, ValueError):
    """A text does not name devices of this machine."""

    exit_code = 2


class NoDeviceError(AnyrigError, RuntimeError):
    """No device, or too few, meet what was asked."""


class DeviceFailedError(AnyrigError, RuntimeError):
    """A device exists but answers with an error."""


class MixedDevicesError(AnyrigError, ValueError):
    """An object has no single device."""


class LeaseDirectoryError(AnyrigError, OSError):
    """The directory in which leases on devices are kept cannot be used."""


class TooLateError(AnyrigError, RuntimeError):
    """CUDA has started, and what was asked can no longer take effect."""


class UnknownHardwareError(AnyrigError, ValueError):
    """No facts are known for a card of this name."""

    exit_code = 2


class MoveError(AnyrigError, TypeError):
    """A value cannot be moved to a device.

    Attributes:
        failure: which container could not be built again, and why; empty if that is not the cause.
    """

    failure = ""


class BatchError(AnyrigError, ValueError):
    """A batch cannot be split over devices, or what came of its parts cannot be joined."""


class SharesError(AnyrigError, ValueError):
    """What was given does not say how much of a batch each device gets."""


class SpreadError(AnyrigError, RuntimeError):
    """A module cannot be spread over devices as it is, or as was asked."""


class ShardSaveError(AnyrigError, TypeError):
    """One rank would save its shard of a model as if it were the whole model."""


class ReplicaWaitError(AnyrigError, RuntimeError):
    """Replicas that exchange something within a step timed out waiting for one of them."""


class BuildError(AnyrigError, RuntimeError):
    """The C++ part of virtual GPUs cannot be built or loaded."""


class NoCompilerError(BuildError):
    """A C++ compiler, or the headers of this Python, are not installed."""


class VirtualRigError(AnyrigError, RuntimeError):
    """A virtual rig cannot be put into this process."""


class ValueNeededError(AnyrigError, RuntimeError):
    """A shape-only rehearsal came to an operator whose result depends on values."""


class MemoryTrackingError(AnyrigError, RuntimeError):
    """Memory cannot be tracked, or a footprint cannot be written, in the way that was asked."""


class LaunchError(AnyrigError, RuntimeError):
    """A group of ranks cannot be started as asked, or its nodes did not meet."""


class GroupOptionError(LaunchError):
    """A flag that says which ranks a group has, or where they meet, has no possible value."""

    exit_code = 2


class RankWaitError(AnyrigError, TimeoutError):
    """Other ranks did not come in time to where this one waited for them.

    Attributes:
        ranks: those that did not come; empty if the store in which ranks meet is lost.
    """

    def __init__(self, message: str = "", ranks: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.ranks = tuple(ranks)


class OtherRankError(AnyrigError, RuntimeError):
    """Another rank failed in what this one waited for."""


class RankMismatchError(AnyrigError, ValueError):
    """What the ranks gave to one call does not fit together."""
