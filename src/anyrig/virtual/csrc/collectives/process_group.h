// The process group that replaces PyTorch's ProcessGroupNCCL.
//
//   a thread of the program              threads of the group (communicator.h)
//   checks, counts, enqueues  ───────>   one for collectives, in their order; one for the sends to
//   TransferWork::wait        <───────   each peer, and one for the receives from each peer
//
// A thread starts with the first transfer, and ends when it has had none for a while.
//
// Python sees this class as ProcessGroupNCCL (bindings.cpp). So torch.distributed constructs it,
// checks for its type and passes its options as it does for NCCL's own. nccl2_group.h derives the
// classes that PyTorch added in 2.14.
#pragma once

#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/message.h"
#include "collectives/time_extension.h"
#include "collectives/work.h"
#include "device/override.h"
#include "memory/pools.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <limits>
#include <map>
#include <memory>
#include <mutex>

namespace anyrig::virtual_gpu {

// ncclConfig_t, as torch.distributed passes it.
struct NcclConfig {
  static constexpr int kUndefined = std::numeric_limits<int>::min(); // NCCL_CONFIG_UNDEF_INT

  int blocking = kUndefined;
  int cga_cluster_size = kUndefined;
  int min_ctas = kUndefined;
  int max_ctas = kUndefined;
  int split_share = kUndefined;
  int traffic_class = kUndefined;
  int collnet_enable = kUndefined;
  int cta_policy = kUndefined;
  int nvls_ctas = kUndefined;
  int max_p2p_peers = kUndefined; // from PyTorch 2.14 on, as is the next
  std::optional<std::string> comm_name;
  std::optional<std::string> net_name;
};

class NcclGroup : public c10d::Backend {
 public:
  // ProcessGroupNCCL's default.
  static constexpr std::chrono::milliseconds kDefaultTimeout{10 * 60 * 1000};

  struct Options final : c10d::Backend::Options {
    explicit Options(bool is_high_priority_stream = false)
        : c10d::Backend::Options("nccl", kDefaultTimeout),
          is_high_priority_stream(is_high_priority_stream) {}

    c10::intrusive_ptr<c10d::Backend::Options> clone() const ANYRIG_OVERRIDE_FROM_2_14 {
      return c10::make_intrusive<Options>(*this);
    }

    bool is_high_priority_stream;
    NcclConfig config;
    c10::intrusive_ptr<NcclGroup> split_from;
    int64_t split_color = -2; // NCCL_SPLIT_NOCOLOR - 1
    // From PyTorch 2.15 on: the group is not split off another one, and not split before its first
    // call.
    bool lazy_init = false;
  };

  // A ProcessGroupGloo of the same ranks, and the sockets of a RollCall. Without a ProcessGroupGloo,
  // no other rank runs, and this rank answers its collectives by itself (lone_rank.h).
  using Connections = std::pair<c10::intrusive_ptr<c10d::Backend>, std::vector<int>>;

  NcclGroup(Connections connections, int rank, int size, c10::intrusive_ptr<Options> options);
  ~NcclGroup() override;

  // The function that connects the ranks. Python sets it.
  using Connect = std::function<Connections(
      const c10::intrusive_ptr<c10d::Store>& store,
      int rank,
      int size,
      std::chrono::milliseconds timeout)>;
  static void set_connect(Connect connect);
  static Connections connect_ranks(
      const c10::intrusive_ptr<c10d::Store>& store,
      int rank,
      int size,
      const Options& options);
  // Connects the ranks and returns a new group of class `Group`.
  template <class Group>
  static c10::intrusive_ptr<Group> make(
      const c10::intrusive_ptr<c10d::Store>& store,
      int rank,
      int size,
      c10::intrusive_ptr<Options> options) {
    auto connections = connect_ranks(store, rank, size, *options);
    return c10::make_intrusive<Group>(std::move(connections), rank, size, std::move(options));
  }

  const std::string getBackendName() const override { return "nccl"; }
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override { return options_; }
  const c10::intrusive_ptr<Options>& options() const { return options_; }
  c10::intrusive_ptr<c10d::Backend> transport() const;
  uint64_t uid() const { return uid_; }

  bool supportsSplitting() const override { return !options_->lazy_init || is_connected(); }
  bool supportsCoalescing() const override { return true; }
  bool supportsTensorAlloc(c10::DeviceIndex /*device*/) override { return true; }
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;
  c10d::ErrorType getError() override;

  // The number of groups that were split off this one.
  uint64_t split_count() const { return split_count_; }
  void count_split() { ++split_count_; }
  c10::intrusive_ptr<c10d::Backend> split(
      const c10::intrusive_ptr<c10d::Store>& store,
      const std::vector<int>& ranks,
      const c10::intrusive_ptr<c10d::Backend::Options>& options) override;
  c10::intrusive_ptr<c10d::Backend> merge(
      const c10::intrusive_ptr<c10d::Store>& store,
      const c10::intrusive_ptr<c10d::Backend::Options>& options,
      const int& rank,
      const int& size) override;

  void setTimeout(std::chrono::milliseconds timeout) override { options_->timeout = timeout; }
  void addEphemeralTimeout(const std::chrono::milliseconds& timeout) ANYRIG_OVERRIDE_FROM_2_14 {
    extension_.add(timeout);
  }

  // Whether the ranks have connected: with the first collective, or eagerly. NCCL creates its
  // communicator then.
  bool is_connected() const { return is_connected_ || last_device_ >= 0; }
  bool isInitialized() ANYRIG_OVERRIDE_FROM_2_15 { return is_connected(); }
  void eagerConnectSingleDevice(at::Device /*device*/) override { is_connected_ = true; }

  // Raises DistBackendError if a hook is already registered or TORCH_NCCL_ENABLE_TIMING is not set.
  void registerOnCompletionHook(
      std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) override;
  void waitForPendingWorks() override;
  void enableCollectivesTiming() override { is_timed_ = true; }

  // Checks that `pool` can be registered: raises DistBackendError unless the ranks have connected.
  // Nothing else is needed, since transfers treat registered memory like any other.
  void check_can_register(const MemoryPool& pool) const;

  // Turns the check of sent tensors on or off. A NaN is a device-side assert (nan_check.h).
  void set_nan_check(bool enabled) { checks_nan_ = enabled; }

  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return sequence_; }

  // Between these two calls, nothing is done: the seconds that the calls would take on the virtual
  // clock are added up. The second call returns them, in microseconds.
  bool supportsTimeEstimation() const override { return true; }
  void startTimeEstimate() ANYRIG_OVERRIDE_FROM_2_15;
  float endTimeEstimate() ANYRIG_OVERRIDE_FROM_2_15;

  void startCoalescing() override;
  c10::intrusive_ptr<c10d::Work> endCoalescing() override;

  c10::intrusive_ptr<c10d::Work> broadcast(
      std::vector<at::Tensor>& tensors,
      const c10d::BroadcastOptions& options) override;
  c10::intrusive_ptr<c10d::Work> allreduce(
      std::vector<at::Tensor>& tensors,
      const c10d::AllreduceOptions& options) override;
  c10::intrusive_ptr<c10d::Work> allreduce_sparse(
      std::vector<at::Tensor>& tensors,
      const c10d::AllreduceOptions& options) override;
  c10::intrusive_ptr<c10d::Work> allreduce_coalesced(
      std::vector<at::Tensor>& tensors,
      const c10d::AllreduceCoalescedOptions& options) override;
  c10::intrusive_ptr<c10d::Work> reduce(
      std::vector<at::Tensor>& tensors,
      const c10d::ReduceOptions& options) override;
  c10::intrusive_ptr<c10d::Work> allgather(
      std::vector<std::vector<at::Tensor>>& outputs,
      std::vector<at::Tensor>& inputs,
      const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> _allgather_base(
      at::Tensor& output,
      at::Tensor& input,
      const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> allgather_into_tensor_coalesced(
      std::vector<at::Tensor>& outputs,
      std::vector<at::Tensor>& inputs,
      const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> reduce_scatter(
      std::vector<at::Tensor>& outputs,
      std::vector<std::vector<at::Tensor>>& inputs,
      const c10d::ReduceScatterOptions& options) override;
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(
      at::Tensor& output,
      at::Tensor& input,
      const c10d::ReduceScatterOptions& options) override;
  c10::intrusive_ptr<c10d::Work> reduce_scatter_tensor_coalesced(
      std::vector<at::Tensor>& outputs,
      std::vector<at::Tensor>& inputs,
      const c10d::ReduceScatterOptions& options) override;
  c10::intrusive_ptr<c10d::Work> alltoall_base(
      at::Tensor& output,
      at::Tensor& input,
      std::vector<int64_t>& output_splits,
      std::vector<int64_t>& input_splits,
      const c10d::AllToAllOptions& options) override;
  c10::intrusive_ptr<c10d::Work> alltoall(
      std::vector<at::Tensor>& outputs,
      std::vector<at::Tensor>& inputs,
      const c10d::AllToAllOptions& options) override;
  c10::intrusive_ptr<c10d::Work> gather(
      std::vector<std::vector<at::Tensor>>& outputs,
      std::vector<at::Tensor>& inputs,
      const c10d::GatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> gather_single(
      at::Tensor& output,
      at::Tensor& input,
      const c10d::GatherOptions& options) ANYRIG_OVERRIDE_FROM_2_14;
  c10::intrusive_ptr<c10d::Work> scatter(
      std::vector<at::Tensor>& outputs,
      std::vector<std::vector<at::Tensor>>& inputs,
      const c10d::ScatterOptions& options) override;
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& options) override;

  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int peer, int tag) override;
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int peer, int tag) override;
  c10::intrusive_ptr<c10d::Work> recvAnysource(std::vector<at::Tensor>& tensors, int tag) override;

  // Blocks the host until this group's transfers of `device` have ended, sends excepted. Raises an
  // error that no thread has seen yet.
  void join(c10::DeviceIndex device);
  // Waits up to the group's timeout for pending transfers, then closes the group.
  void shutdown() override;
  // As `shutdown`, but waits no longer than `limit`.
  void shutdown_within(std::chrono::milliseconds limit);
  // Closes the group at once; pending transfers fail.
  void abort() override;

 protected:
  // Raises an error unless the group may use `device`.
  virtual void check_device(c10::Device device);
  // Raises an error for a dtype that NCCL does not move.
  virtual void check_dtype(c10::ScalarType dtype) const;
  // Returns the device of a barrier.
  virtual c10::DeviceIndex barrier_device(const c10d::BarrierOptions& options) const;
  // Returns the number of ranks with which this one has exchanged messages.
  size_t count_message_peers() const;
  void mark_connected() { is_connected_ = true; }
  // Returns the global ranks of `ranks` of this group.
  std::vector<uint64_t> global_ranks_of(const std::vector<int>& ranks) const;

  struct Submission {
    c10d::OpType op;
    c10::DeviceIndex device;
    std::vector<at::Tensor> inputs;
    std::vector<at::Tensor> outputs;
    std::chrono::milliseconds limit;
    bool blocks_host = false;
  };
  c10::intrusive_ptr<c10d::Work> submit(
      std::vector<Collective> collectives,
      const Submission& submission);
  Collective all_gather(const std::vector<at::Tensor>& outputs, const at::Tensor& input);

 private:
  struct Communicators;

  // Returns a collective on `device` with the fields set that every kind has.
  Collective begin(CollectiveKind kind, c10::DeviceIndex device);
  c10::intrusive_ptr<c10d::Work> submit_message(at::Tensor& tensor, int peer, c10d::OpType op);
  // Adds the seconds of a call to the estimate, and returns a work that has ended.
  c10::intrusive_ptr<c10d::Work> estimate(
      CollectiveKind kind,
      double bytes,
      const std::vector<Place>& places,
      const Submission& submission);
  c10::intrusive_ptr<c10d::Work> enqueue(
      Communicator& communicator,
      Transfer::Parts parts,
      const Submission& submission,
      const std::string& title);
  // Has `parts` report the end of the transfer to the completion hook and to the time extension.
  void report_end(Transfer::Parts& parts, const TimeExtension::Share& extension);

  Collective all_reduce(const at::Tensor& tensor, const c10d::ReduceOp& op);
  // Checks and returns the only tensor of a list. Its dtype must be one that NCCL moves; complex
  // dtypes count as their real parts.
  const at::Tensor& check_movable(const std::vector<at::Tensor>& tensors) const;
  Collective all_gather_into(const at::Tensor& output, const at::Tensor& input);
  Collective reduce_scatter(
      const at::Tensor& output,
      const std::vector<at::Tensor>& inputs,
      const c10d::ReduceOp& op);
  Collective reduce_scatter_from(
      const at::Tensor& output,
      const at::Tensor& input,
      const c10d::ReduceOp& op);
  c10::intrusive_ptr<c10d::Work> all_to_all(
      const std::vector<at::Tensor>& inputs,
      const std::vector<at::Tensor>& outputs,
      const Submission& submission);

  Membership membership() const;
  // The place of each rank. Before the first collective, rank n is assumed to use GPU n of the rig.
  std::vector<Place> places(c10::DeviceIndex own) const;
  CollectiveCall describe_call(
      const Submission& submission,
      uint64_t sequence,
      const TimeExtension::Share& extension) const;
  // NCCL runs on its own streams: one for collectives, and one for each peer and direction.
  static constexpr int kCollectives = -1;
  c10::Stream stream(c10::DeviceIndex device, int purpose);
  // Launches a kernel on `stream` behind the current stream's work. Returns the virtual time at
  // which it can start.
  static double launch_after_current(const c10::Stream& stream);
  void close(const std::string& reason);

  c10::intrusive_ptr<Options> options_;
  uint64_t uid_;
  uint64_t split_count_ = 0;
  std::atomic<uint64_t> sequence_{0};
  std::atomic<uint64_t> message_sequence_{0};
  TimeExtension extension_;
  std::atomic<bool> is_connected_{false};
  std::atomic<bool> is_timed_;
  std::atomic<bool> checks_nan_;
  std::optional<double> estimated_seconds_; // set between the two calls of an estimate
  // The device of the last call, for barriers that name none; -1 before the first call.
  std::atomic<int> last_device_{-1};

  std::mutex mutex_;
  std::map<std::pair<c10::DeviceIndex, int>, c10::Stream> streams_;
  bool coalescing_ = false;
  TransferWork::Transfers coalesced_;
  std::vector<at::Tensor> coalesced_outputs_;

  // Whether no other rank runs.
  bool is_alone_;

  // The process that made the group. A forked child has none of its threads and must not touch
  // them.
  int process_;
  std::unique_ptr<Communicators> communicators_;
};

} // namespace anyrig::virtual_gpu
