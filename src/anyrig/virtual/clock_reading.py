"""`clock()`, which reads the virtual clock of this process."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import VirtualRigError
from .build import load_extension
from .installed import installation


@dataclass(frozen=True)
class StreamReading:
    """The times of one stream, in seconds of virtual time.

    Attributes:
        stream_id: the id of the stream; 0 for the default stream.
        done_seconds: when all work launched on the stream ends.
        busy_seconds: the total time in which the stream was busy.
    """

    stream_id: int
    done_seconds: float
    busy_seconds: float


@dataclass(frozen=True)
class KernelSeconds:
    """The seconds that the kernels of one device took, by what they computed.

    The seconds do not include the time by which concurrent collectives slow kernels down.

    Attributes:
        memory: the seconds of memory-bound kernels, such as additions and norms.
        products: the seconds of matrix products.
        convolutions: the seconds of convolutions, forward and backward.
        attention: the seconds of fused attention.
    """

    memory: float
    products: float
    convolutions: float
    attention: float


@dataclass(frozen=True)
class DeviceReading:
    """The work of this process on one device so far.

    Copies and collectives can overlap kernels, so the seconds need not add up to the elapsed time.

    Attributes:
        index: the CUDA index of the device.
        compute_seconds: the time in which kernels ran.
        kernels: the time of the kernels, by what they computed.
        copy_seconds: the time in which copies to or from the device ran, including host copies.
        collective_seconds: the time in which the device took part in collectives.
        flops: multiplications and additions of matrix products, convolutions and attention, as
            `torch.utils.flop_counter` counts them.
        memory_bytes: the bytes of GPU memory that kernels read and wrote.
        streams: the streams that have been used, ordered by id.
    """

    index: int
    compute_seconds: float
    kernels: KernelSeconds
    copy_seconds: float
    collective_seconds: float
    flops: float
    memory_bytes: float
    streams: tuple[StreamReading, ...]

    @property
    def done_seconds(self) -> float:
        """When all work launched on the device ends, in seconds of virtual time."""
        return max((stream.done_seconds for stream in self.streams), default=0.0)


@dataclass(frozen=True)
class ClockReading:
    """A reading of this process's virtual clock.

    Times are seconds since the clock started. The clock is never reset, so subtract two readings to
    measure a duration.

    Attributes:
        host_seconds: the time that the program has reached. Launches and waits advance it; Python's
            own run time does not count.
        devices: the devices that the process sees, in the order of their CUDA indices.
    """

    host_seconds: float
    devices: tuple[DeviceReading, ...]

    @property
    def done_seconds(self) -> float:
        """When the host and all devices are done, in seconds of virtual time."""
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
    """Return a reading of this process's virtual clock. Reading does not advance the clock.

    Raises:
        VirtualRigError: no virtual rig is installed, or the rig has no clock.
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
            KernelSeconds(*kernels),
            copy_seconds,
            collective_seconds,
            flops,
            memory_bytes,
            tuple(StreamReading(*stream) for stream in streams),
        )
        for index, (
            compute_seconds,
            kernels,
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
