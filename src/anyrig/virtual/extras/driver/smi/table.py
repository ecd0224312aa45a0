"""The table that `nvidia-smi` prints without arguments."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import pynvml

from .gpu import Gpu, cuda_version

_WHOLE = "+" + "-" * 89 + "+"
_DOUBLE = "|" + "=" * 89 + "|"
_COLUMNS = "+" + "+".join("-" * width for width in (41, 24, 22)) + "+"
_HEADS = f"""\
{_COLUMNS}
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|                                         |                        |               MIG M. |
{_COLUMNS.replace("-", "=").replace("+", "|", 1)[:-1]}|"""
_PROCESSES = f"""\
{_WHOLE}
| Processes:                                                                              |
|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |
|        ID   ID                                                               Usage      |
{_DOUBLE}"""


def table(gpus: Sequence[Gpu]) -> str:
    """Return the table of `gpus` and, below it, the processes that hold their memory."""
    driver = pynvml.nvmlSystemGetDriverVersion()
    lines = [
        time.strftime("%a %b %e %H:%M:%S %Y") + "       ",
        _WHOLE,
        f"| NVIDIA-SMI {driver:<23}Driver Version: {driver:<15}CUDA Version: {cuda_version():<9}|",
        _HEADS,
        *(line for gpu in gpus for line in (*_rows(gpu), _COLUMNS)),
        "",
        _PROCESSES,
        *(list(_processes(gpus)) or [f"|  {'No running processes found':<87}|"]),
        _WHOLE,
    ]
    return "\n".join(lines) + "\n"


def _rows(gpu: Gpu) -> Iterator[str]:
    on = ("Off", "On")
    persistence, display = on[gpu.read("PersistenceMode")], on[gpu.read("DisplayActive")]
    yield (
        f"| {gpu.index:>3}  {gpu.name:<27.27} {persistence:>5}  "
        f"|   {gpu.bus_id} {display:>3} |{'N/A':>21} |"
    )
    fan = gpu.read("FanSpeed")
    celsius = gpu.read("Temperature", pynvml.NVML_TEMPERATURE_GPU)
    use, memory = gpu.read("UtilizationRates").gpu, gpu.memory
    yield (
        f"| {'N/A' if fan is None else f'{fan}%':>3}  {f'{celsius}C':>4}    "
        f"{'P' + str(gpu.read('PerformanceState')):<3} {_watts(gpu, 'PowerUsage'):>14} / "
        f"{_watts(gpu, 'EnforcedPowerLimit'):>5} |{_mebibytes(memory.used):>11} / "
        f"{_mebibytes(memory.total):>9} |{f'{use}%':>8} {'Default':>12} |"
    )
    yield f"|{'':41}|{'':24}|{'N/A':>21} |"


def _processes(gpus: Sequence[Gpu]) -> Iterator[str]:
    for gpu in gpus:
        for holder in gpu.holders():
            name = holder.name if len(holder.name) <= 35 else f"...{holder.name[-32:]}"
            yield (
                f"|{gpu.index:>5}   N/A  N/A{holder.pid:>16}      C   {name:<35} "
                f"{_mebibytes(holder.used_bytes):>10} |"
            )


def _watts(gpu: Gpu, quantity: str) -> str:
    milliwatts = gpu.read(quantity)
    return "N/A" if milliwatts is None else f"{milliwatts // 1000}W"


def _mebibytes(value: int) -> str:
    return f"{value // 2**20}MiB"
