// The cost of copies over links.
#pragma once

#include "time/gpu_facts.h"
#include "time/ring.h"

namespace anyrig::virtual_gpu {

// Returns the bytes per second that a copy reaches over a link of `gpu`, in one direction. Over
// PCIe: from or to pinned memory.
double copy_rate(const GpuFacts& gpu, LinkKind kind);

// Returns the seconds of a copy over `link`. The driver copies pageable memory through a buffer of
// its own.
double copy_seconds(const GpuFacts& gpu, const Link& link, double bytes, bool is_pageable);

} // namespace anyrig::virtual_gpu
