"""Check the form of the values in a checkpoint, which may be forged, before anything uses them.

::

    modules      {"model": {name: value}}
    optimizers   {key: {"tensors": {parameter: [part]}, "values": {parameter: {part: value}},
                        "groups": [{"params": [parameter], option: value}],
                        "class": text, "dtypes": {parameter: text},
                        "in_shards": {parameter: [part]}}}
    states       {"scheduler": …}       whatever state_dict() returned
    random       [{"state": text}]      of each rank
    given        {"step": 3, name: …}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Check = Callable[[Any, str], None]


def check_values(values: Mapping[str, Any]) -> None:
    """Raise ValueError, with the place, if the values do not have the form of a checkpoint's."""
    _dict_of(_dict_of(_anything))(values.get("modules"), "modules")
    _dict_of(_check_optimizer)(values.get("optimizers"), "optimizers")
    _dict_of(_anything)(values.get("states"), "states")
    _list_of(_check_random)(values.get("random"), "random")
    _dict_of(_anything)(values.get("given"), "given")
    step = values["given"].get("step")
    if step is not None and (type(step) is not int or step < 0):
        raise ValueError(f"given['step'] is {step!r:.60}, not a whole number from 0 up")


def _check_optimizer(value: Any, place: str) -> None:
    _dict_of(_anything)(value, place)
    _dict_of(_list_of(_text))(value.get("tensors"), f"{place}['tensors']")
    _dict_of(_any_dict)(value.get("values"), f"{place}['values']")
    _list_of(_check_group)(value.get("groups"), f"{place}['groups']")
    _text(value.get("class", ""), f"{place}['class']")
    _dict_of(_text)(value.get("dtypes", {}), f"{place}['dtypes']")
    _dict_of(_list_of(_text))(value.get("in_shards", {}), f"{place}['in_shards']")
    known = {name for group in value["groups"] for name in group["params"]}
    if unknown := sorted(value["tensors"].keys() - known):
        raise ValueError(f"{place} has a state of {unknown[0]!r}, which is in none of its groups")


def _check_group(value: Any, place: str) -> None:
    _dict_of(_anything)(value, place)
    _list_of(_text)(value.get("params"), f"{place}['params']")


def _check_random(value: Any, place: str) -> None:
    _dict_of(_anything)(value, place)
    _text(value.get("state"), f"{place}['state']")


def _dict_of(check: Check) -> Check:
    def check_dict(value: Any, place: str) -> None:
        _any_dict(value, place)
        for key, each in value.items():
            if type(key) is not str:
                raise ValueError(f"{place} has the key {key!r:.60}, which is not a string")
            check(each, f"{place}[{key!r:.60}]")

    return check_dict


def _list_of(check: Check) -> Check:
    def check_list(value: Any, place: str) -> None:
        if type(value) is not list:
            raise ValueError(f"{place} is a {type(value).__name__}, not a list")
        for index, each in enumerate(value):
            check(each, f"{place}[{index}]")

    return check_list


def _any_dict(value: Any, place: str) -> None:
    if not isinstance(value, dict):
        raise ValueError(f"{place} is a {type(value).__name__}, not a dict")


def _text(value: Any, place: str) -> None:
    if type(value) is not str:
        raise ValueError(f"{place} is a {type(value).__name__}, not a string")


def _anything(value: Any, place: str) -> None:
    pass
