// The Python bindings of the virtual devices, and their start.
//
// More than 400 lines: a few lines for each of about 100 functions. Parts with classes of their own
// are bound in their folders (bind_collectives, bind_graphs, ...).

#include "attention/attention_choice.h"
#include "collectives/bindings.h"
#include "device/backward_threads.h"
#include "device/cuda_error.h"
#include "device/device.h"
#include "device/hooks.h"
#include "device/host_waits.h"
#include "dispatch/dispatch.h"
#include "dispatch/foreign_operators.h"
#include "dispatch/shape_only.h"
#include "dispatch/twin.h"
#include "dispatch/unknown_sizes.h"
#include "extra.h"
#include "graphs/bindings.h"
#include "graphs/recording_key.h"
#include "hazards/saved_value.h"
#include "memory/allocator_options.h"
#include "memory/gpu_ledger.h"
#include "memory/history_bindings.h"
#include "memory/host_memory.h"
#include "memory/memory.h"
#include "memory/pinned_memory.h"
#include "memory/pinned_memory_bindings.h"
#include "memory/pools.h"
#include "memory/raw_memory.h"
#include "memory/shared_memory.h"
#include "memory/stat_dict.h"
#include "random/generator.h"
#include "temporaries/cublas_workspace.h"
#include "time/clock.h"
#include "time/cost_bindings.h"
#include "time/event.h"
#include "time/origin.h"
#include "time/profiler_events.h"
#include "time/record_bindings.h"
#include "time/streams.h"

#include <ATen/Context.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/device_lazy_init.h>
#include <torch/csrc/utils/pybind.h>

#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include <unistd.h>

namespace anyrig::virtual_gpu {
namespace {

py::dict as_dict(const PoolStat& stats) {
  py::dict result;
  result["all"] = stat_dict(stats[PoolStat::kAggregate]);
  result["small_pool"] = stat_dict(stats[PoolStat::kSmallPool]);
  result["large_pool"] = stat_dict(stats[PoolStat::kLargePool]);
  return result;
}

// Returns the statistics in the format of torch._C._cuda_memoryStats.
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
  result["oversize_allocations"] = stat_dict(stats.oversize_allocations);
  result["oversize_segments"] = stat_dict(stats.oversize_segments);
  result["num_alloc_retries"] = stats.num_alloc_retries;
  result["num_ooms"] = stats.num_ooms;
  result["num_sync_all_streams"] = stats.num_sync_all_streams;
  result["num_device_alloc"] = stats.num_device_alloc;
  result["num_device_free"] = stats.num_device_free;
  result["max_split_size"] = -1; // no limit
  return result;
}

py::tuple stream_triple(const c10::Stream& stream) {
  return py::make_tuple(
      stream.id(), stream.device_index(), static_cast<int64_t>(stream.device_type()));
}

// Calls the Python function `raise` to raise anyrig's errors. Its arguments are the operator's name
// and whether the result sizes are known; it must raise.
const char* name_of(WhyUnknown why) {
  switch (why) {
    case WhyUnknown::NeverWritten:
      return "never written";
    case WhyUnknown::DrawnIntegers:
      return "drawn integers";
    case WhyUnknown::DrawnNumbers:
      return "drawn numbers";
    case WhyUnknown::TooMany:
      return "too many";
    case WhyUnknown::NotComputed:
      return "not computed";
    case WhyUnknown::FromOutside:
      return "from outside";
  }
  return "";
}

void raise_from_python(py::function raise) {
  // Never freed: it may be called while the interpreter closes.
  auto* kept = new py::function(std::move(raise));
  const auto call = [kept](const std::string& name, std::optional<WhyUnknown> why) {
    py::gil_scoped_acquire gil;
    try {
      (*kept)(name, why.has_value() ? py::cast(name_of(*why)) : py::none());
    } catch (py::error_already_set& error) {
      error.restore();
      python_error raised;
      raised.persist();
      throw std::move(raised);
    }
  };
  set_raise_value_needed(call);
  set_raise_sizes_unknown([call](const std::string& name) { call(name, std::nullopt); });
}

// Returns for each device: seconds of computation, those of each `Family`, of copies and of
// collectives; FLOPs; bytes of memory traffic; and for each stream its id, its completion time and
// its busy seconds.
py::list read_clock() {
  py::list readings;
  for (const auto& [totals, streams] : Clock::get().read()) {
    py::list of_streams;
    for (const auto& stream : streams) {
      of_streams.append(py::make_tuple(stream.id, stream.done_seconds, stream.busy_seconds));
    }
    readings.append(
        py::make_tuple(
            totals.compute_seconds, totals.family_seconds, totals.copy_seconds,
            totals.collective_seconds, totals.flops, totals.memory_bytes, of_streams));
  }
  return readings;
}

void set_current_stream(int64_t id, c10::DeviceIndex device) {
  set_current_device(device);
  exchange_stream(c10::Stream(c10::Stream::UNSAFE, c10::Device(kDeviceType, device), id));
}

void watch_forks_for_pytorch() {
  // Make PyTorch initialize CUDA again in the child, where initialization raises.
  watch_forks([] { torch::utils::set_requires_device_init(kDeviceType, true); });
}

int exchange_device(int device) {
  const int previous = current_device();
  if (device >= 0) {
    set_current_device(device);
  }
  return previous;
}

int install(
    std::vector<DeviceFacts> rig,
    int node,
    const Settings& settings,
    const OperatorTable& table) {
  set_rig(std::move(rig), node, settings);
  c10::SetAllocator(kDeviceType, device_allocator(), /*priority=*/100);
  at::setHostAllocator(kDeviceType, pinned_allocator(), /*priority=*/100);
  watch_host_allocations();
  install_hooks();
  install_recording();
  install_profiler_events();
  for (const Extra& extra : extras()) {
    for (const auto records : extra.records) {
      add_records(records());
    }
    if (extra.install != nullptr) {
      extra.install();
    }
  }
  return install_operators(table);
}

} // namespace
} // namespace anyrig::virtual_gpu

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  using namespace anyrig::virtual_gpu;
  const auto no_gil = py::call_guard<py::gil_scoped_release>();

  bind_cost(m);
  py::class_<DriverMemory>(m, "DriverMemory")
      .def(py::init<>())
      .def_readwrite("context_bytes", &DriverMemory::context_bytes)
      .def_readwrite("cublas_handle_bytes", &DriverMemory::cublas_handle_bytes)
      .def_readwrite("connection_bytes", &DriverMemory::connection_bytes)
      .def_readwrite("ring_channels", &DriverMemory::ring_channels)
      .def_readwrite("message_channels", &DriverMemory::message_channels);
  py::class_<DeviceFacts>(m, "DeviceFacts")
      .def(py::init<>())
      .def_readwrite("name", &DeviceFacts::name)
      .def_readwrite("uuid", &DeviceFacts::uuid)
      .def_readwrite("memory_bytes", &DeviceFacts::memory_bytes)
      .def_readwrite("capability_major", &DeviceFacts::capability_major)
      .def_readwrite("capability_minor", &DeviceFacts::capability_minor)
      .def_readwrite("multiprocessors", &DeviceFacts::multiprocessors)
      .def_readwrite("node", &DeviceFacts::node)
      .def_readwrite("position", &DeviceFacts::position)
      .def_readwrite("gpu", &DeviceFacts::gpu)
      .def_readwrite("driver_memory", &DeviceFacts::driver_memory);
  py::class_<OperatorFacts>(m, "OperatorFacts")
      .def(
          py::init([](bool has_cuda_kernel, bool structured, bool is_iterator, bool checks_devices,
                      std::vector<std::string> container_keys) {
            return OperatorFacts{
                has_cuda_kernel, structured, is_iterator, checks_devices,
                std::move(container_keys)};
          }));

  m.def(
      "install",
      [](std::vector<DeviceFacts> rig, int node, bool shape_only, bool assume_values,
         const OperatorTable& table, py::function raise_value_needed) {
        raise_from_python(std::move(raise_value_needed));
        const auto mode = shape_only ? Mode::ShapeOnly : Mode::Compute;
        return install(std::move(rig), node, Settings{mode, assume_values}, table);
      });

  m.def("note_operators", &note_operators);
  m.def("take_over_operators", &take_over_operators);
  m.def("run_library_on_host", &run_library_on_host);

  m.def("devices", &devices);
  m.def("device_count", &device_count);
  m.def("visible_positions", [](std::optional<std::string> visible) {
    return visible_positions(visible.has_value() ? visible->c_str() : nullptr);
  });
  m.def("current_device", &current_device);
  m.def("has_context", &has_context);
  m.def("set_device", &set_current_device);
  m.def("exchange_device", &exchange_device);
  m.def("watch_forks", &watch_forks_for_pytorch);
  m.def("start", [] {
    watch_forks_for_pytorch();
    start_backward_threads();
    at::globalContext().lazyInitDevice(kDeviceType); // marks CUDA as initialized
  });
  // `roots` are the arguments of PyTorch's engine. PyTorch's threads process edges and invalid
  // roots.
  m.def("needs_backward_threads", [](const py::object& roots) {
    std::vector<at::Tensor> tensors;
    if (!py::isinstance<py::tuple>(roots)) {
      return true;
    }
    for (const auto root : roots) {
      if (!THPVariable_Check(root.ptr())) {
        return true;
      }
      tensors.push_back(THPVariable_Unpack(root.ptr()));
    }
    return needs_backward_threads(tensors);
  });
  m.def("drop_failed_backward", &drop_failed_backward);
  m.def("settle_backward_threads", [] {
    py::gil_scoped_release released;
    settle_backward_threads();
  });
  m.def("forked_after_use", &forked_after_use);
  m.def("set_wait_debug", torch::wrap_pybind_function([](int mode) { // warns, as Python's warning
          set_wait_debug(static_cast<WaitDebug>(mode));
        }));
  m.def("wait_debug", [] { return static_cast<int>(wait_debug()); });

  m.def("current_stream", [](c10::DeviceIndex device) {
    return stream_triple(current_stream(device));
  });
  m.def("default_stream", [](c10::DeviceIndex device) {
    return stream_triple(default_stream(device));
  });
  m.def("stream_from_pool", [](c10::DeviceIndex device, int priority) {
    return stream_triple(stream_from_pool(device, priority));
  });
  m.def("stream_handle", [](c10::StreamId id, c10::DeviceIndex device) {
    return handle_of(c10::Stream(c10::Stream::UNSAFE, c10::Device(kDeviceType, device), id));
  });
  m.def("stream_of_handle", [](uintptr_t handle, c10::DeviceIndex device) {
    return stream_triple(stream_of_handle(handle, device));
  });
  m.def("set_stream", &set_current_stream);
  m.def("stream_priority", [](c10::StreamId id, c10::DeviceIndex device) {
    return priority_of(c10::Stream(c10::Stream::UNSAFE, c10::Device(kDeviceType, device), id));
  });
  m.attr("highest_priority") = kHighestPriority;

  m.def("memory_stats", &memory_stats);
  m.def("share_gpus", [](const std::string& folder, int gpus) { gpu_ledger().join(folder, gpus); });
  m.def("change_allocator_options", [](const std::string& settings) {
    const auto options = change_allocator_options(settings);
    for (int device = 0; device < device_count(); ++device) {
      caching_allocator(static_cast<c10::DeviceIndex>(device)).set_options(options);
    }
  });
  m.def("memory_info", &memory_info);
  m.def("memory_info_of_program", [](c10::DeviceIndex device) {
    return device_allocator()->getMemoryInfo(device);
  });
  // Returns this process's bytes outside the caching allocator, in the order of GpuUse.
  m.def("gpu_memory", &gpu_memory);
  // Returns (process id, bytes) for each process that holds memory of the device; None is this
  // process.
  m.def("gpu_processes", [](c10::DeviceIndex device) {
    py::list holders;
    for (const auto& [pid, bytes] : gpu_processes(device)) {
      holders.append(py::make_tuple(pid, bytes));
    }
    return holders;
  });
  m.def(
      "empty_cache", [](PoolId pool) { device_allocator()->emptyCache(pool); },
      py::arg("pool") = kNoPool, no_gil);
  bind_graphs(m);
  bind_memory_history(m);
  bind_memory_pools(m);
  bind_pinned_memory(m);
  m.def("reset_peaks", [](c10::DeviceIndex device) { caching_allocator(device).reset_peaks(); });
  m.def("reset_accumulated", [](c10::DeviceIndex device) {
    caching_allocator(device).reset_accumulated();
  });
  m.def("set_memory_fraction", [](double fraction, c10::DeviceIndex device) {
    caching_allocator(device).set_memory_fraction(fraction);
  });
  m.def("fail_allocation", [](int64_t number, c10::DeviceIndex device) {
    caching_allocator(device).fail_allocation(number);
  });
  m.def("memory_fraction", [](c10::DeviceIndex device) {
    return caching_allocator(device).memory_fraction();
  });
  // Memory by its address, for caching_allocator_alloc.
  m.def("allocate_raw", allocate_raw);
  m.def("free_raw", [](uintptr_t address) { take_raw(address); });
  m.def("add_out_of_memory_observer", [](py::function observer) {
    // Never freed, since an observer cannot be removed (nor can it with CUDA's allocator).
    auto* kept = new py::function(std::move(observer));
    add_out_of_memory_observer([kept](c10::DeviceIndex device, const OutOfMemory& error) {
      py::gil_scoped_acquire gil;
      (*kept)(
          device, error.tried_bytes, error.allowed_bytes.value_or(error.total_bytes),
          error.free_bytes);
    });
  });
  m.def("resize_storage", [](const at::Tensor& tensor, size_t bytes) {
    resize_storage(tensor.storage(), bytes);
  });
  // Shared memory is named by (process id, file descriptor, bytes).
  m.def(
      "send_memory",
      [](const at::Tensor& tensor, double longest_wait_seconds) {
        const auto [process, file, bytes] = [&] {
          py::gil_scoped_release without_gil;
          return send_memory(
              *tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl(),
              std::chrono::duration<double>(longest_wait_seconds));
        }();
        return py::make_tuple(process, file, bytes);
      },
      py::arg("tensor"), py::arg("longest_wait_seconds") = 60.0);
  m.def("receive_memory", [](int64_t process, int file, size_t bytes, c10::DeviceIndex device) {
    return receive_memory({process, file, bytes}, device);
  });
  m.def("let_go", [](int64_t process, int file, size_t bytes) { let_go({process, file, bytes}); });
  m.def("collect_sent", &collect_sent, no_gil);
  m.def("count_pool_bytes", &count_pool_bytes);
  m.def("cublas_workspace_bytes", &cublas_workspace_bytes);
  m.def("set_cublas_workspace_bytes", &set_cublas_workspace_bytes);
  m.def("clear_cublas_workspaces", &clear_cublas_workspaces, no_gil);

  m.def("can_use_flash_attention", &can_use_flash_attention);
  m.def("can_use_efficient_attention", &can_use_efficient_attention);
  m.def("can_use_cudnn_attention", &can_use_cudnn_attention);

  m.def("default_generator", &default_generator, py::return_value_policy::copy);

  m.def("set_build_versions", [](long cuda, long cudnn) {
    set_build_versions({.cuda = cuda, .cudnn = cudnn});
  });
  m.def("set_clock_enabled", [](bool enabled) { Clock::get().set_enabled(enabled); });
  m.def("clock_enabled", [] { return Clock::get().enabled(); });
  m.def("host_seconds", [] { return Clock::get().host_seconds(); });
  m.def("read_clock", &read_clock);
  // A compiled graph runs a fused kernel operator by operator: the operators take no time, and then
  // the kernel does.
  m.def("pause_clock", &Clock::Pause::set);
  m.def("run_fused", [](c10::DeviceIndex device, double bytes_read, double bytes_written) {
    Clock::get().run(current_stream(device), memory_work(bytes_read, bytes_written));
  });
  m.def("begin_work_log", [] { Clock::get().begin_log(); });
  m.def("end_work_log", [] { return columns_of(Clock::get().end_log()); });
  py::enum_<CollectiveKind>(m, "CollectiveKind")
      .value("ALL_REDUCE", CollectiveKind::AllReduce)
      .value("BROADCAST", CollectiveKind::Broadcast)
      .value("REDUCE", CollectiveKind::Reduce)
      .value("ALL_GATHER", CollectiveKind::AllGather)
      .value("REDUCE_SCATTER", CollectiveKind::ReduceScatter)
      .value("ALL_TO_ALL", CollectiveKind::AllToAll)
      .value("GATHER", CollectiveKind::Gather)
      .value("SCATTER", CollectiveKind::Scatter)
      .value("BARRIER", CollectiveKind::Barrier)
      .value("SEND", CollectiveKind::Send)
      .value("RECEIVE", CollectiveKind::Receive);
  m.def(
      "collective_seconds",
      [](CollectiveKind kind, double bytes, const std::vector<int64_t>& positions) {
        std::vector<Place> places;
        for (const auto position : positions) {
          places.push_back({position});
        }
        return collective_seconds(kind, bytes, places);
      });
  // Runs `work`, a collective among devices of this process, and charges its modelled time.
  m.def(
      "run_collective",
      [](CollectiveKind kind, double bytes, const std::vector<int>& members,
         const py::function& work) {
        {
          const Clock::Pause pause;
          work();
        }
        const std::vector<c10::DeviceIndex> indices(members.begin(), members.end());
        Clock::get().collective(kind, bytes, indices);
      });
  m.def(
      "synchronize",
      [](int device) {
        c10::impl::VirtualGuardImpl(kDeviceType)
            .synchronizeDevice(static_cast<c10::DeviceIndex>(device));
      },
      no_gil);
  m.def("elapsed_milliseconds", [](uintptr_t start, uintptr_t end) {
    return elapsed_milliseconds(
        *reinterpret_cast<const Event*>(start), *reinterpret_cast<const Event*>(end));
  });
  // Returns the process id and file descriptor by which another process opens the event's shared
  // mark. An event that was not recorded stays unrecorded.
  m.def("share_event", [](uintptr_t address, bool was_recorded, bool can_be_shared) {
    auto& event = *reinterpret_cast<Event*>(address);
    if (event.shared == nullptr && can_be_shared) {
      event.shared = SharedMark::create();
      if (was_recorded) {
        event.shared->set(event.moment);
      }
    }
    // As with CUDA, only the process that created an event can share it.
    if (event.shared == nullptr || event.shared->file() < 0) {
      raise_cuda_error(CudaError::InvalidHandle);
    }
    return py::make_tuple(static_cast<int64_t>(getpid()), event.shared->file());
  });
  m.def("open_event", [](uintptr_t address, int64_t process, int file) {
    reinterpret_cast<Event*>(address)->shared = SharedMark::open(process, file);
  });
  m.def("run_for", [](double seconds) { Clock::get().run_for(current_stream(-1), seconds); });

  m.def(
      "watch_saved_values",
      [](std::vector<std::string> library_paths, const py::object& module_call,
         const py::object& report) {
        if (!Clock::get().record().is_on()) { // else a record has set the same
          set_origins({std::move(library_paths), module_call.ptr(), /*name_module=*/nullptr});
        }
        watch_saved_values(report.ptr());
      });
  m.def("note_assigned", &note_assigned);
  m.def("unwatch_saved_values", &unwatch_saved_values);

  bind_record(m);
  bind_collectives(m);
  for (const Extra& extra : extras()) {
    if (extra.bind != nullptr) {
      extra.bind(m);
    }
  }
}
