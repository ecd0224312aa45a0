// Host memory at the addresses that the allocator's model assigns.
//
// Usually the model's addresses are made up, and results stay where the host's allocator put them,
// so that none is copied. But tools for the memory history (snapshots, torch.utils.viz) look up
// data pointers among the model's addresses, and graphs that share a pool share its memory. So
// allocations are placed while a program records the history, and in private pools:
//
//   the model   | segment: block | block | free            |
//   the host    | mapped: data   | data  | no pages        |
#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>
#include <cstdint>
#include <utility>

namespace anyrig::virtual_gpu {

// Returns the host memory at `address` in `segment` (first address, bytes). Returns null if the
// host cannot map memory there; the program still works, but its data pointers then differ from the
// model's addresses.
c10::DataPtr place(uint64_t address, std::pair<uint64_t, size_t> segment);

} // namespace anyrig::virtual_gpu
