"""The device of this process among those that the ranks of a node share."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import LaunchError


@dataclass(frozen=True)
class LocalRank:
    """The local rank of this process, from torchrun's environment.

    Attributes:
        rank: ``LOCAL_RANK``.
        world_size: ``LOCAL_WORLD_SIZE``.
    """

    rank: int
    world_size: int

    @classmethod
    def read(cls, environment: Mapping[str, str] = os.environ) -> LocalRank | None:
        """Return the local rank, or None outside torchrun, `anyrig run` and similar launchers.

        Raises:
            LaunchError: the variables are not numbers, or contradict each other.
        """
        texts = [environment.get(name) for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE")]
        if not all(texts):  # an env file leaves variables empty
            return None
        try:
            rank, world_size = (int(text) for text in texts if text)
        except ValueError:
            rank, world_size = -1, 0
        if not 0 <= rank < world_size:
            raise LaunchError(
                f"LOCAL_RANK={texts[0]} and LOCAL_WORLD_SIZE={texts[1]} are not a valid local "
                "rank; unset both, or start the program with anyrig run or torchrun"
            )
        return cls(rank, world_size)

    def device_index(self, device_count: int) -> int:
        """Return the index of this process's device among `device_count` visible devices.

        If there are more ranks than devices, neighbouring ranks share one, and the numbers of ranks
        per device differ by one at most. With one visible device, the index is 0.
        """
        if self.world_size <= device_count:
            return self.rank
        return self.rank * device_count // self.world_size
