#include "time/record_bindings.h"

#include "memory/memory_curve.h"
#include "memory/peak_kinds.h"
#include "time/clock.h"
#include "time/origin.h"

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
  const auto doubles = [&](double Interval::*member) {
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
    of_peak = py::make_tuple(
        kinds->parameters, kinds->gradients, kinds->optimizer, kinds->activations);
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

} // namespace

void bind_record(py::module_& m) {
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
