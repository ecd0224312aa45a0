"""Every error anyrig raises on purpose, in one tree.

::

    AnyrigError
    ├── DeviceTextError      (ValueError)    a string such as "cuda:9" names no device here
    ├── NoDeviceError        (RuntimeError)  too few devices, or none, meet the request
    ├── DeviceFailedError    (RuntimeError)  a device is there, but answers with an error
    ├── MixedDevicesError    (ValueError)    one object lives on several devices, or on none
    ├── LeaseDirectoryError  (OSError)       the directory of device leases cannot be used
    ├── TooLateError         (RuntimeError)  CUDA has started; the setting has no effect any more
    ├── UnknownHardwareError (ValueError)    no facts are known for a GPU of this name
    ├── MoveError            (TypeError)     a value cannot be moved to a device
    ├── BatchError           (ValueError)    a batch cannot be split, or its parts cannot be joined
    ├── SharesError          (ValueError)    the shares do not fit the devices
    ├── SpreadError          (RuntimeError)  a module cannot be spread over devices as it is
    ├── ShardSaveError       (TypeError)     one rank would save its shard as the whole model
    ├── ReplicaWaitError     (RuntimeError)  replicas timed out waiting for each other
    ├── BuildError           (RuntimeError)  the C++ part of virtual GPUs cannot be built or loaded
    │   └── NoCompilerError                  a compiler or Python's headers are missing
    ├── VirtualRigError      (RuntimeError)  a virtual rig cannot be installed here
    ├── LaunchError          (RuntimeError)  a group of ranks cannot be started, or did not meet
    │   └── GroupOptionError                 a flag of `anyrig run` has an invalid value
    ├── RankWaitError        (TimeoutError)  timed out waiting for other ranks
    ├── OtherRankError       (RuntimeError)  another rank failed while this rank waited for it
    ├── RankMismatchError    (ValueError)    the ranks passed inconsistent arguments
    ├── SourceError          (ValueError)    source code cannot be checked as requested
    ├── HazardError          (RuntimeError)  a watched program made a mistake that raises no error
    ├── MemoryTrackingError  (RuntimeError)  memory cannot be tracked or reported in this way
    ├── RemedyError          (RuntimeError)  remedies cannot be rehearsed
    ├── ReportError          (RuntimeError)  a rehearsal cannot be reported in this way
    ├── PlanningError        (RuntimeError)  what fits a rig cannot be found as requested
    ├── VerificationError    (RuntimeError)  two runs of a program cannot be compared
    ├── CheckpointError      (RuntimeError)  a checkpoint cannot be saved or loaded
    │   ├── CheckpointDamagedError           a file of a checkpoint is missing, cut off or altered
    │   ├── KeyMismatchError                 a checkpoint's tensors do not match the model's
    │   └── UnsafeFileError                  a file would run code, or leads out of its folder
    └── ValueNeededError     (RuntimeError)  an operator of a shape-only rehearsal needs values

Each message says what happened, the values seen, and what to do next. Each class also derives
from the built-in exception that code written against plain PyTorch would catch.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


class AnyrigError(Exception):
    """Base of every error anyrig raises on purpose.

    Attributes:
        exit_code: the status with which a command ends when this error reaches its top level.
    """

    exit_code = 1


class DeviceTextError(AnyrigError, ValueError):
    """A string does not name devices of this node."""

    exit_code = 2


class NoDeviceError(AnyrigError, RuntimeError):
    """Too few devices, or none, meet the request."""


class DeviceFailedError(AnyrigError, RuntimeError):
    """A device exists but answers with an error."""


class MixedDevicesError(AnyrigError, ValueError):
    """An object has no single device."""


class LeaseDirectoryError(AnyrigError, OSError):
    """The directory in which leases on devices are kept cannot be used."""


class TooLateError(AnyrigError, RuntimeError):
    """CUDA has started, so the requested setting can no longer take effect."""


class UnknownHardwareError(AnyrigError, ValueError):
    """No facts are known for a GPU of this name."""

    exit_code = 2


class MoveError(AnyrigError, TypeError):
    """A value cannot be moved to a device.

    Attributes:
        failure: which container could not be rebuilt, and why; empty for other causes.
    """

    failure = ""


class BatchError(AnyrigError, ValueError):
    """A batch cannot be split over devices, or the results of its parts cannot be joined."""


class SharesError(AnyrigError, ValueError):
    """The given shares do not define how much of a batch each device gets."""


class SpreadError(AnyrigError, RuntimeError):
    """A module cannot be spread over devices as it is, or as requested."""


class ShardSaveError(AnyrigError, TypeError):
    """One rank would save its shard of a model as the whole model."""


class ReplicaWaitError(AnyrigError, RuntimeError):
    """Replicas that exchange data within a step timed out waiting for another replica."""


class BuildError(AnyrigError, RuntimeError):
    """The C++ part of virtual GPUs cannot be built or loaded."""


class NoCompilerError(BuildError):
    """A C++ compiler or the headers of this Python are not installed."""


class VirtualRigError(AnyrigError, RuntimeError):
    """A virtual rig cannot be installed in this process."""


class ValueNeededError(AnyrigError, RuntimeError):
    """A shape-only rehearsal reached an operator that needs values."""


class SourceError(AnyrigError, ValueError):
    """Source code cannot be checked as requested: an unknown rule, path or setting."""

    exit_code = 2


class HazardError(AnyrigError, RuntimeError):
    """A watched program made a mistake that raises no error, or hazards cannot be watched."""


class MemoryTrackingError(AnyrigError, RuntimeError):
    """Memory cannot be tracked, or a footprint cannot be written, as requested."""


class RemedyError(AnyrigError, RuntimeError):
    """The remedies for a program that ran out of memory cannot be rehearsed."""


class ReportError(AnyrigError, RuntimeError):
    """The file or the prices for a rehearsal's report cannot be used."""


class PlanningError(AnyrigError, RuntimeError):
    """What fits a rig cannot be found as requested."""

    exit_code = 2


class VerificationError(AnyrigError, RuntimeError):
    """Two runs of a program, on a rig and on one device, cannot be compared."""

    exit_code = 2


class CheckpointError(AnyrigError, RuntimeError):
    """A checkpoint cannot be saved or loaded."""


class CheckpointDamagedError(CheckpointError):
    """A file of a checkpoint is missing, cut off or altered.

    Attributes:
        path: the file; None if that is unknown.
    """

    def __init__(self, message: str = "", path: Path | None = None) -> None:
        super().__init__(message)
        self.path = path


class KeyMismatchError(CheckpointError):
    """The tensors of a checkpoint do not match those of the model or the optimizer."""


class UnsafeFileError(CheckpointError):
    """A file cannot be read without running its code, or names a path outside its folder."""


class LaunchError(AnyrigError, RuntimeError):
    """A group of ranks cannot be started as requested, or its nodes did not meet."""


class GroupOptionError(LaunchError):
    """A flag for the ranks of a group, or for their rendezvous, has an invalid value."""

    exit_code = 2


class RankWaitError(AnyrigError, TimeoutError):
    """This rank timed out waiting for other ranks.

    Attributes:
        ranks: the missing ranks; empty if the connection to the store is lost.
    """

    def __init__(self, message: str = "", ranks: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.ranks = tuple(ranks)


class OtherRankError(AnyrigError, RuntimeError):
    """Another rank failed while this rank waited for it."""


class RankMismatchError(AnyrigError, ValueError):
    """The ranks passed inconsistent arguments to one call."""
