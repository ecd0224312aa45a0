#include "memory/pinned_memory_bindings.h"

#include "memory/pinned_memory.h"
#include "memory/stat_dict.h"

#include <cstdint>

namespace anyrig::virtual_gpu {
namespace {

py::dict dict_of_durations(const c10::CachingAllocator::DurationStat& stat) {
  py::dict result;
  result["total"] = stat.total;
  result["max"] = stat.max;
  result["min"] = stat.min;
  result["count"] = stat.count;
  result["avg"] = stat.count == 0 ? 0 : stat.total / stat.count;
  return result;
}

// Returns the statistics in the format of torch._C._cuda_hostMemoryStats.
py::dict pinned_memory_stats() {
  const at::HostStats stats = pinned_allocator()->get_stats();
  py::dict result;
  result["num_host_alloc"] = stats.num_host_alloc;
  result["num_host_free"] = stats.num_host_free;
  result["allocations"] = stat_dict(stats.allocations);
  result["allocated_bytes"] = stat_dict(stats.allocated_bytes);
  result["active_requests"] = stat_dict(stats.active_requests);
  result["active_bytes"] = stat_dict(stats.active_bytes);
  result["host_alloc_time"] = dict_of_durations(stats.host_alloc_time);
  result["host_free_time"] = dict_of_durations(stats.host_free_time);
  return result;
}

} // namespace

void bind_pinned_memory(pybind11::module_& module) {
  module.def("pinned_memory_stats", &pinned_memory_stats);
  module.def("empty_pinned_cache", [] { pinned_allocator()->empty_cache(); });
  module.def("reset_pinned_peaks", [] { pinned_allocator()->reset_peak_stats(); });
  module.def("reset_pinned_accumulated", [] { pinned_allocator()->reset_accumulated_stats(); });
  module.def("pin", [](uintptr_t address, size_t bytes) {
    pin(reinterpret_cast<const void*>(address), bytes); // NOLINT(performance-no-int-to-ptr)
  });
  module.def("unpin", [](uintptr_t address) {
    unpin(reinterpret_cast<const void*>(address)); // NOLINT(performance-no-int-to-ptr)
  });
}

} // namespace anyrig::virtual_gpu
