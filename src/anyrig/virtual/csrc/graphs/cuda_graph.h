// torch.cuda.CUDAGraph: captures what is done on a stream, and replays it as one launch.
//
// Source: aten/src/ATen/cuda/CUDAGraph.cpp and CUDAGeneratorImpl.cpp, 2.13 (in 2.14 and later the
// end of a capture has two steps).
#pragma once

#include "graphs/capture.h"
#include "graphs/recording.h"
#include "memory/memory.h"

#include <ATen/core/Generator.h>
#include <torch/csrc/utils/pybind.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace anyrig::virtual_gpu {

class CudaGraph {
 public:
  explicit CudaGraph(bool keep_graph);
  ~CudaGraph();
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;

  void capture_begin(std::optional<PoolId> pool, const std::string& mode);
  void capture_end();
  // The two steps of it: the stream is free again; nothing more will be read of the capture.
  void capture_end_pre();
  void capture_end_post();
  void instantiate();
  void replay();
  void reset();

  PoolId pool() const;
  std::vector<PoolId> pools() const;
  // Keeps one more pool as long as the graph.
  void retain_pool(PoolId pool);

  // What is captured in between runs if `predicate` is true when a replay comes to it.
  void begin_capture_to_if_node(const at::Tensor& predicate);
  void end_capture_to_conditional_node();

  // Takes numbers for a capture: returns where in the graph's share they start.
  uint64_t take_numbers(const c10::intrusive_ptr<PhiloxState>& state, uint64_t increment);
  void register_generator(const at::Generator& generator);

  bool is_instantiated() const { return instantiated_; }
  void enable_debug_mode();
  void debug_dump(const std::string& path);
  // There is no cudaGraph_t behind it: a number that is not zero.
  uintptr_t raw_graph() const;
  uintptr_t raw_executable() const;

  Recording& recording() { return recording_; }

  // The graph of a capture that is under way; null for none.
  static CudaGraph* of_capture(CaptureId capture);
  // The one that the current stream is captured into.
  static CudaGraph& currently_capturing();

 private:
  // As on a card, two small tensors tell the kernels of a replay where their numbers start.
  struct Start {
    c10::DataPtr seed;
    c10::DataPtr offset;
  };
  // A generator's numbers in this graph.
  struct Share {
    c10::intrusive_ptr<PhiloxState> state;
    uint64_t taken = 0;
    std::shared_ptr<Start> start;
  };

  // The capture is over; raises if it failed.
  void leave_capture();
  Share& share_of(const c10::intrusive_ptr<PhiloxState>& state);
  static std::shared_ptr<Start> start_of(const PhiloxState& state, c10::DeviceIndex device);

  bool keeps_graph_;
  bool captures_ = false; // under way
  bool captured_ = false;
  bool has_graph_ = false;
  bool instantiated_ = false;
  CaptureId capture_ = kNoCapture;
  c10::Stream stream_;
  PoolId pool_ = kNoPool;
  std::vector<PoolId> retained_;
  Recording recording_;
  std::map<const PhiloxState*, Share> shares_;
  double seconds_ = 0; // of the busiest stream
};

void bind_graphs(py::module& module);

} // namespace anyrig::virtual_gpu
