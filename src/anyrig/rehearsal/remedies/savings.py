"""What each remedy saves, and the report of it."""

from __future__ import annotations

from dataclasses import dataclass

from ...units import format_bytes


@dataclass(frozen=True)
class Saving:
    """What a remedy saves, or several together, measured without data on a GPU with more memory.

    Attributes:
        remedies: the keys of the remedies in `REMEDIES`.
        advice: how to change the program by hand, in one line for each.
        saved_bytes: by how many bytes the peak falls.
        needed_bytes: the peak with the remedies.
        time_fraction: the time with the remedies as a fraction of the time without them, on the
            virtual clock; None if one of them computes less with each call, or nothing was
            computed.
        is_of_reserved: whether the bytes are those that the allocator reserves, rather than those
            of tensors.
        is_enough: whether all that was rehearsed then fits in the memory of all GPUs.
    """

    remedies: tuple[str, ...]
    advice: tuple[str, ...]
    saved_bytes: int
    needed_bytes: int
    time_fraction: float | None
    is_of_reserved: bool
    is_enough: bool = False

    def __str__(self) -> str:
        """Return the saving in one line; of several remedies, with a line for each."""
        kind = " of reserved memory" if self.is_of_reserved else ""
        enough = "enough" if self.is_enough else "not enough"
        time = (
            "" if self.time_fraction is None else f", time {100 * (self.time_fraction - 1):+.0f} %"
        )
        saved = f"saves {format_bytes(self.saved_bytes)}{kind}, {enough}{time}"
        each = [f"{name}: {how}" for name, how in zip(self.remedies, self.advice, strict=True)]
        return f"  {saved}: {each[0]}" if len(each) == 1 else "\n    ".join([f"  {saved}:", *each])


@dataclass(frozen=True)
class Savings:
    """What each remedy saves, largest saving first.

    Attributes:
        calls: the calls of outermost modules up to the error.
        device: the index of the GPU with the least memory for what the program needs.
        needed_bytes: the peak of the allocated bytes of the unchanged program, up to the end of the
            call or optimizer step that ran out of memory; if that is in the first step, to the end
            of the second, which has the optimizer's state.
        reserved_bytes: the peak of the bytes that the allocator reserves for them.
        total_bytes: the memory of the GPU.
        of_remedies: the remedies that save at least 1 %.
        left_out: why each of the other remedies is not among them, by name.
        together: what several remedies save together: as many as are needed, or all of them if that
            is not enough. None if one alone is enough, or if fewer than two save anything.
    """

    calls: int
    device: int
    needed_bytes: int
    reserved_bytes: int
    total_bytes: int
    of_remedies: tuple[Saving, ...]
    left_out: dict[str, str]
    together: Saving | None = None

    @property
    def enough(self) -> tuple[Saving, ...]:
        """The remedies each of which is enough alone; else several that are enough together."""
        alone = tuple(saving for saving in self.of_remedies if saving.is_enough)
        if alone or self.together is None or not self.together.is_enough:
            return alone
        return (self.together,)

    def __str__(self) -> str:
        """Return a text with a line for each remedy."""
        needed, total = format_bytes(self.needed_bytes), format_bytes(self.total_bytes)
        head = (
            f"cuda:{self.device} has {total}, and the step needs {needed}, for which the allocator "
            f"reserves {format_bytes(self.reserved_bytes)}."
        )
        lines = [f"{head} Rehearsed remedies:", *map(str, self.of_remedies)]
        if not self.of_remedies:
            lines = [f"{head} No remedy that was rehearsed saves 1 % of it."]
        if self.together is not None:
            lines += ["  none is enough alone; together:", str(self.together)]
        if not self.enough:
            lines.append(
                "  with these remedies it does not fit: anyrig fit --rig all finds GPUs that are "
                "large enough; anyrig.spread(model, plan=anyrig.Shards()) divides parameters, "
                "gradients and the optimizer's state among several"
            )
        names_by_reason: dict[str, list[str]] = {}
        for name, why in self.left_out.items():
            names_by_reason.setdefault(why, []).append(name)
        lines += [
            f"  left out: {', '.join(names)}: {why}" for why, names in names_by_reason.items()
        ]
        return "\n".join(lines)
