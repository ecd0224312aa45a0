#ifdef USE_C10D_GLOO

#include "collectives/flight_recorder.h"

#include <c10/util/ApproximateClock.h>
#include <c10/util/StringUtil.h>
#include <c10/util/thread_name.h>
#include <torch/csrc/distributed/c10d/Utils.hpp>
#include <torch/csrc/profiler/combined_traceback.h>

#include <pybind11/stl.h>

#include <algorithm>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

namespace torch {
// From torch/csrc/profiler/python/combined_traceback.h, which includes files that PyTorch's wheels
// do not ship.
std::vector<pybind11::object> py_symbolize(std::vector<CapturedTraceback*>& to_symbolize);
} // namespace torch

namespace anyrig::virtual_gpu {
namespace {

constexpr int kDefaultEntries = 2000;
constexpr double kMillisecondsInSecond = 1e3;

// The highest sequence number of a group's calls in each state; -1 if there is none.
struct GroupStatus {
  int64_t enqueued = -1;
  int64_t started = -1;
  int64_t completed = -1;
};

struct Progress {
  int64_t sequence = 0;
  uint64_t group = 0;
  bool is_timed = false;
  bool is_open = false; // calls are still being coalesced
  int pending = 0;
  double seconds = 0;
  bool has_failed = false;
  std::optional<int64_t> started_ns;
  std::optional<int64_t> ended_ns;

  bool has_ended() const { return !is_open && pending == 0; }
  bool is_completed() const { return has_ended() && !has_failed; }
};

struct Entry {
  int64_t id;
  uint64_t group;
  std::string group_name;
  std::string group_description;
  int64_t collective_sequence;
  int64_t message_sequence;
  int64_t operation;
  std::string title;
  std::shared_ptr<torch::CapturedTraceback> stack;
  int64_t created_ns;
  int64_t limit_ms;
  bool is_message;
  std::vector<std::vector<int64_t>> input_sizes, output_sizes;
  std::vector<std::string> input_dtypes, output_dtypes;
  std::string thread_id, thread_name;
  std::shared_ptr<Progress> progress; // null for a call inside a coalesced batch
};

struct GroupCounters {
  int64_t collectives = 0;
  int64_t messages = 0;
  int64_t operations = 0;
  std::shared_ptr<Progress> coalesced;
  bool coalesces_collectives = false;
  bool coalesces_messages = false;
};

class Recorder {
 public:
  // Never freed: it holds Python stack traces, which must not be freed while the process exits.
  static Recorder& get() {
    static auto* recorder = new Recorder();
    return *recorder;
  }

  bool enabled() const { return max_entries_ > 0; }

  std::shared_ptr<Progress> record(const FlightGroup& group, const FlightCall& call) {
    auto entry = make_entry(group, call);
    std::lock_guard<std::mutex> guard(mutex_);
    auto& counters = counters_[group.uid];
    ++counters.operations;
    bool& has_counted =
        call.is_message ? counters.coalesces_messages : counters.coalesces_collectives;
    if (counters.coalesced == nullptr || !has_counted) {
      ++(call.is_message ? counters.messages : counters.collectives);
      has_counted = counters.coalesced != nullptr;
    }
    auto progress = counters.coalesced;
    if (progress == nullptr) {
      progress = add_progress(group.uid, counters, call);
      entry.progress = progress;
    }
    ++progress->pending;
    add(std::move(entry), counters);
    return progress;
  }

  void start_coalescing(uint64_t group) {
    std::lock_guard<std::mutex> guard(mutex_);
    auto& counters = counters_[group];
    counters.coalesced = std::make_shared<Progress>();
    counters.coalesced->is_open = true;
  }

  void end_coalescing(const FlightGroup& group, const FlightCall& call) {
    auto entry = make_entry(group, call);
    std::lock_guard<std::mutex> guard(mutex_);
    auto& counters = counters_[group.uid];
    auto progress = std::move(counters.coalesced);
    counters.coalesced = nullptr;
    entry.is_message = counters.coalesces_messages && !counters.coalesces_collectives;
    const bool has_any = counters.coalesces_messages || counters.coalesces_collectives;
    counters.coalesces_messages = counters.coalesces_collectives = false;
    if (progress == nullptr || !has_any) {
      return;
    }
    FlightCall whole = call;
    whole.is_message = entry.is_message;
    const auto whole_progress = add_progress(group.uid, counters, whole);
    progress->group = whole_progress->group;
    progress->sequence = whole_progress->sequence;
    progress->is_timed = whole_progress->is_timed;
    progress->is_open = false;
    update_status(*progress);
    entry.progress = std::move(progress);
    add(std::move(entry), counters);
  }

  void begin(Progress& progress) {
    std::lock_guard<std::mutex> guard(mutex_);
    if (!progress.started_ns.has_value()) {
      progress.started_ns = c10::getTime();
    }
    update_status(progress);
  }

  void end(Progress& progress, bool is_success, double seconds) {
    std::lock_guard<std::mutex> guard(mutex_);
    progress.ended_ns = c10::getTime();
    progress.seconds += seconds;
    progress.has_failed = progress.has_failed || !is_success;
    --progress.pending;
    update_status(progress);
  }

  void reset() {
    std::deque<Entry> entries; // freed after the lock is released
    std::lock_guard<std::mutex> guard(mutex_);
    entries.swap(entries_);
    next_id_ = 0;
  }

  // Returns (configuration of the groups, status of the groups, calls) as Python objects.
  py::tuple dump(bool with_calls, bool with_stacks, bool only_active) {
    std::vector<Entry> entries;
    std::vector<Progress> states;
    std::map<uint64_t, GroupStatus> statuses;
    std::map<std::string, FlightGroup> groups;
    {
      py::gil_scoped_release no_gil;
      std::lock_guard<std::mutex> guard(mutex_);
      entries.assign(entries_.begin(), entries_.end());
      for (const auto& entry : entries) {
        states.push_back(entry.progress == nullptr ? Progress{} : *entry.progress);
      }
      statuses = statuses_;
      groups = groups_;
    }
    py::list calls;
    std::vector<torch::CapturedTraceback*> stacks;
    for (size_t i = 0; i < entries.size() && with_calls; ++i) {
      const bool has_progress = entries[i].progress != nullptr;
      if (only_active && has_progress && states[i].is_completed()) {
        continue;
      }
      calls.append(as_dict(entries[i], has_progress ? &states[i] : nullptr));
      stacks.push_back(entries[i].stack.get());
    }
    if (with_stacks && !stacks.empty()) {
      const auto frames = torch::py_symbolize(stacks);
      for (size_t i = 0; i < frames.size(); ++i) {
        calls[i]["frames"] = frames[i];
      }
    }
    return py::make_tuple(as_dict(groups), as_dict(statuses), calls);
  }

 private:
  Recorder()
      : max_entries_(
            c10d::getCvarInt(
                {"TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"},
                kDefaultEntries)),
        with_cpp_frames_(
            c10d::getCvarBool({"TORCH_FR_CPP_STACK", "TORCH_NCCL_TRACE_CPP_STACK"}, false)) {}

  Entry make_entry(const FlightGroup& group, const FlightCall& call) {
    Entry entry{};
    entry.group = group.uid;
    entry.group_name = group.name;
    entry.group_description = group.description;
    entry.title = call.title;
    entry.stack = torch::CapturedTraceback::gather(
        /*python=*/true, /*script=*/true, with_cpp_frames_);
    entry.created_ns = c10::getTime();
    entry.limit_ms = call.limit.count();
    entry.is_message = call.is_message;
    const auto describe = [](const std::vector<at::Tensor>& tensors, auto& sizes, auto& dtypes) {
      for (const auto& tensor : tensors) {
        sizes.push_back(tensor.sizes().vec());
        dtypes.emplace_back(c10::toString(tensor.scalar_type()));
      }
    };
    describe(call.inputs, entry.input_sizes, entry.input_dtypes);
    describe(call.outputs, entry.output_sizes, entry.output_dtypes);
    entry.thread_id = c10::str(std::this_thread::get_id());
    entry.thread_name = c10::getThreadName();
    std::lock_guard<std::mutex> guard(mutex_);
    groups_.insert({group.name, group});
    return entry;
  }

  std::shared_ptr<Progress> add_progress(
      uint64_t group,
      const GroupCounters& counters,
      const FlightCall& call) {
    auto progress = std::make_shared<Progress>();
    progress->group = group;
    progress->is_timed = call.is_timed;
    progress->sequence = call.is_message ? counters.messages : counters.collectives;
    statuses_[group].enqueued = progress->sequence;
    return progress;
  }

  void add(Entry entry, const GroupCounters& counters) {
    entry.id = next_id_++;
    entry.collective_sequence = counters.collectives;
    entry.message_sequence = counters.messages;
    entry.operation = counters.operations;
    entries_.push_back(std::move(entry));
    if (entries_.size() > static_cast<size_t>(max_entries_)) {
      entries_.pop_front();
    }
  }

  void update_status(const Progress& progress) {
    if (progress.is_open) {
      return;
    }
    auto& status = statuses_[progress.group];
    if (progress.is_timed && progress.started_ns.has_value()) {
      status.started = std::max(status.started, progress.sequence);
    }
    if (progress.is_completed()) {
      status.completed = std::max(status.completed, progress.sequence);
    }
  }

  static py::object int_or_none(std::optional<int64_t> value) {
    return value.has_value() ? py::object(py::int_(*value)) : py::object(py::none());
  }

  // The keys are in PyTorch's order, except for "frames": PyTorch puts them first.
  static py::dict as_dict(const Entry& entry, const Progress* progress) {
    const bool is_completed = progress != nullptr && progress->is_completed();
    const auto started =
        progress != nullptr && progress->is_timed ? progress->started_ns : std::nullopt;
    py::dict result;
    result["record_id"] = entry.id;
    result["pg_id"] = entry.group;
    result["process_group"] = py::make_tuple(entry.group_name, entry.group_description);
    result["thread_name"] = entry.thread_name;
    result["thread_id"] = entry.thread_id;
    result["collective_seq_id"] = entry.collective_sequence;
    result["p2p_seq_id"] = entry.message_sequence;
    result["op_id"] = entry.operation;
    result["profiling_name"] = entry.title;
    result["time_created_ns"] = entry.created_ns;
    if (is_completed && progress->is_timed) {
      result["duration_ms"] = progress->seconds * kMillisecondsInSecond;
    }
    result["input_sizes"] = entry.input_sizes;
    result["input_dtypes"] = entry.input_dtypes;
    result["output_sizes"] = entry.output_sizes;
    result["output_dtypes"] = entry.output_dtypes;
    result["state"] = is_completed ? "completed" : started.has_value() ? "started" : "scheduled";
    result["time_discovered_started_ns"] = int_or_none(started);
    result["time_discovered_completed_ns"] =
        int_or_none(is_completed ? progress->ended_ns : std::nullopt);
    result["retired"] = progress != nullptr && progress->has_ended();
    result["timeout_ms"] = entry.limit_ms;
    result["is_p2p"] = entry.is_message;
    return result;
  }

  static py::dict as_dict(const std::map<std::string, FlightGroup>& groups) {
    py::dict result;
    for (const auto& [name, group] : groups) {
      py::dict facts;
      facts["name"] = name;
      facts["desc"] = group.description;
      facts["ranks"] = c10::str('[', c10::Join(", ", group.ranks), ']');
      result[py::str(name)] = facts;
    }
    return result;
  }

  static py::dict as_dict(const std::map<uint64_t, GroupStatus>& statuses) {
    py::dict result;
    for (const auto& [uid, status] : statuses) {
      py::dict facts;
      facts["last_enqueued_collective"] = status.enqueued;
      facts["last_started_collective"] = status.started;
      facts["last_completed_collective"] = status.completed;
      result[py::str(std::to_string(uid))] = facts;
    }
    return result;
  }

  const int max_entries_;
  const bool with_cpp_frames_;
  std::mutex mutex_;
  std::deque<Entry> entries_;
  int64_t next_id_ = 0;
  std::map<uint64_t, GroupCounters> counters_;
  std::map<uint64_t, GroupStatus> statuses_;
  std::map<std::string, FlightGroup> groups_;
};

class RecordedFlight final : public Flight {
 public:
  explicit RecordedFlight(std::shared_ptr<Progress> progress) : progress_(std::move(progress)) {}

  void begin() override { Recorder::get().begin(*progress_); }
  void end(bool is_success, double seconds) override {
    Recorder::get().end(*progress_, is_success, seconds);
  }

 private:
  std::shared_ptr<Progress> progress_;
};

} // namespace

std::shared_ptr<Flight> record_flight(const FlightGroup& group, const FlightCall& call) {
  auto& recorder = Recorder::get();
  return recorder.enabled() ? std::make_shared<RecordedFlight>(recorder.record(group, call))
                            : nullptr;
}

void start_coalescing_flights(uint64_t group) {
  if (Recorder::get().enabled()) {
    Recorder::get().start_coalescing(group);
  }
}

void end_coalescing_flights(const FlightGroup& group, const FlightCall& call) {
  if (Recorder::get().enabled()) {
    Recorder::get().end_coalescing(group, call);
  }
}

void bind_flight_recorder(py::module_& m) {
  m.def("dump_flights", [](bool with_calls, bool with_stacks, bool only_active) {
    return Recorder::get().dump(with_calls, with_stacks, only_active);
  });
  m.def("reset_flights", [] {
    py::gil_scoped_release no_gil;
    Recorder::get().reset();
  });
}

} // namespace anyrig::virtual_gpu

#endif // USE_C10D_GLOO
