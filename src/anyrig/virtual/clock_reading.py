"""What the virtual clock says: `clock()`."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import VirtualRigError
from .build import load_extension
from .installed import installation


@dataclass(frozen=True)
class StreamReading:
    """One stream of a device.

    Attributes:
        stream_id: 0 for the default stream.
        done_seconds: the moment at which all that was launched on it is done.
        busy_seconds: how long it has worked.
    """

    stream_id: int
    done_seconds: float
    busy_seconds: float


@dataclass(frozen=True)
class DeviceReading:
    """One device, as this process has used it until now.

    Copies and collectives may run beside kernels, so the seconds need not add up to those that
    have passed.

    Attributes:
        index: its CUDA index.
        compute_seconds: in which kernels ran.
        copy_seconds: in which copies to or from it ran, to and from the host included.
        collective_seconds: in which it took part in collectives.
        flops: multiplications and additions of matrix products, convolutions and attention, as
            `torch.utils.flop_counter` counts them.
        memory_bytes: what kernels read and wrote of the card's memory.
        streams: the streams that have been used, by their id.
    """

    index: int
    compute_seconds: float
    copy_seconds: float
    collective_seconds: float
    flops: float
    memory_bytes: float
    streams: tuple[StreamReading, ...]

    @property
    def done_seconds(self) -> float:
        """The moment at which all that was launched on the device is done."""
        return max((stream.done_seconds for stream in self.streams), default=0.0)


@dataclass(frozen=True)
class ClockReading:
    """The virtual clock of this process. Moments are seconds since its start; it is never reset,
    so take the difference of two readings.

    Attributes:
        host_seconds: the moment that the program has reached. It moves on with launches and waits;
            what Python itself takes is not counted.
        devices: each device that the process sees, by its CUDA index.
    """

    host_seconds: float
    devices: tuple[DeviceReading, ...]

    @property
    def done_seconds(self) -> float:
        """The moment at which the host and all devices are done."""
        return max([self.host_seconds, *(device.done_seconds for device in self.devices)])

    def __str__(self) -> str:
        lines = [
            f"host at {_milliseconds(self.host_seconds)}",
            *(
                f"cuda:{device.index} done at {_milliseconds(device.done_seconds)}: "
                f"computed {_milliseconds(device.compute_seconds)}, "
                f"copied {_milliseconds(device.copy_seconds)}, "
                f"collectives {_milliseconds(device.collective_seconds)}, "
                f"{device.flops / 1e12:.3f} TFLOP, {device.memory_bytes / 1e9:.3f} GB"
                for device in self.devices
            ),
        ]
        return "\n".join(lines)


def clock() -> ClockReading:
    """Read the virtual clock of this process, without moving it.

    Raises:
        VirtualRigError: no virtual rig is installed, or one without a clock.
    """
    installed = installation()
    if installed is None or not installed.clock:
        missing = "has no virtual rig" if installed is None else "has a virtual rig without a clock"
        raise VirtualRigError(
            f"this process {missing}; call anyrig.virtual.install(rig) with clock=True first"
        )
    core = load_extension()
    devices = tuple(
        DeviceReading(
            index,
            compute_seconds,
            copy_seconds,
            collective_seconds,
            flops,
            memory_bytes,
            tuple(StreamReading(*stream) for stream in streams),
        )
        for index, (
            compute_seconds,
            copy_seconds,
            collective_seconds,
            flops,
            memory_bytes,
            streams,
        ) in enumerate(core.read_clock())
    )
    return ClockReading(core.host_seconds(), devices)


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.3f} ms"
