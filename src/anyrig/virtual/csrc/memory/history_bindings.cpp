#include "memory/history_bindings.h"

#include "device/override.h"
#include "memory/allocator_options.h"
#include "memory/memory.h"
#include "memory/stacks.h"
#include "time/streams.h"

#include <torch/csrc/profiler/combined_traceback.h>
#include <torch/csrc/utils/pybind.h>

#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>
#include <vector>

namespace torch {
// Declared here because torch/csrc/profiler/python/combined_traceback.h includes headers that
// wheels do not contain.
std::vector<pybind11::object> py_symbolize(std::vector<CapturedTraceback*>& to_symbolize);
} // namespace torch

namespace anyrig::virtual_gpu {
namespace {

uintptr_t handle_of_key(StreamKey stream, int device) {
  return handle_of(
      c10::Stream(
          c10::Stream::UNSAFE, c10::Device(kDeviceType, static_cast<c10::DeviceIndex>(device)),
          stream));
}

// In the order of TraceAction.
constexpr std::array<const char*, 9> kActionNames = {
    "alloc",         "free_requested", "free_completed",
    "segment_alloc", "segment_free",   "segment_map",
    "segment_unmap", "snapshot",       "oom"};

TraceAction action_of(const std::string& name) {
  const auto found = std::find(kActionNames.begin(), kActionNames.end(), name);
  TORCH_CHECK(found != kActionNames.end(), "Unknown TraceEntry action: ", name);
  return static_cast<TraceAction>(found - kActionNames.begin());
}

// Converts stacks to lists of frames, all together at the end, which is faster.
class Frames {
 public:
  // Sets `entry["frames"]` to the frames of `context` when `resolve` is called. Without a context,
  // a segment and a block have no frames, and an entry of a trace does not have the key.
  void set_later(py::dict entry, const Context& context, bool is_of_trace = false) {
    if (!is_of_trace) {
      entry["frames"] = py::list();
    }
    if (context != nullptr) {
      stacks_.push_back(static_cast<torch::CapturedTraceback*>(context.get()));
      kept_.push_back(context);
      entries_.push_back(std::move(entry));
    }
  }

  void resolve() {
    if (stacks_.empty()) {
      return;
    }
    const auto frames = torch::py_symbolize(stacks_);
    for (size_t i = 0; i < entries_.size(); ++i) {
      entries_[i]["frames"] = frames[i];
    }
  }

 private:
  std::vector<torch::CapturedTraceback*> stacks_;
  std::vector<Context> kept_;
  std::vector<py::dict> entries_;
};

py::tuple as_tuple(PoolId pool) {
  return py::make_tuple(pool.first, pool.second);
}

py::list blocks_of(const SegmentSnapshot& segment, Frames& frames) {
  py::list blocks;
  for (const auto& part : segment.parts) {
    py::dict block;
    block["address"] = part.address;
    if (part.allocated && part.data_address != 0 && part.data_address != part.address) {
      block["data_ptr"] = part.data_address; // a key of ours: on a GPU the two are equal
    }
    block["size"] = part.bytes;
    block["requested_size"] = part.requested_bytes;
    block["state"] = part.allocated ? "active_allocated"
        : part.active               ? "active_pending_free"
                                    : "inactive";
    frames.set_later(block, part.context);
    blocks.append(block);
  }
  return blocks;
}

py::list segments_of(PoolId only, Frames& frames) {
  py::list segments;
  for (int device = 0; device < device_count(); ++device) {
    auto& allocator = caching_allocator(static_cast<c10::DeviceIndex>(device));
    for (const auto& segment : allocator.snapshot(only)) {
      py::dict entry;
      entry["device"] = device;
      entry["address"] = segment.address;
      entry["stream"] = handle_of_key(segment.stream, device);
      entry["segment_type"] = segment.small ? "small" : "large";
      entry["segment_pool_id"] = as_tuple(segment.pool);
      entry["is_expandable"] = segment.expandable;
      entry["total_size"] = segment.total_bytes;
      entry["allocated_size"] = segment.allocated_bytes;
      entry["active_size"] = segment.active_bytes;
      entry["requested_size"] = segment.requested_bytes;
      entry["blocks"] = blocks_of(segment, frames);
      frames.set_later(entry, segment.context);
      segments.append(entry);
    }
  }
  return segments;
}

py::list traces_of(PoolId only, Frames& frames) {
  py::list devices;
  for (int device = 0; device < device_count(); ++device) {
    std::vector<TraceEntry> entries;
    caching_allocator(static_cast<c10::DeviceIndex>(device))
        .with_history([&](const MemoryHistory& history) { entries = history.entries(); });
    py::list trace;
    for (const TraceEntry& step : entries) {
      if (only != kNoPool && step.pool != only) {
        continue;
      }
      py::dict entry;
      entry["action"] = kActionNames[static_cast<size_t>(step.action)];
      entry[step.action == TraceAction::kOutOfMemory ? "device_free" : "addr"] = step.address;
      entry["size"] = step.bytes;
      entry["stream"] = handle_of_key(step.stream, device);
      entry["time_us"] = step.time_us;
      entry["compile_context"] = "N/A"; // as outside torch.compile
      entry["user_metadata"] = step.metadata;
      if (ANYRIG_TORCH_FROM(12)) {
        entry["pool_id"] = as_tuple(step.pool);
      }
      frames.set_later(entry, step.context, /*is_of_trace=*/true);
      trace.append(entry);
    }
    devices.append(trace);
  }
  return devices;
}

py::dict allocator_settings() {
  const AllocatorOptions options = allocator_options_from_environment();
  const char* text = std::getenv("PYTORCH_CUDA_ALLOC_CONF");
  py::dict divisions;
  for (size_t i = 0; i < options.roundup_power2_divisions.size(); ++i) {
    divisions[py::str(std::to_string(size_t{1} << i))] = options.roundup_power2_divisions[i];
  }
  py::dict settings;
  settings["PYTORCH_CUDA_ALLOC_CONF"] = text == nullptr ? "" : text;
  settings["max_split_size"] = static_cast<int64_t>(options.max_split_bytes);
  settings["garbage_collection_threshold"] = options.garbage_collection_threshold;
  settings["expandable_segments"] = options.expandable_segments;
  settings["roundup_power2_divisions"] = divisions;
  return settings;
}

py::dict memory_snapshot(PoolId only, bool with_traces) {
  Frames frames;
  py::dict result;
  // The traces first: the look at the segments adds an entry, which the next snapshot shows.
  result["device_traces"] = with_traces ? traces_of(only, frames) : py::list();
  result["segments"] = segments_of(only, frames);
  result["allocator_settings"] = allocator_settings();
  result["external_annotations"] = py::list();
  frames.resolve();
  return result;
}

void record_history(
    bool enabled,
    int stacks,
    bool cpp_frames,
    size_t max_entries,
    bool clear,
    const std::vector<std::string>& skipped) {
  HistoryOptions options;
  options.enabled = enabled;
  options.max_entries = std::max<size_t>(max_entries, 1);
  options.stacks = enabled ? static_cast<RecordStacks>(stacks) : RecordStacks::kNever;
  for (const auto& name : skipped) {
    options.skipped.push_back(action_of(name));
  }
  record_stacks(options.stacks, cpp_frames, enabled);
  for (int device = 0; device < device_count(); ++device) {
    caching_allocator(static_cast<c10::DeviceIndex>(device))
        .with_history([&](MemoryHistory& history) {
          history.set_options(options);
          if (clear) {
            history.clear();
          }
        });
  }
}

void set_memory_metadata(const std::string& text) {
  MemoryHistory::metadata = text;
}

std::string memory_metadata() {
  return MemoryHistory::metadata;
}

// Returns the frames of the live allocation whose data pointer is `address`; None if it has none.
py::object allocation_traceback(uintptr_t address) {
  const Context context = stack_of_memory(address);
  if (context == nullptr) {
    return py::none();
  }
  Frames frames;
  py::dict entry;
  frames.set_later(entry, context);
  frames.resolve();
  return entry["frames"];
}

} // namespace

void bind_memory_history(pybind11::module_& module) {
  module.def("memory_snapshot", &memory_snapshot);
  module.def("record_history", &record_history);
  module.def("history_enabled", &history_enabled);
  module.def("set_memory_metadata", &set_memory_metadata);
  module.def("memory_metadata", &memory_metadata);
  module.def("allocation_traceback", &allocation_traceback);
}

} // namespace anyrig::virtual_gpu
