// NCCL's flight recorder: the last calls of all groups of this process, with their state, for who
// looks for the rank that hangs (torch._C._distributed_c10d._dump_nccl_trace, and PyTorch's
// analyzer of it). What it writes is that of torch/csrc/distributed/c10d/FlightRecorderDetail.hpp,
// which includes what wheels do not bring.
//
//   scheduled ── a thread of the group begins ──> started ── it ends well ──> completed
//                 (told only by a group that times its work)
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

// A group as the recorder speaks of it.
struct FlightGroup {
  uint64_t uid;
  std::string name;
  std::string description;
  std::vector<uint64_t> ranks; // in the whole job
};

struct FlightCall {
  std::string title;
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> outputs;
  std::chrono::milliseconds limit;
  bool is_message; // a send or receive
  bool is_timed;
};

// How far a call is. Told by threads that need no GIL.
class Flight {
 public:
  virtual ~Flight() = default;
  virtual void begin() = 0;
  virtual void end(bool is_success, double seconds) = 0;
};

// Notes a call, unless TORCH_FR_BUFFER_SIZE (or TORCH_NCCL_TRACE_BUFFER_SIZE) is 0: then there is
// none. Of calls that are coalesced, all have one flight, that of the whole.
std::shared_ptr<Flight> record_flight(const FlightGroup& group, const FlightCall& call);
void start_coalescing_flights(uint64_t group);
void end_coalescing_flights(const FlightGroup& group, const FlightCall& call);

void bind_flight_recorder(py::module_& m);

} // namespace anyrig::virtual_gpu
