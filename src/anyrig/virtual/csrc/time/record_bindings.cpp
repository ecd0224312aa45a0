#include "time/record_bindings.h"

#include "memory/block_origins.h"
#include "memory/memory_curve.h"
#include "memory/peak_kinds.h"
#include "time/clock.h"
#include "time/origin.h"
#include "time/running_operator.h"

#include <pybind11/stl.h>
#include <torch/csrc/DynamicTypes.h>

#include <string>
#include <type_traits>
#include <vector>

namespace anyrig::virtual_gpu {
namespace {

namespace py = pybind11;

// Returns the raw bytes of one value per item, for array.array.
template <class Value, class Items, class Get>
py::bytes column_of(const Items& items, Get get) {
  std::string bytes;
  bytes.reserve(items.size() * sizeof(Value));
  for (const auto& item : items) {
    const auto value = static_cast<Value>(get(item));
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  return py::bytes(bytes);
}

py::dict intervals_of(const std::vector<Interval>& intervals) {
  const auto doubles = [&](double Interval::* member) {
    return column_of<double>(intervals, [member](const Interval& one) { return one.*member; });
  };
  const auto integers = [&](auto member) {
    return column_of<int64_t>(
        intervals, [member](const Interval& one) { return static_cast<int64_t>(one.*member); });
  };
  py::dict columns;
  columns["begin"] = doubles(&Interval::begin);
  columns["end"] = doubles(&Interval::end);
  columns["bytes"] = doubles(&Interval::bytes);
  columns["launch"] = integers(&Interval::launch);
  columns["flow"] = integers(&Interval::flow);
  columns["track"] = integers(&Interval::track);
  columns["name"] = integers(&Interval::name);
  columns["nodes"] = integers(&Interval::nodes);
  columns["kind"] = integers(&Interval::kind);
  columns["cause"] = integers(&Interval::cause);
  columns["line"] =
      column_of<int64_t>(intervals, [](const Interval& one) { return one.origin.line; });
  columns["module"] =
      column_of<int64_t>(intervals, [](const Interval& one) { return one.origin.module; });
  return columns;
}

// Returns a dict: `first`, the number of the first interval; `dropped_any`, whether older ones were
// dropped; `intervals`, their columns as raw bytes;
// `tracks`, (device, stream, in a backward pass), where the device of the host is -1; `names`;
// `lines`, (file, number); `modules`.
py::dict read_record() {
  std::vector<Interval> intervals;
  std::vector<RecordedTrack> tracks;
  std::vector<std::string> names;
  int64_t first = 0;
  bool dropped_any = false;
  {
    py::gil_scoped_release without_gil;
    Clock::get().with_record([&](const Record& record) {
      intervals.assign(record.intervals().begin(), record.intervals().end());
      tracks = record.tracks();
      names = record.names();
      first = record.first();
      dropped_any = record.dropped_any();
    });
  }
  py::list of_tracks;
  for (const auto& track : tracks) {
    of_tracks.append(py::make_tuple(track.device, track.stream, track.in_backward));
  }
  py::dict result;
  result["first"] = first;
  result["dropped_any"] = dropped_any;
  result["intervals"] = intervals_of(intervals);
  result["tracks"] = of_tracks;
  result["names"] = names;
  result["lines"] = origin_lines();
  result["modules"] = origin_modules();
  return result;
}

py::tuple tuple_of(const MemorySample& sample) {
  return py::make_tuple(
      sample.seconds, sample.tensor_bytes, sample.workspace_bytes, sample.cached_bytes,
      sample.context_bytes, sample.collective_bytes, sample.mapped_bytes);
}

// Returns (the peak, the samples, the kinds of tensors at the peak), each sample as in MemorySample,
// the kinds as in PeakKinds, or None; None if `device` was not used.
py::object read_memory_curve(c10::DeviceIndex device) {
  const MemoryCurve curve = memory_curve(device);
  if (curve.samples.empty()) {
    return py::none();
  }
  py::list samples;
  for (const auto& sample : curve.samples) {
    samples.append(tuple_of(sample));
  }
  const auto kinds = peak_kinds(device);
  py::object of_peak = py::none();
  if (kinds.has_value()) {
    of_peak =
        py::make_tuple(kinds->parameters, kinds->gradients, kinds->optimizer, kinds->activations);
  }
  return py::make_tuple(tuple_of(curve.peak), samples, of_peak);
}

std::vector<c10::Storage> storages_in(const py::list& storages) {
  std::vector<c10::Storage> found;
  for (const auto& storage : storages) {
    found.push_back(torch::createStorage(storage.ptr()));
  }
  return found;
}

// Returns (file, number, function); None if unknown.
py::object origin_line(int32_t line) {
  if (line < 0) {
    return py::none();
  }
  const auto index = static_cast<size_t>(line);
  const auto& [file, number] = origin_lines()[index];
  return py::make_tuple(file, number, origin_functions()[index]);
}

// Returns a name; None outside modules, or if unknown.
py::object origin_module(int32_t module) {
  return module < 0 ? py::object(py::none())
                    : py::str(origin_modules()[static_cast<size_t>(module)]);
}

// Returns (address, line, module, backward passes begun, whether gradients were enabled, whether it is
// a workspace) of each block in use.
py::list read_block_origins(c10::DeviceIndex device) {
  py::list blocks;
  for (const auto& segment : caching_allocator(device).snapshot()) {
    for (const auto& part : segment.parts) {
      if (part.allocated) {
        blocks.append(
            py::make_tuple(
                part.address, origin_line(part.line), origin_module(part.module),
                part.backward_passes, part.in_grad_mode, part.is_workspace));
      }
    }
  }
  return blocks;
}

// Calls `observer` with (device, bytes of the request in whole blocks, free bytes of the device, line,
// module, name of the operator), the name being empty for an operator that only allocates.
void watch_refusals(
    std::vector<std::string> library_paths,
    const py::object& module_call,
    const py::object& name_module,
    py::function observer) {
  set_origins({std::move(library_paths), module_call.ptr(), name_module.ptr()});
  // Never freed: another thread may be calling it when the watch ends.
  auto* kept = new py::function(std::move(observer));
  watch_block_origins([kept](c10::DeviceIndex device, const OutOfMemory& error) {
    py::gil_scoped_acquire gil;
    const Origin origin = find_origin();
    (*kept)(
        device, error.rounded_bytes, error.free_bytes, origin_line(origin.line),
        origin_module(origin.module), std::string(RunningOperator::name()));
  });
}

} // namespace

void bind_record(py::module_& m) {
  m.def("watch_refusals", &watch_refusals);
  m.def("stop_watching_refusals", [] { watch_block_origins({}); });
  m.def("read_block_origins", &read_block_origins);
  m.def(
      "begin_record",
      [](std::vector<std::string> library_paths, const py::object& module_call,
         const py::object& name_module) {
        set_origins({std::move(library_paths), module_call.ptr(), name_module.ptr()});
        Clock::get().with_record([](Record& record) { record.begin(); });
        watch_memory(true);
      });
  m.def("end_record", [] {
    Clock::get().with_record([](Record& record) { record.end(); });
    watch_memory(false);
  });
  m.def("is_recording", [] { return Clock::get().record().is_on(); });
  // Returns the time at which the host and all work launched so far are done.
  m.def("done_seconds", [] { return Clock::get().done_seconds(); });
  m.def("forget_nodes", &forget_nodes);
  m.def("note_update", &note_update);
  m.def("has_open_peak", &has_open_peak);
  // The arguments are lists of torch.UntypedStorage.
  m.def(
      "close_peaks",
      [](const py::list& parameters, const py::list& gradients, const py::list& optimizer) {
        close_peaks({storages_in(parameters), storages_in(gradients), storages_in(optimizer)});
      });
  m.def("read_record", &read_record);
  m.def("read_memory_curve", &read_memory_curve);
}

} // namespace anyrig::virtual_gpu
