"""Seconds that no division can undercut.

If all blocks fit one device, its time may be the bound. A division over several devices takes at
least the fastest transfer over any cut and link, and the larger of:

- Each block runs on some device that has room for it: the slowest block on its best device.
- All devices together. A device does at most as much work in T seconds as its best rate allows, and
  at most the work of the longest stage that fits its memory. The least T at which the sum over the
  devices reaches the work of all blocks is a bound.
"""

from __future__ import annotations

from .problem import Problem


def find_lower_bound(problem: Problem) -> float:
    """Return the bound in seconds; infinite if no division fits."""
    count, devices = len(problem.blocks), range(len(problem.devices))
    one = [
        problem.compute_seconds(d, 0, count)
        for d in devices
        if problem.stage_bytes(0, count, problem.in_flight(0, 1)) <= problem.memory[d]
    ]
    several = max(_bound_compute(problem), _bound_transfers(problem))
    return min([several, *one])


def _bound_transfers(problem: Problem) -> float:
    """Return the fastest transfer over any cut and link."""
    sizes = [block.output_bytes for block in problem.blocks[:-1]]
    links = [link for a, row in enumerate(problem.links) for b, link in enumerate(row) if a != b]
    if not sizes or not links:
        return float("inf")
    return min(link.seconds(min(sizes)) for link in links)


def _bound_compute(problem: Problem) -> float:
    count, devices = len(problem.blocks), range(len(problem.devices))
    fewest = min(
        problem.in_flight(stage, stages)
        for stages in range(1, len(problem.devices) + 1)
        for stage in range(stages)
    )
    sizes = [problem.stage_bytes(b, b + 1, fewest) for b in range(count)]
    alone = 0.0
    for block, size in enumerate(sizes):
        times = (
            problem.compute_seconds(d, block, block + 1)
            for d in devices
            if size <= problem.memory[d]
        )
        alone = max(alone, min(times, default=float("inf")))
    # A block's work in units that do not depend on a device: its mean part of a device's time.
    work = [0.0] * count
    for d in devices:
        sums = problem.seconds[d]
        total = sums[count] or 1.0
        for block in range(count):
            work[block] += (sums[block + 1] - sums[block]) / total
    offers = []
    for d in devices:
        sums = problem.seconds[d]
        rates = [work[b] / (sums[b + 1] - sums[b]) for b in range(count) if sums[b + 1] > sums[b]]
        if rates and len(rates) == sum(1 for each in work if each > 0):
            offers.append((max(rates), _most_work(problem, d, fewest, work)))
        else:
            return alone
    return max(alone, _least_time(offers, sum(work)))


def _most_work(problem: Problem, device: int, held: int, work: list[float]) -> float:
    """Return the most work of neighbouring blocks that fit a device."""
    if problem.memory[device] == float("inf"):
        return sum(work)
    sums, limit = problem.byte_sums(held), problem.memory[device]
    start, current, most = 0, 0.0, 0.0
    for end, each in enumerate(work, 1):
        current += each
        while start < end and sums[end] - sums[start] > limit:
            current -= work[start]
            start += 1
        most = max(most, current)
    return most


def _least_time(offers: list[tuple[float, float]], total: float) -> float:
    """Return the least T with the sum of min(rate * T, most) over the devices at least `total`."""
    full, rate = 0.0, sum(each for each, _ in offers)
    for each, most in sorted(offers, key=lambda offer: offer[1] / offer[0]):
        limit = most / each
        if full + rate * limit >= total * (1 - 1e-12):
            return (total - full) / rate * (1 - 1e-12)
        full, rate = full + most, rate - each
    return float("inf")
