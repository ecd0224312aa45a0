"""Arguments that are lists of samples, as in detection: images of many sizes, each with its boxes.

::

    model([image, image], [{"boxes": …}, {"boxes": …}])          two rows
    model((), ())                                                none

By the sizes of the tensors the rows cannot be told: of an image the first is its channels. So a
list or tuple of dicts among the arguments has a row in each entry, and so have those as long as it
is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..batch.samples import find_sample_count

# Positional ones, and those with names.
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def count_samples(arguments: Arguments) -> int | None:
    """Return how many samples the arguments list; None if none of them lists samples."""
    lists = [value for _, value in _places(arguments) if _is_list(value)]
    for value in lists:
        if value and all(isinstance(entry, Mapping) for entry in value):
            return len(value)
    return 0 if lists and find_sample_count(arguments) is None and not any(lists) else None


def take_samples(arguments: Arguments, samples: int, most: int) -> Arguments:
    """Return the arguments with the first `most` of their `samples` samples."""
    return _map_lists(arguments, lambda value, _: value[:most] if len(value) == samples else value)


def put_samples(arguments: Arguments, like: Arguments, times: int) -> Arguments:
    """Return the arguments with the samples of `like`, each so often, where they list none."""
    there = dict(_places(like))
    return _map_lists(arguments, lambda value, place: value or there.get(place, value) * times)


def _places(arguments: Arguments) -> list[tuple[Any, Any]]:
    inputs, kwargs = arguments
    return [*enumerate(inputs), *kwargs.items()]


def _map_lists(arguments: Arguments, replacement: Callable[[Any, Any], Any]) -> Arguments:
    inputs, kwargs = arguments
    mapped = {
        place: replacement(value, place) if _is_list(value) else value
        for place, value in _places(arguments)
    }
    return tuple(mapped[i] for i in range(len(inputs))), {name: mapped[name] for name in kwargs}


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and not hasattr(value, "_fields")
