// What Python sees of the virtual devices.

#include "attention/attention_choice.h"
#include "device/backward_threads.h"
#include "time/clock.h"
#include "operators/cublas.h"
#include "device/device.h"
#include "dispatch/dispatch.h"
#include "random/generator.h"
#include "device/hooks.h"
#include "memory/host_memory.h"
#include "memory/memory.h"
#include "dispatch/shape_only.h"
#include "time/streams.h"
#include "dispatch/twin.h"

#include <ATen/Context.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/device_lazy_init.h>
#include <torch/csrc/utils/pybind.h>

#include <pybind11/functional.h>
#include <pybind11/stl.h>

namespace anyrig::virtual_gpu {
namespace {

py::dict as_dict(const Stat& stat) {
  py::dict result;
  result["current"] = stat.current;
  result["peak"] = stat.peak;
  result["allocated"] = stat.allocated;
  result["freed"] = stat.freed;
  return result;
}

py::dict as_dict(const PoolStat& stats) {
  py::dict result;
  result["all"] = as_dict(stats[PoolStat::kAggregate]);
  result["small_pool"] = as_dict(stats[PoolStat::kSmallPool]);
  result["large_pool"] = as_dict(stats[PoolStat::kLargePool]);
  return result;
}

// In the shape of torch._C._cuda_memoryStats.
py::dict memory_stats(c10::DeviceIndex device) {
  const AllocatorStats stats = caching_allocator(device).stats();
  py::dict result;
  result["allocation"] = as_dict(stats.allocation);
  result["segment"] = as_dict(stats.segment);
  result["active"] = as_dict(stats.active);
  result["inactive_split"] = as_dict(stats.inactive_split);
  result["allocated_bytes"] = as_dict(stats.allocated_bytes);
  result["reserved_bytes"] = as_dict(stats.reserved_bytes);
  result["active_bytes"] = as_dict(stats.active_bytes);
  result["inactive_split_bytes"] = as_dict(stats.inactive_split_bytes);
  result["requested_bytes"] = as_dict(stats.requested_bytes);
  result["oversize_allocations"] = as_dict(stats.oversize_allocations);
  result["oversize_segments"] = as_dict(stats.oversize_segments);
  result["num_alloc_retries"] = stats.num_alloc_retries;
  result["num_ooms"] = stats.num_ooms;
  result["num_sync_all_streams"] = stats.num_sync_all_streams;
  result["num_device_alloc"] = stats.num_device_alloc;
  result["num_device_free"] = stats.num_device_free;
  result["max_split_size"] = -1; // no limit
  return result;
}

py::list memory_snapshot(c10::DeviceIndex device) {
  py::list segments;
  for (const auto& segment : caching_allocator(device).snapshot()) {
    py::list blocks;
    for (const auto& part : segment.parts) {
      py::dict block;
      block["address"] = part.address;
      block["size"] = part.bytes;
      block["requested_size"] = part.requested_bytes;
      block["state"] = part.allocated ? "active_allocated"
          : part.active              ? "active_pending_free"
                                     : "inactive";
      block["frames"] = py::list();
      blocks.append(block);
    }
    py::dict entry;
    entry["device"] = device;
    entry["address"] = segment.address;
    entry["stream"] = segment.stream;
    entry["segment_type"] = segment.small ? "small" : "large";
    entry["segment_pool_id"] = py::make_tuple(0, 0);
    entry["is_expandable"] = segment.expandable;
    entry["total_size"] = segment.total_bytes;
    entry["allocated_size"] = segment.allocated_bytes;
    entry["active_size"] = segment.active_bytes;
    entry["requested_size"] = segment.requested_bytes;
    entry["frames"] = py::list();
    entry["blocks"] = blocks;
    segments.append(entry);
  }
  return segments;
}

py::tuple stream_triple(const c10::Stream& stream) {
  return py::make_tuple(
      stream.id(), stream.device_index(), static_cast<int64_t>(stream.device_type()));
}

std::unordered_map<uintptr_t, c10::DataPtr>& raw_memory() {
  static auto* memory = new std::unordered_map<uintptr_t, c10::DataPtr>();
  return *memory;
}

uintptr_t allocate_raw(size_t bytes) {
  auto data = allocate(bytes, static_cast<c10::DeviceIndex>(current_device()));
  const auto address = reinterpret_cast<uintptr_t>(data.get());
  raw_memory().insert_or_assign(address, std::move(data));
  return address;
}

void free_raw(uintptr_t address) {
  raw_memory().erase(address);
}

// `raise` is called with the operator's name and must raise.
void raise_from_python(py::function raise) {
  // Kept for ever: it may be called while the interpreter ends.
  auto* kept = new py::function(std::move(raise));
  set_raise_value_needed([kept](const std::string& name) {
    py::gil_scoped_acquire gil;
    try {
      (*kept)(name);
    } catch (py::error_already_set& error) {
      error.restore();
      python_error raised;
      raised.persist();
      throw std::move(raised);
    }
  });
}

void set_current_stream(int64_t id, c10::DeviceIndex device) {
  set_current_device(device);
  exchange_stream(
      c10::Stream(c10::Stream::UNSAFE, c10::Device(kDeviceType, device), id));
}

int exchange_device(int device) {
  const int previous = current_device();
  if (device >= 0) {
    set_current_device(device);
  }
  return previous;
}

int install(std::vector<DeviceFacts> rig, const Settings& settings, const OperatorTable& table) {
  set_rig(std::move(rig), settings);
  c10::SetAllocator(kDeviceType, device_allocator(), /*priority=*/100);
  keep_freed_pages();
  watch_host_allocations();
  install_hooks();
  return install_operators(table);
}

} // namespace
} // namespace anyrig::virtual_gpu

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  using namespace anyrig::virtual_gpu;
  const auto no_gil = py::call_guard<py::gil_scoped_release>();

  py::class_<Rates>(m, "Rates")
      .def(py::init<>())
      .def_readwrite("flops_per_second", &Rates::flops_per_second)
      .def_readwrite("half_flops_per_second", &Rates::half_flops_per_second)
      .def_readwrite("memory_bytes_per_second", &Rates::memory_bytes_per_second)
      .def_readwrite("link_bytes_per_second", &Rates::link_bytes_per_second)
      .def_readwrite("host_bytes_per_second", &Rates::host_bytes_per_second);
  py::class_<DeviceFacts>(m, "DeviceFacts")
      .def(py::init<>())
      .def_readwrite("name", &DeviceFacts::name)
      .def_readwrite("uuid", &DeviceFacts::uuid)
      .def_readwrite("memory_bytes", &DeviceFacts::memory_bytes)
      .def_readwrite("capability_major", &DeviceFacts::capability_major)
      .def_readwrite("capability_minor", &DeviceFacts::capability_minor)
      .def_readwrite("multiprocessors", &DeviceFacts::multiprocessors)
      .def_readwrite("rates", &DeviceFacts::rates);
  py::class_<OperatorFacts>(m, "OperatorFacts")
      .def(py::init([](bool has_cuda_kernel,
                       bool structured,
                       bool checks_devices,
                       std::vector<std::string> container_keys) {
        return OperatorFacts{
            has_cuda_kernel, structured, checks_devices, std::move(container_keys)};
      }));

  m.def(
      "install",
      [](std::vector<DeviceFacts> rig,
         bool shape_only,
         bool assume_values,
         const OperatorTable& table,
         py::function raise_value_needed) {
        raise_from_python(std::move(raise_value_needed));
        const auto mode = shape_only ? Mode::ShapeOnly : Mode::Compute;
        return install(std::move(rig), Settings{mode, assume_values}, table);
      });

  m.def("devices", &devices);
  m.def("device_count", &device_count);
  m.def("visible_positions", [](std::optional<std::string> visible) {
    return visible_positions(visible.has_value() ? visible->c_str() : nullptr);
  });
  m.def("current_device", &current_device);
  m.def("has_context", &has_context);
  m.def("set_device", &set_current_device);
  m.def("exchange_device", &exchange_device);
  m.def("start", [] {
    // PyTorch initializes CUDA anew in the child, which refuses.
    watch_forks([] { torch::utils::set_requires_device_init(kDeviceType, true); });
    at::globalContext().lazyInitDevice(kDeviceType); // what asks for it later finds CUDA in use
  });
  m.def("settle_backward_threads", [] {
    py::gil_scoped_release released;
    settle_backward_threads();
  });
  m.def("forked_after_use", &forked_after_use);

  m.def("current_stream", [](c10::DeviceIndex device) {
    return stream_triple(current_stream(device));
  });
  m.def("default_stream", [](c10::DeviceIndex device) {
    return stream_triple(default_stream(device));
  });
  m.def("stream_from_pool", [](c10::DeviceIndex device, int priority) {
    return stream_triple(stream_from_pool(device, priority));
  });
  m.def("set_stream", &set_current_stream);
  m.def("stream_priority", [](c10::StreamId id, c10::DeviceIndex device) {
    return priority_of(c10::Stream(c10::Stream::UNSAFE, c10::Device(kDeviceType, device), id));
  });
  m.attr("highest_priority") = kHighestPriority;

  m.def("memory_stats", &memory_stats);
  m.def("memory_snapshot", &memory_snapshot);
  m.def("memory_info", &memory_info);
  m.def("empty_cache", [] { device_allocator()->emptyCache(); }, no_gil);
  m.def("reset_peaks", [](c10::DeviceIndex device) { caching_allocator(device).reset_peaks(); });
  m.def("reset_accumulated", [](c10::DeviceIndex device) {
    caching_allocator(device).reset_accumulated();
  });
  m.def("set_memory_fraction", [](double fraction, c10::DeviceIndex device) {
    caching_allocator(device).set_memory_fraction(fraction);
  });
  m.def("memory_fraction", [](c10::DeviceIndex device) {
    return caching_allocator(device).memory_fraction();
  });
  // Memory by its address, as caching_allocator_alloc hands it out.
  m.def("allocate_raw", [](size_t bytes, int64_t /*stream*/) { return allocate_raw(bytes); });
  m.def("free_raw", &free_raw);
  m.def("pin", [](uintptr_t address, size_t bytes) {
    pin(reinterpret_cast<const void*>(address), bytes); // NOLINT(performance-no-int-to-ptr)
  });
  m.def("unpin", [](uintptr_t address) {
    unpin(reinterpret_cast<const void*>(address)); // NOLINT(performance-no-int-to-ptr)
  });
  m.def("add_out_of_memory_observer", [](py::function observer) {
    // Kept for ever, as CUDA's allocator keeps it: there is no way to take one away.
    auto* kept = new py::function(std::move(observer));
    add_out_of_memory_observer([kept](c10::DeviceIndex device, const OutOfMemory& error) {
      py::gil_scoped_acquire gil;
      (*kept)(device, error.tried_bytes, error.allowed_bytes.value_or(error.total_bytes),
              error.free_bytes);
    });
  });
  m.def("resize_storage", [](const at::Tensor& tensor, size_t bytes) {
    resize_storage(tensor.storage(), bytes);
  });
  m.def("clear_cublas_workspaces", &clear_cublas_workspaces);

  m.def("can_use_flash_attention", &can_use_flash_attention);
  m.def("can_use_efficient_attention", &can_use_efficient_attention);
  m.def("can_use_cudnn_attention", &can_use_cudnn_attention);

  m.def("default_generator", &default_generator, py::return_value_policy::copy);

  m.def("set_clock_enabled", [](bool enabled) { Clock::get().set_enabled(enabled); });
  m.def("clock_enabled", [] { return Clock::get().enabled(); });
  m.def("host_seconds", [] { return Clock::get().host_seconds(); });
  m.def("synchronize", [](int device) {
    check_not_forked();
    Clock::get().synchronize_device(device);
  }, no_gil);
  m.def("elapsed_milliseconds", [](uintptr_t start, uintptr_t end) {
    return elapsed_milliseconds(
        *reinterpret_cast<const Event*>(start), *reinterpret_cast<const Event*>(end));
  });
  m.def("run_for", [](double seconds) {
    Clock::get().run_for(current_stream(-1), seconds);
  });
}
