// The Python form of one counter, of the caching allocator or of pinned memory.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace anyrig::virtual_gpu {

template <class Stat>
py::dict stat_dict(const Stat& stat) {
  py::dict result;
  result["current"] = stat.current;
  result["peak"] = stat.peak;
  result["allocated"] = stat.allocated;
  result["freed"] = stat.freed;
  return result;
}

} // namespace anyrig::virtual_gpu
