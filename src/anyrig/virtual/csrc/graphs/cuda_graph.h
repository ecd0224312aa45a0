// torch.cuda.CUDAGraph: captures the work of a stream and replays it as one launch.
//
// Source: aten/src/ATen/cuda/CUDAGraph.cpp and CUDAGeneratorImpl.cpp, 2.13. From 2.14, a capture
// ends in two steps.
#pragma once

#include "graphs/recording.h"
#include "memory/memory.h"
#include "time/capture.h"

#include <ATen/core/Generator.h>

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
  // The two steps of capture_end: the first ends the capture, the second frees the graph if it is
  // not kept.
  void capture_end_pre();
  void capture_end_post();
  void instantiate();
  void replay();
  void reset();

  PoolId pool() const;
  std::vector<PoolId> pools() const;
  // Keeps `pool` alive as long as the graph, in addition to the graph's own pool.
  void retain_pool(PoolId pool);

  // Work captured between these calls runs in a replay only if `predicate` is true at that point.
  void begin_capture_to_if_node(const at::Tensor& predicate);
  void end_capture_to_conditional_node();

  // Reserves numbers for a captured launch and returns their offset in the graph's share.
  uint64_t take_numbers(const c10::intrusive_ptr<PhiloxState>& state, uint64_t increment);
  void register_generator(const at::Generator& generator);

  bool is_instantiated() const { return is_instantiated_; }
  void enable_debug_mode();
  void debug_dump(const std::string& path);
  // There is no cudaGraph_t; these return a unique nonzero number.
  uintptr_t raw_graph() const;
  uintptr_t raw_executable() const;

  Recording& recording() { return recording_; }

  // Returns the graph of an ongoing capture; null if there is none.
  static CudaGraph* of_capture(CaptureId capture);
  // Returns the graph into which the current stream is captured. Raises RuntimeError if there is
  // none.
  static CudaGraph& currently_capturing();

 private:
  // The two small tensors that pass the start of a generator's numbers to a replay's kernels on a
  // GPU. Here they only occupy memory.
  struct StartTensors {
    c10::DataPtr seed;
    c10::DataPtr offset;
  };
  // The numbers that a graph takes from one generator at each replay.
  struct Share {
    c10::intrusive_ptr<PhiloxState> state;
    uint64_t taken = 0;
    std::shared_ptr<StartTensors> start;
  };

  // Ends the capture. Raises if it failed.
  void finish_capture();
  Share& share_of(const c10::intrusive_ptr<PhiloxState>& state);
  static std::shared_ptr<StartTensors> start_of(const PhiloxState& state, c10::DeviceIndex device);

  bool keeps_graph_;
  bool is_capturing_ = false; // a capture is in progress
  bool is_captured_ = false;
  bool has_graph_ = false;
  bool is_instantiated_ = false;
  CaptureId capture_ = kNoCapture;
  c10::Stream stream_;
  PoolId pool_ = kNoPool;
  std::vector<PoolId> retained_;
  Recording recording_;
  std::map<const PhiloxState*, Share> shares_;
  std::vector<CapturedWork> work_; // of each captured stream
};

} // namespace anyrig::virtual_gpu
