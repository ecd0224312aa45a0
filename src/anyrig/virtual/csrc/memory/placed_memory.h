// Host memory at the very addresses that the allocator's model gave out.
//
// The model's addresses are made up, and results lie where the host's allocator put them, so that
// none has to be copied. But what reads the history of memory (snapshots, torch.utils.viz) looks
// up data pointers among the model's addresses, and graphs that share a pool meet in its memory.
// So while a program records the history, and in private pools, allocations are placed:
//
//   the model   | segment: block | block | free            |
//   the host    | mapped: data   | data  | no pages        |
#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>
#include <cstdint>
#include <utility>

namespace anyrig::virtual_gpu {

// The host memory at `address`, inside a segment (its first address, and its bytes). Nothing if
// the host has no room there; the program goes on, and its data pointers tell nothing then.
c10::DataPtr place(uint64_t address, std::pair<uint64_t, size_t> segment);

} // namespace anyrig::virtual_gpu
