// NCCL's flight recorder: the last calls of all groups of this process and their states, to find
// the rank that hangs. torch._C._distributed_c10d._dump_nccl_trace returns them, and PyTorch's
// trace analyzer reads them. The entries are those of
// torch/csrc/distributed/c10d/FlightRecorderDetail.hpp; that header includes files that PyTorch's
// wheels do not ship.
//
//   scheduled ── a thread of the group begins ──> started ── success ──> completed
//                 (reported only by a group that times its work)
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/utils/pybind.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace anyrig::virtual_gpu {

// A process group, as the flight recorder describes it.
struct FlightGroup {
  uint64_t uid;
  std::string name;
  std::string description;
  std::vector<uint64_t> ranks; // global ranks
};

struct FlightCall {
  std::string title;
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> outputs;
  std::chrono::milliseconds limit;
  bool is_message; // a send or receive
  bool is_timed;
};

// The progress of a recorded call. Both methods may be called without the GIL.
class Flight {
 public:
  virtual ~Flight() = default;
  virtual void begin() = 0;
  virtual void end(bool is_success, double seconds) = 0;
};

// Records a call and returns its progress. Returns null if the recorder is off:
// TORCH_FR_BUFFER_SIZE (or TORCH_NCCL_TRACE_BUFFER_SIZE) is 0. Calls that are coalesced share one
// progress.
std::shared_ptr<Flight> record_flight(const FlightGroup& group, const FlightCall& call);
void start_coalescing_flights(uint64_t group);
void end_coalescing_flights(const FlightGroup& group, const FlightCall& call);

void bind_flight_recorder(py::module_& m);

} // namespace anyrig::virtual_gpu
