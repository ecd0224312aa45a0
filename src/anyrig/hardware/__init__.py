"""Facts of accelerators, as data: see `specs.toml` for the figures and where each was read."""

from .spec import Spec, find_spec, nearest_keys, spec_of_key, specs

__all__ = ["Spec", "find_spec", "nearest_keys", "spec_of_key", "specs"]
