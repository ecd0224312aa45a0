"""Runs the seeded writes on the CPU with sums, and prints their number and those not found.

NumPy's writes are found by following lines, which a process of its own keeps from other tests.
"""

from seeded_writes import NUMPY, WRITES, missed

count, wrong = missed("cpu", WRITES | NUMPY, sums=True)
print(count, "writes")
print(*wrong, sep="\n")
