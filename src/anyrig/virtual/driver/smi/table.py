"""The table that `nvidia-smi` prints when it is asked nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import pynvml

from .card import Card, cuda_version

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


def table(cards: Sequence[Card]) -> str:
    """Return the cards and, below them, the processes that hold their memory."""
    driver = pynvml.nvmlSystemGetDriverVersion()
    lines = [
        time.strftime("%a %b %e %H:%M:%S %Y") + "       ",
        _WHOLE,
        f"| NVIDIA-SMI {driver:<23}Driver Version: {driver:<15}CUDA Version: {cuda_version():<9}|",
        _HEADS,
        *(line for card in cards for line in (*_card(card), _COLUMNS)),
        "",
        _PROCESSES,
        *(list(_processes(cards)) or [f"|  {'No running processes found':<87}|"]),
        _WHOLE,
    ]
    return "\n".join(lines) + "\n"


def _card(card: Card) -> Iterator[str]:
    on = ("Off", "On")
    persistence, display = on[card.ask("PersistenceMode")], on[card.ask("DisplayActive")]
    yield (
        f"| {card.index:>3}  {card.name:<27.27} {persistence:>5}  "
        f"|   {card.bus_id} {display:>3} |{'N/A':>21} |"
    )
    fan = card.ask("FanSpeed")
    celsius = card.ask("Temperature", pynvml.NVML_TEMPERATURE_GPU)
    use, memory = card.ask("UtilizationRates").gpu, card.memory
    yield (
        f"| {'N/A' if fan is None else f'{fan}%':>3}  {f'{celsius}C':>4}    "
        f"{'P' + str(card.ask('PerformanceState')):<3} {_watts(card, 'PowerUsage'):>14} / "
        f"{_watts(card, 'EnforcedPowerLimit'):>5} |{_mebibytes(memory.used):>11} / "
        f"{_mebibytes(memory.total):>9} |{f'{use}%':>8} {'Default':>12} |"
    )
    yield f"|{'':41}|{'':24}|{'N/A':>21} |"


def _processes(cards: Sequence[Card]) -> Iterator[str]:
    for card in cards:
        for holder in card.holders():
            name = holder.name if len(holder.name) <= 35 else f"...{holder.name[-32:]}"
            yield (
                f"|{card.index:>5}   N/A  N/A{holder.pid:>16}      C   {name:<35} "
                f"{_mebibytes(holder.used_bytes):>10} |"
            )


def _watts(card: Card, question: str) -> str:
    milliwatts = card.ask(question)
    return "N/A" if milliwatts is None else f"{milliwatts // 1000}W"


def _mebibytes(value: int) -> str:
    return f"{value // 2**20}MiB"
