#include "graphs/cuda_graph.h"

#include "device/override.h"
#include "graphs/recording_key.h"
#include "memory/pools.h"
#include "memory/reused_memory.h"
#include "time/running_operator.h"
#include "time/streams.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <fstream>
#include <mutex>

namespace anyrig::virtual_gpu {
namespace {

// Before PyTorch 2.12, generators are registered with a graph before its capture begins, and all
// graphs of a generator share its two tensors. Later, each graph has its own tensors, created when
// the graph first draws.
constexpr bool kRegistersGenerators = !ANYRIG_TORCH_FROM(12);

// PyTorch raises the error of a failed capture before it gives up the graph's pool. The pool's
// memory is never released, and before PyTorch 2.13 the allocator counts the capture as underway
// from then on: it empties no cache when memory runs out.
constexpr bool kKeepsPoolOfFailedCapture = !ANYRIG_TORCH_FROM(14);
constexpr bool kKeepsRouteOfFailedCapture = !ANYRIG_TORCH_FROM(13);

bool is_graph_debugging = false;

struct Capturing {
  std::mutex mutex;
  std::map<CaptureId, CudaGraph*> graphs;

  static Capturing& get() {
    static auto* capturing = new Capturing();
    return *capturing;
  }
};

CaptureMode mode_of(const std::string& name) {
  if (name == "global") {
    return CaptureMode::Global;
  }
  if (name == "thread_local") {
    return CaptureMode::ThreadLocal;
  }
  TORCH_CHECK(
      name == "relaxed",
      "Unknown capture error mode. Expected `global`, `thread_local`, or `relaxed`, got ", name);
  return CaptureMode::Relaxed;
}

// Allocates 8 bytes outside the graph's pool.
c10::DataPtr allocate_outside_pool(c10::DeviceIndex device) {
  const RelaxedCalls relaxed;
  const c10::impl::VirtualGuardImpl streams(kDeviceType);
  const c10::StreamGuard guard(streams.getDefaultStream(c10::Device(kDeviceType, device)));
  return allocate(sizeof(int64_t), device);
}

// at::cuda::assertNotCapturing
void check_not_capturing(const c10::Stream& stream, const char* attempt) {
  TORCH_CHECK(
      capture_of(stream) == kNoCapture, attempt,
      " during CUDA graph capture. If you need this call to be captured, please file an issue. "
      "Current cudaStreamCaptureStatus: cudaStreamCaptureStatusActive");
}

void with_pools(c10::DeviceIndex device, const std::function<void(PrivatePools&)>& change) {
  caching_allocator(device).with_pools(change);
}

} // namespace

CudaGraph::CudaGraph(bool keep_graph)
    : keeps_graph_(keep_graph),
      stream_(current_stream(static_cast<c10::DeviceIndex>(current_device()))) {}

CudaGraph::~CudaGraph() {
  if (!forked_after_use()) { // a forked child may inherit held locks
    reset();
  }
}

void CudaGraph::capture_begin(std::optional<PoolId> pool, const std::string& mode_name) {
  const CaptureMode mode = mode_of(mode_name);
  TORCH_CHECK(
      !is_instantiated_,
      "This CUDAGraph instance already owns a captured graph. To capture a new graph, create a "
      "new instance.");
  const auto device = static_cast<c10::DeviceIndex>(current_device());
  const auto stream = current_stream(device);
  TORCH_CHECK(
      stream.id() != kDefaultStream,
      "CUDA graphs must be captured on a non-default stream. (However, after capture, it's ok to "
      "replay them on the default stream.)");
  stream_ = stream;
  if (kRegistersGenerators) {
    check_not_capturing(stream, "Cannot register the state during capturing stage.");
    register_generator(default_generator(device));
  }
  pool_ = pool.value_or(kNoPool) != kNoPool ? *pool : new_pool_id(/*is_user_created=*/false);
  capture_ = new_capture_id();
  with_pools(device, [&](PrivatePools& pools) {
    pools.begin_route(pool_, [device, capture = capture_](StreamKey id) {
      return capture_of(c10::Stream(c10::Stream::UNSAFE, c10::Device(kDeviceType, device), id)) ==
          capture;
    });
  });
  {
    auto& capturing = Capturing::get();
    std::lock_guard<std::mutex> guard(capturing.mutex);
    capturing.graphs[capture_] = this;
  }
  is_capturing_ = true;
  try {
    virtual_gpu::begin_capture(capture_, stream, mode);
  } catch (...) {
    is_capturing_ = false;
    with_pools(device, [&](PrivatePools& pools) {
      pools.end_route(pool_);
      pools.remove_user(pool_);
    });
    throw;
  }
  c10::impl::tls_set_dispatch_key_included(kRecordingKey, true);
}

void CudaGraph::capture_end() {
  capture_end_pre();
  if (!keeps_graph_) {
    instantiate();
  }
  capture_end_post();
}

void CudaGraph::capture_end_pre() {
  const auto device = stream_.device_index();
  TORCH_CHECK(
      current_stream(device) == stream_, "Capture must end on the same stream it began on.");
  finish_capture();
  is_captured_ = has_graph_ = true;
  if (recording_.size() == 0) {
    TORCH_WARN(
        "The CUDA Graph is empty. This usually means that the graph was attempted to be captured "
        "on wrong device or stream.");
  }
}

void CudaGraph::finish_capture() {
  c10::impl::tls_set_dispatch_key_included(kRecordingKey, false);
  restore_reused_memory(capture_); // first: `finish` may restore older contents of this memory
  recording_.finish();
  work_.clear();
  for (const auto& stream : captured_streams(capture_)) {
    work_.push_back(Clock::get().end_meter(stream));
  }
  {
    auto& capturing = Capturing::get();
    std::lock_guard<std::mutex> guard(capturing.mutex);
    capturing.graphs.erase(capture_);
  }
  is_capturing_ = false;
  const auto end_route = [&](PrivatePools& pools) { pools.end_route(pool_); };
  try {
    virtual_gpu::end_capture(capture_);
  } catch (...) {
    if (!kKeepsRouteOfFailedCapture) {
      with_pools(stream_.device_index(), end_route);
    }
    if (!kKeepsPoolOfFailedCapture) {
      with_pools(stream_.device_index(), [&](PrivatePools& pools) { pools.remove_user(pool_); });
    }
    recording_.clear();
    throw;
  }
  with_pools(stream_.device_index(), end_route);
}

void CudaGraph::capture_end_post() {
  has_graph_ = keeps_graph_ || is_graph_debugging;
}

void CudaGraph::instantiate() {
  TORCH_CHECK(is_captured_, "capture_end() must have been called before calling instantiate");
  TORCH_CHECK(
      !is_instantiated_ || keeps_graph_,
      "instantiate() is intended to be called by the user only when keep_graph=true");
  is_instantiated_ = true;
}

void CudaGraph::replay() {
  TORCH_CHECK(is_captured_, "Called CUDAGraph::replay without a preceding successful capture.");
  if (!is_instantiated_) {
    instantiate();
  }
  const auto device = stream_.device_index();
  const CurrentDevice guard(device);
  if (!shares_.empty()) {
    check_not_capturing(
        current_stream(device), "Cannot prepare for replay during capturing stage.");
  }
  check_not_captured(current_stream(device));
  std::map<const PhiloxState*, PhiloxPosition> starts;
  for (auto& [name, share] : shares_) {
    starts[name] = {share.state->seed, share.state->offset};
    share.state->offset += share.taken;
  }
  recording_.replay([&](const PhiloxState& state) { return starts.at(&state); });
  const RunningOperator running("CUDA graph");
  Clock::get().replay(current_stream(device), work_);
}

void CudaGraph::reset() {
  if (is_capturing_) { // destroyed during the capture
    try {
      finish_capture();
      is_captured_ = true;
    } catch (const c10::Error&) {
    }
  }
  shares_.clear();
  if (is_captured_) {
    with_pools(stream_.device_index(), [&](PrivatePools& pools) {
      pools.remove_user(pool_);
      for (const PoolId retained : retained_) {
        pools.remove_user(retained);
      }
    });
    retained_.clear();
    recording_.clear();
  }
  is_captured_ = has_graph_ = is_instantiated_ = false;
}

PoolId CudaGraph::pool() const {
  TORCH_CHECK(is_captured_, "Called CUDAGraph::pool() without a preceding successful capture.");
  return pool_;
}

std::vector<PoolId> CudaGraph::pools() const {
  std::vector<PoolId> pools{pool()};
  pools.insert(pools.end(), retained_.begin(), retained_.end());
  return pools;
}

void CudaGraph::retain_pool(PoolId pool) {
  if (pool == pool_ || std::find(retained_.begin(), retained_.end(), pool) != retained_.end()) {
    return;
  }
  with_pools(stream_.device_index(), [&](PrivatePools& pools) { pools.add_user(pool); });
  retained_.push_back(pool);
}

CudaGraph::Share& CudaGraph::share_of(const c10::intrusive_ptr<PhiloxState>& state) {
  const auto found = shares_.find(state.get());
  if (found != shares_.end()) {
    return found->second;
  }
  Share share{state, 0, start_of(*state, stream_.device_index())};
  return shares_.emplace(state.get(), std::move(share)).first->second;
}

std::shared_ptr<CudaGraph::StartTensors> CudaGraph::start_of(
    const PhiloxState& state,
    c10::DeviceIndex device) {
  if (!kRegistersGenerators) {
    return std::make_shared<StartTensors>(
        StartTensors{allocate_outside_pool(device), allocate_outside_pool(device)});
  }
  static std::mutex mutex;
  static auto* starts = new std::map<const PhiloxState*, std::weak_ptr<StartTensors>>();
  {
    const std::lock_guard<std::mutex> guard(mutex);
    if (auto start = (*starts)[&state].lock()) {
      return start;
    }
  }
  // Not under the lock, since an allocation may wait for other threads.
  constexpr size_t bytes = sizeof(int64_t);
  auto made = std::make_shared<StartTensors>(
      StartTensors{allocate(bytes, device), allocate(bytes, device)});
  const std::lock_guard<std::mutex> guard(mutex);
  auto& kept = (*starts)[&state];
  if (auto start = kept.lock()) {
    return start;
  }
  kept = made;
  return made;
}

void CudaGraph::begin_capture_to_if_node(const at::Tensor& predicate) {
  TORCH_CHECK(is_capturing_, "begin_capture_to_if_node() must be called during a capture");
  TORCH_CHECK(
      predicate.scalar_type() == at::kBool, "expected scalar type Bool but found ",
      predicate.scalar_type());
  TORCH_CHECK(predicate.numel() == 1, "a condition has to be one number, got ", predicate.sizes());
  recording_.begin_body(predicate);
}

void CudaGraph::end_capture_to_conditional_node() {
  recording_.end_body();
}

uint64_t CudaGraph::take_numbers(const c10::intrusive_ptr<PhiloxState>& state, uint64_t increment) {
  TORCH_CHECK(
      !kRegistersGenerators || shares_.count(state.get()) != 0,
      "Attempt to increase offset for a CUDA generator not in capture mode.");
  Share& share = share_of(state);
  const uint64_t start = share.taken;
  share.taken += increment;
  return start;
}

void CudaGraph::register_generator(const at::Generator& generator) {
  share_of(generator.get<VirtualGenerator>()->state());
}

void CudaGraph::enable_debug_mode() {
  is_graph_debugging = true;
}

void CudaGraph::debug_dump(const std::string& path) {
  if (!is_graph_debugging && !keeps_graph_) {
    TORCH_WARN("CUDA Graphs debug not enabled, set with [graph].enable_debug_mode()");
    return;
  }
  TORCH_WARN("DEBUG: calling debug_dump()");
  if (!has_graph_) {
    return;
  }
  TORCH_WARN("DEBUG: calling cudaGraphDebugDotPrint() with ", path);
  std::ofstream file(path);
  file << "digraph dot {\n";
  const auto names = recording_.names();
  for (size_t i = 0; i < names.size(); ++i) {
    file << "  node_" << i << " [label=\"" << names[i] << "\"];\n";
    if (i > 0) {
      file << "  node_" << i - 1 << " -> node_" << i << ";\n";
    }
  }
  file << "}\n";
}

uintptr_t CudaGraph::raw_graph() const {
  TORCH_CHECK(
      keeps_graph_,
      "You cannot access the raw cudaGraph_t instance unless CUDAGraph was initialized with "
      "keep_graph=true");
  TORCH_CHECK(
      has_graph_,
      "You cannot access the raw cudaGraph_t instance until capture_end() has been called");
  return capture_;
}

uintptr_t CudaGraph::raw_executable() const {
  TORCH_CHECK(
      is_instantiated_,
      "You cannot access the raw cudaGraphExec_t instance until instantiate() has been called");
  return capture_;
}

CudaGraph* CudaGraph::of_capture(CaptureId capture) {
  auto& capturing = Capturing::get();
  std::lock_guard<std::mutex> guard(capturing.mutex);
  const auto found = capturing.graphs.find(capture);
  return found == capturing.graphs.end() ? nullptr : found->second;
}

CudaGraph& CudaGraph::currently_capturing() {
  const auto capture = capture_of(current_stream(static_cast<c10::DeviceIndex>(current_device())));
  TORCH_CHECK(capture != kNoCapture, "The current stream is not currently capturing.");
  CudaGraph* graph = of_capture(capture);
  TORCH_CHECK(
      graph != nullptr,
      "get_currently_capturing_graph() can be used only between capture_begin() and "
      "capture_end(). Did you use a stream without making it depend upon the original stream used "
      "for capture?");
  return *graph;
}

} // namespace anyrig::virtual_gpu
