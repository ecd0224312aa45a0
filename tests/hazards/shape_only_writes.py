"""Run as a program: the hazards of `seeded_writes` on GPUs without data."""

from anyrig import virtual

virtual.install("2xA100-80GB", shape_only=True)

from seeded_writes import missed  # noqa: E402

count, wrong = missed("cuda:1")
print(count, "programs")
print("\n".join(wrong))
