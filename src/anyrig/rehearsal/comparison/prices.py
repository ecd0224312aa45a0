"""`Prices`: what an hour of each GPU costs, read from the user's file."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import AnyrigError, ReportError
from ...virtual.rig import VirtualRig

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_CURRENCY, _PER_HOUR = "currency", "per_hour"
_EXAMPLE = 'write for example:\ncurrency = "USD"\n[per_hour]\nA100-80GB = 1.80\nL4 = 0.70'
_MOST_SHOWN = 60
_LONGEST_CURRENCY = 12


@dataclass(frozen=True)
class Prices:
    """What GPUs cost.

    Attributes:
        currency: the name of the currency, such as ``USD``.
        per_hour: the price of one hour, by the name of the GPU in a rig.
    """

    currency: str
    per_hour: Mapping[str, float]

    @classmethod
    def read(cls, path: Path) -> Prices:
        """Return the prices in a TOML file.

        ::

            currency = "USD"
            [per_hour]
            A100-80GB = 1.80
            L4 = 0.70

        Raises:
            ReportError: the file cannot be read, or does not have this form.
        """
        try:
            content = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:  # a malformed file, or a name with a zero byte
            reason = getattr(error, "strerror", None) or error
            raise ReportError(
                f"{_shown(str(path))} cannot be read as TOML: {reason}; {_EXAMPLE}"
            ) from None
        unknown = sorted(content.keys() - {_CURRENCY, _PER_HOUR})
        if unknown:
            raise ReportError(f"the prices have an unknown key {_shown(unknown[0])}; {_EXAMPLE}")
        return cls(_read_currency(content.get(_CURRENCY)), _read_table(content.get(_PER_HOUR)))

    def of_rig(self, rig: VirtualRig) -> float | None:
        """Return what an hour of all GPUs of a rig costs; None if one of them has no price."""
        prices = [self.per_hour.get(device.key) for device in rig.devices]
        known = [price for price in prices if price is not None]
        return sum(known) if len(known) == len(prices) else None


def _read_currency(value: Any) -> str:
    if (
        not isinstance(value, str)
        or not value.isprintable()
        or not 1 <= len(value.strip()) <= _LONGEST_CURRENCY
    ):
        raise ReportError(
            f"{_CURRENCY} is {_shown(value)}, and must be a name of up to {_LONGEST_CURRENCY} "
            f"letters; {_EXAMPLE}"
        )
    return value.strip()


def _read_table(table: Any) -> dict[str, float]:
    if not isinstance(table, dict) or not table:
        raise ReportError(
            f"the prices have no table [{_PER_HOUR}] with the price of each GPU; {_EXAMPLE}"
        )
    prices: dict[str, float] = {}
    for name, price in table.items():
        key = _read_name(name)
        if key in prices:
            raise ReportError(f"{_PER_HOUR} names {key} twice; keep one of the prices")
        if isinstance(price, bool) or not isinstance(price, int | float):
            raise ReportError(f"the price of {key} is {_shown(price)}, and must be a number")
        if not (price >= 0 and math.isfinite(price)):
            raise ReportError(
                f"the price of {key} is {price:g} an hour, and must be a number of at least 0"
            )
        prices[key] = float(price)
    return prices


def _read_name(name: str) -> str:
    """Return the name that a rig gives this GPU: ``a100-80gb`` is ``A100-80GB``."""
    try:
        devices = VirtualRig.parse(name).devices
    except AnyrigError as error:
        raise ReportError(f"{_PER_HOUR} names {_shown(name)}: {error}") from None
    if len(devices) > 1:
        raise ReportError(
            f"{_PER_HOUR} names {_shown(name)}, which is several GPUs; give the price of one"
        )
    return devices[0].key


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"
