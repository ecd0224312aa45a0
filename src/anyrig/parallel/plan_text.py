"""Plans as text, for the environment variable ``ANYRIG_PLAN``: ``Pipeline(micro_batches=8)``.

``ANYRIG_PRECISION`` likewise stands in for the argument `precision` of `anyrig.spread`.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Mapping
from typing import Any

from ..errors import SharesError, SpreadError
from .plans import Exact, Pipeline, Plan, Replicas, Shards

VARIABLE, PRECISION_VARIABLE = "ANYRIG_PLAN", "ANYRIG_PRECISION"
_PLANS = {plan.__name__: plan for plan in (Replicas, Shards, Pipeline, Exact)}
_MOST_CHARACTERS = 1000


def plan_of_environment(environment: Mapping[str, str] = os.environ) -> tuple[Plan | None, str]:
    """Return the plan that ``ANYRIG_PLAN`` names, and why, as the beginning of a layout's reason.

    Returns:
        The plan and its reason; None and an empty text if the variable is missing or empty.

    Raises:
        SpreadError: the variable is not the text of a plan, or the plan refuses its values.
    """
    text = environment.get(VARIABLE, "").strip()
    if not text:
        return None, ""
    try:
        return read_plan(text), f"{VARIABLE} is {text}; "
    except (SharesError, SpreadError) as error:
        raise SpreadError(
            f"the environment variable {VARIABLE} is {text[:80]!r}: {error}; correct or unset it"
        ) from None


def precision_of_environment(
    environment: Mapping[str, str] = os.environ,
) -> tuple[str | None, str]:
    """Return the precision that ``ANYRIG_PRECISION`` names, and why, as `plan_of_environment` does.

    Raises:
        SpreadError: it is not a precision of `anyrig.spread`.
    """
    text = environment.get(PRECISION_VARIABLE, "").strip()
    if text and text not in ("bfloat16", "float16"):
        raise SpreadError(
            f"the environment variable {PRECISION_VARIABLE} is {text[:80]!r}; set it to bfloat16 "
            "or float16, or unset it"
        )
    return (text, f"{PRECISION_VARIABLE} is {text}; ") if text else (None, "")


def read_plan(text: str) -> Plan:
    """Return the plan that `text` writes as a call with literal keyword arguments.

    Nothing is evaluated: the text may contain names of plans, and literals.

    Raises:
        SpreadError: the text is something else, or the plan refuses its values.
        SharesError: the plan refuses its shares.
    """
    if len(text) > _MOST_CHARACTERS:
        raise SpreadError(f"a plan has at most {_MOST_CHARACTERS} characters, not {len(text):,}")
    try:
        found = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise SpreadError(f"{text[:80]!r} is not a plan; {_example()}") from None
    return _plan_from(found)


def _plan_from(node: ast.expr) -> Plan:
    name = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else None
    if not isinstance(node, ast.Call) or name not in _PLANS:
        raise SpreadError(f"{ast.unparse(node)[:80]!r} is not a plan; {_example()}")
    if node.args:
        raise SpreadError(f"{name} takes its values by name only; {_example()}")
    values: dict[str, Any] = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise SpreadError(f"** is not valid in the text of a plan; {_example()}")
        values[keyword.arg] = _value_from(keyword.value)
    try:
        return _PLANS[name](**values)
    except TypeError as error:  # no such attribute, or a value of another type
        raise SpreadError(f"{name} does not take these values: {error}") from None


def _value_from(node: ast.expr) -> object:
    if isinstance(node, ast.Call):
        return _plan_from(node)
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        raise SpreadError(
            f"{ast.unparse(node)[:80]!r} is not a number, a string, a list or a plan; {_example()}"
        ) from None


def _example() -> str:
    return "write one as in Pipeline(micro_batches=8), with numbers, strings and lists as values"
