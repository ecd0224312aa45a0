// More than 400 lines: the methods that c10d::Backend prescribes, most of them a few lines long,
// and the two steps of every call, to check and to enqueue.

#ifdef USE_C10D_GLOO

#include "collectives/process_group.h"

#include "collectives/completion_hook.h"
#include "collectives/flight_recorder.h"
#include "collectives/host_bytes.h"
#include "collectives/live_groups.h"
#include "collectives/lone_rank.h"
#include "collectives/nan_check.h"
#include "collectives/nccl_memory.h"
#include "collectives/profiler_title.h"
#include "collectives/tensor_checks.h"
#include "device/device.h"
#include "hazards/write_watch.h"
#include "memory/known_values.h"
#include "time/clock.h"
#include "time/running_operator.h"
#include "time/streams.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Utils.hpp>

#include <unistd.h>

#include <algorithm>
#include <numeric>
#include <set>

namespace anyrig::virtual_gpu {
namespace {

NcclGroup::Connect& connect() {
  static auto* connect = new NcclGroup::Connect();
  return *connect;
}

std::atomic<uint64_t> next_uid{0};

FlightGroup flight_group_of(const NcclGroup& group) {
  FlightGroup result{
      group.uid(), group.options()->group_name, group.getGroupDesc(),
      group.options()->global_ranks_in_group};
  if (result.ranks.empty()) {
    result.ranks.resize(group.getSize());
    std::iota(result.ranks.begin(), result.ranks.end(), 0);
  }
  return result;
}

// Has `parts` report the start and the end of the transfer to the flight recorder.
void report_progress(const std::shared_ptr<Flight>& flight, Transfer::Parts& parts) {
  if (flight == nullptr) {
    return;
  }
  parts.body = [flight, body = std::move(parts.body)](
                   const CollectiveCall& call, const c10::Stream& stream, double free_at) {
    flight->begin();
    return body(call, stream, free_at);
  };
  parts.on_end = [flight, on_end = std::move(parts.on_end)](
                     const Transfer& transfer, bool is_success) {
    flight->end(is_success, transfer.seconds());
    if (on_end) {
      on_end(transfer, is_success);
    }
  };
}

} // namespace

struct NcclGroup::Communicators {
  Communicators(Connections connections, int rank, int size)
      : transport(std::move(connections.first)),
        roll_call(rank, size, std::move(connections.second)) {}

  // Returns the communicator of `by_peer` for messages with `peer`; creates it on first use.
  Communicator& get_or_create(std::map<int, std::unique_ptr<Communicator>>& by_peer, int peer) {
    std::lock_guard<std::mutex> guard(mutex);
    auto& communicator = by_peer[peer];
    if (!communicator) {
      communicator = std::make_unique<Communicator>();
    }
    return *communicator;
  }

  std::vector<Communicator*> all(bool with_senders) {
    std::vector<Communicator*> communicators{&collectives};
    std::lock_guard<std::mutex> guard(mutex);
    for (const auto& [peer, communicator] : receivers) {
      communicators.push_back(communicator.get());
    }
    if (with_senders) {
      for (const auto& [peer, communicator] : senders) {
        communicators.push_back(communicator.get());
      }
    }
    return communicators;
  }

  Transport transport; // this and the next outlive the communicators that use them
  RollCall roll_call;
  std::mutex mutex;
  Communicator collectives;
  std::map<int, std::unique_ptr<Communicator>> senders;
  std::map<int, std::unique_ptr<Communicator>> receivers;
  std::unique_ptr<CompletionHook> hook;
  NcclMemory memory;
};

NcclGroup::NcclGroup(
    Connections connections,
    int rank,
    int size,
    c10::intrusive_ptr<Options> options)
    : Backend(rank, size),
      options_(std::move(options)),
      uid_(next_uid++),
      is_timed_(c10d::getCvarBool({"TORCH_NCCL_ENABLE_TIMING", "NCCL_ENABLE_TIMING"}, false)),
      checks_nan_(c10d::getCvarBool({"TORCH_NCCL_NAN_CHECK"}, false)),
      is_alone_(connections.first == nullptr),
      process_(getpid()),
      communicators_(std::make_unique<Communicators>(std::move(connections), rank, size)) {
  if (is_alone_) {
    communicators_->memory.share_buffers(are_on_other_nodes(membership()));
  }
  add_live_group(this);
}

NcclGroup::~NcclGroup() {
  remove_live_group(this);
  if (getpid() != process_) {
    // In a forked child the threads do not exist, and their data may be in any state: leak both.
    (void)communicators_.release();
    return;
  }
  close("the process group was deleted");
}

void NcclGroup::set_connect(Connect connect) {
  virtual_gpu::connect() = std::move(connect);
}

NcclGroup::Connections NcclGroup::connect_ranks(
    const c10::intrusive_ptr<c10d::Store>& store,
    int rank,
    int size,
    const Options& options) {
  TORCH_CHECK_WITH(
      ValueError, device_count() > 0,
      "ProcessGroupNCCL is only supported with GPUs, no GPUs found!");
  if (options.split_from) {
    options.split_from->count_split();
  }
  auto connections = connect()(store, rank, size, options.timeout);
  if (connections.first == nullptr) {
    check_lone_group({rank, size, options.group_name, options.global_ranks_in_group});
  }
  return connections;
}

c10::intrusive_ptr<c10d::Backend> NcclGroup::transport() const {
  return communicators_->transport.gloo();
}

at::Tensor NcclGroup::allocateTensor(long size, at::TensorOptions options) {
  return at::empty({static_cast<int64_t>(size)}, options);
}

c10d::ErrorType NcclGroup::getError() {
  return c10d::ErrorType::SUCCESS;
}

c10::intrusive_ptr<c10d::Backend> NcclGroup::split(
    const c10::intrusive_ptr<c10d::Store>& store,
    const std::vector<int>& ranks,
    const c10::intrusive_ptr<c10d::Backend::Options>& options) {
  const auto position = std::find(ranks.begin(), ranks.end(), rank_);
  if (position == ranks.end()) {
    ++split_count_;
    return nullptr;
  }
  auto nccl_options = c10::dynamic_intrusive_pointer_cast<Options>(options);
  TORCH_CHECK(nccl_options, "ProcessGroupNCCL::split needs ProcessGroupNCCL.Options");
  nccl_options->split_from = c10::intrusive_ptr<NcclGroup>::reclaim_copy(this);
  nccl_options->global_ranks_in_group = global_ranks_of(ranks);
  const auto rank = static_cast<int>(position - ranks.begin());
  auto group = make<NcclGroup>(store, rank, static_cast<int>(ranks.size()), nccl_options);
  nccl_options->split_from.reset(); // the new group must not keep this one alive
  return group;
}

c10::intrusive_ptr<c10d::Backend> NcclGroup::merge(
    const c10::intrusive_ptr<c10d::Store>& store,
    const c10::intrusive_ptr<c10d::Backend::Options>& options,
    const int& rank,
    const int& size) {
  auto nccl_options = c10::dynamic_intrusive_pointer_cast<Options>(options);
  TORCH_CHECK(nccl_options, "ProcessGroupNCCL::merge needs ProcessGroupNCCL.Options");
  return make<NcclGroup>(store, rank, size, nccl_options);
}

void NcclGroup::check_device(c10::Device device) {
  if (const auto bound = getBoundDeviceId(); bound.has_value() && *bound != device) {
    C10_THROW_ERROR(
        ValueError,
        c10::str(
            "Attempt to perform collective on tensor not on device passed to init_process_group. "
            "Tensor found on device ",
            device, " but backend constrained to ", *bound));
  }
}

void NcclGroup::check_dtype(c10::ScalarType dtype) const {
  virtual_gpu::check_dtype(dtype);
}

size_t NcclGroup::count_message_peers() const {
  std::lock_guard<std::mutex> guard(communicators_->mutex);
  std::set<int> peers;
  for (const auto* by_peer : {&communicators_->senders, &communicators_->receivers}) {
    for (const auto& [peer, communicator] : *by_peer) {
      peers.insert(peer);
    }
  }
  return peers.size();
}

std::vector<uint64_t> NcclGroup::global_ranks_of(const std::vector<int>& ranks) const {
  const auto& own = options_->global_ranks_in_group;
  std::vector<uint64_t> result;
  for (const int rank : ranks) {
    result.push_back(own.empty() ? static_cast<uint64_t>(rank) : own.at(rank));
  }
  return result;
}

Membership NcclGroup::membership() const {
  return {rank_, size_, options_->group_name, options_->global_ranks_in_group};
}

std::vector<Place> NcclGroup::places(c10::DeviceIndex own) const {
  auto agreed = communicators_->roll_call.places();
  return agreed.empty() ? places_of(membership(), place_of(own)) : agreed;
}

CollectiveCall NcclGroup::describe_call(
    const Submission& submission,
    uint64_t sequence,
    const TimeExtension::Share& extension) const {
  const auto total_numel = [](const std::vector<at::Tensor>& tensors) {
    int64_t sum = 0;
    for (const auto& tensor : tensors) {
      sum += tensor.numel();
    }
    return sum;
  };
  auto limit = submission.limit == c10d::kUnsetTimeout ? options_->timeout : submission.limit;
  limit += extension.total;
  return {
      membership(),
      submission.op,
      sequence,
      total_numel(submission.inputs),
      total_numel(submission.outputs),
      limit};
}

c10::Stream NcclGroup::stream(c10::DeviceIndex device, int purpose) {
  std::lock_guard<std::mutex> guard(mutex_);
  const std::pair key(device, purpose);
  auto found = streams_.find(key);
  if (found == streams_.end()) {
    const int priority = options_->is_high_priority_stream ? kHighestPriority : 0;
    found = streams_.emplace(key, stream_from_pool(device, priority)).first;
  }
  return found->second;
}

double NcclGroup::launch_after_current(const c10::Stream& stream) {
  auto& clock = Clock::get();
  clock.wait_until(stream, clock.done_at(current_stream(stream.device_index())));
  return clock.launch_collective(stream);
}

c10::intrusive_ptr<c10d::Work> NcclGroup::enqueue(
    Communicator& communicator,
    Transfer::Parts parts,
    const Submission& submission,
    const std::string& title) {
  last_device_ = parts.stream.device_index();
  const auto& outputs = submission.outputs;
  if (C10_UNLIKELY(watches_writes())) {
    const RunningOperator running(title);
    for (const at::Tensor& output : outputs) {
      note_write(output);
    }
  }
  const bool is_message =
      submission.op == c10d::OpType::SEND || submission.op == c10d::OpType::RECV;
  report_progress(
      record_flight(
          flight_group_of(*this),
          {title, submission.inputs, outputs, parts.call.limit, is_message, is_timed_}),
      parts);
  auto transfer = std::make_shared<Transfer>(std::move(parts));
  auto work = c10::make_intrusive<TransferWork>(
      rank_, submission.op, TransferWork::Transfers{transfer}, outputs, is_timed_, title,
      submission.inputs);
  {
    std::lock_guard<std::mutex> guard(mutex_);
    if (coalescing_) {
      coalesced_.push_back(transfer);
      coalesced_outputs_.insert(coalesced_outputs_.end(), outputs.begin(), outputs.end());
    }
  }
  communicator.enqueue(std::move(transfer));
  work->end_record(); // as for NCCL, whose kernel is launched by now
  return work;
}

void NcclGroup::report_end(Transfer::Parts& parts, const TimeExtension::Share& extension) {
  auto* hook = communicators_->hook.get();
  if (hook != nullptr) {
    hook->begin();
  }
  const auto started = std::chrono::steady_clock::now();
  parts.on_end = [this, hook, started, extension](const Transfer& transfer, bool is_success) {
    extension_.end_share(extension);
    if (hook == nullptr) {
      return;
    }
    const auto& call = transfer.call();
    hook->end(
        is_success ? std::make_shared<c10d::WorkInfo>(
                         call.op, call.sequence, started, std::chrono::steady_clock::now(),
                         std::chrono::duration<float>(transfer.seconds()))
                   : nullptr);
  };
}

void NcclGroup::check_can_register(const MemoryPool& /*pool*/) const {
  if (!is_connected()) {
    C10_THROW_ERROR(
        DistBackendError,
        "NCCL communicator has not been initialized before mem pool creation. You can pass "
        "`device_id` to init_process_group -- one way of eager initialization -- to work around "
        "this issue");
  }
}

void NcclGroup::registerOnCompletionHook(
    std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) {
  TORCH_CHECK_WITH(
      DistBackendError, communicators_->hook == nullptr,
      "ProcessGroupNCCL OnCompletion hook already registered");
  TORCH_CHECK_WITH(
      DistBackendError, is_timed_.load(),
      "ProcessGroupNCCL OnCompletion hook requires recording start and end events which require "
      "setting TORCH_NCCL_ENABLE_TIMING environment variable. This is only available for NCCL "
      "version >= 2.4.");
  // When the group is destroyed, PyTorch waits for pending works only if this member is set.
  onCompletionHook_ = std::move(hook);
  communicators_->hook = std::make_unique<CompletionHook>(
      [this](CompletionHook::WorkInfoPointer info) { onCompletionHook_(std::move(info)); });
}

void NcclGroup::waitForPendingWorks() {
  if (communicators_->hook) {
    communicators_->hook->wait();
  }
}

c10::intrusive_ptr<c10d::Work> NcclGroup::submit(
    std::vector<Collective> collectives,
    const Submission& submission) {
  check_not_forked();
  if (estimated_seconds_.has_value()) {
    c10::intrusive_ptr<c10d::Work> work;
    for (const auto& collective : collectives) {
      work = estimate(
          collective.announcement.kind, collective.bytes, places(submission.device), submission);
    }
    return work;
  }
  communicators_->memory.connect(submission.op, rank_, size_, submission.device);
  const uint64_t sequence = ++sequence_;
  for (auto& collective : collectives) {
    collective.announcement.sequence = static_cast<int64_t>(sequence);
    collective.announcement.has_values = has_values(collective);
    if (const auto why = is_alone_ ? why_not_alike(collective.announcement) : std::nullopt) {
      ValuesInDoubt(submission.outputs).forget();
      raise_failure(describe_call(submission, sequence, {}), *why);
    }
    if (is_alone_ && needs_data_of_root(collective.announcement, rank_)) {
      for (const auto& output : submission.outputs) {
        forget_values(output, WhyUnknown::FromOutside);
      }
    }
    if (checks_nan_) {
      check_nan(collective, submission.device);
    }
  }
  const auto title =
      profiler_title(submission.op, collectives.front().announcement.kind, rank_, /*peer=*/-1);
  const double ready = collectives.front().announcement.ready;
  auto* transport = &communicators_->transport;
  auto* roll_call = &communicators_->roll_call;
  auto shared = std::make_shared<std::vector<Collective>>(std::move(collectives));
  auto tensors = submission.inputs;
  tensors.insert(tensors.end(), submission.outputs.begin(), submission.outputs.end());
  const auto extension = extension_.take_share();
  Transfer::Parts parts{
      describe_call(submission, sequence, extension),
      [transport, roll_call, shared, is_alone = is_alone_,
       results = ValuesInDoubt(submission.outputs)](
          const CollectiveCall& call, const c10::Stream& stream, double free_at) {
        // This local variable frees the rows, which hold tensor memory, even if the transfer fails.
        auto collectives = std::move(*shared);
        for (auto& collective : collectives) {
          free_at = is_alone ? perform_alone(collective, call, stream, free_at)
                             : perform(collective, *transport, *roll_call, call, stream, free_at);
          if (!collective.has_moved) {
            results.forget();
          }
        }
        return free_at;
      },
      stream(submission.device, kCollectives),
      std::move(tensors),
      submission.blocks_host,
      /*is_send=*/false,
      ready};
  report_end(parts, extension);
  return enqueue(communicators_->collectives, std::move(parts), submission, title);
}

c10::intrusive_ptr<c10d::Work> NcclGroup::submit_message(
    at::Tensor& tensor,
    int peer,
    c10d::OpType op) {
  check_not_forked();
  check_message(tensor);
  check_dtype(
      tensor.is_complex() ? c10::toRealValueType(tensor.scalar_type()) : tensor.scalar_type());
  TORCH_CHECK_WITH(ValueError, peer >= 0 && peer < size_, "Invalid rank ", peer);
  check_device(tensor.device());
  const bool is_send = op == c10d::OpType::SEND;
  const auto device = tensor.device().index();
  const Submission submission{op, device, {tensor}, {tensor}, c10d::kUnsetTimeout};
  const auto kind = is_send ? CollectiveKind::Send : CollectiveKind::Receive;
  const auto bytes = static_cast<int64_t>(tensor.numel() * tensor.element_size());
  if (estimated_seconds_.has_value()) {
    const auto all = places(device);
    return estimate(kind, static_cast<double>(bytes), {all[rank_], all[peer]}, submission);
  }
  if (is_alone_) {
    C10_THROW_ERROR(
        DistBackendError, why_no_message(membership(), is_send ? "send" : "recv", peer));
  }
  if (peer != rank_) {
    communicators_->memory.connect_peer(peer, device);
  } else {
    std::lock_guard<std::mutex> guard(mutex_);
    TORCH_CHECK_WITH(
        DistBackendError, coalescing_, "NCCL error: invalid usage\nLast error:\nTrying to ",
        is_send ? "send to self without a matching recv" : "recv to self without a matching send",
        "; put both into one batch_isend_irecv");
  }
  const auto on_stream = stream(device, 2 * peer + (is_send ? 1 : 0));
  auto message = std::make_shared<PointToPoint>();
  message->peer = peer;
  message->announcement.kind = kind;
  {
    const RunningOperator running(name_of(message->announcement.kind));
    message->announcement.ready = launch_after_current(on_stream);
  }
  message->announcement.place = place_of(device);
  message->bytes = bytes;
  message->row = is_send ? host_row(tensor) : row_to_fill(tensor);
  if (is_send && message->row.defined()) {
    message->row = message->row.clone();
  }
  if (is_send && checks_nan_) {
    check_nan(message->row, device);
  }
  message->announcement.has_values = message->bytes == 0 || message->row.defined();
  auto* transport = &communicators_->transport;
  const auto extension = extension_.take_share();
  Transfer::Parts parts{
      describe_call(submission, ++message_sequence_, extension),
      [transport, message, is_send, result = ValuesInDoubt({tensor})](
          const CollectiveCall& call, const c10::Stream& stream, double free_at) {
        auto local = std::move(*message); // frees the row, as above
        if (is_send) {
          return virtual_gpu::send(local, *transport, call, stream, free_at);
        }
        const double done = receive(local, *transport, call, stream, free_at);
        if (!local.has_arrived) {
          result.forget();
        }
        return done;
      },
      on_stream,
      is_send ? std::vector<at::Tensor>() : std::vector<at::Tensor>{tensor},
      /*blocks_host=*/false,
      is_send,
      message->announcement.ready};
  report_end(parts, extension);
  auto& communicator = communicators_->get_or_create(
      is_send ? communicators_->senders : communicators_->receivers, peer);
  const auto title = profiler_title(op, message->announcement.kind, rank_, peer);
  return enqueue(communicator, std::move(parts), submission, title);
}

c10::intrusive_ptr<c10d::Work> NcclGroup::send(
    std::vector<at::Tensor>& tensors,
    int peer,
    int /*tag*/) {
  check_single(tensors);
  return submit_message(tensors[0], peer, c10d::OpType::SEND);
}

c10::intrusive_ptr<c10d::Work> NcclGroup::recv(
    std::vector<at::Tensor>& tensors,
    int peer,
    int /*tag*/) {
  check_single(tensors);
  return submit_message(tensors[0], peer, c10d::OpType::RECV);
}

c10::intrusive_ptr<c10d::Work> NcclGroup::recvAnysource(
    std::vector<at::Tensor>& /*tensors*/,
    int /*tag*/) {
  C10_THROW_ERROR(NotImplementedError, "ProcessGroupNCCL does not support recvAnysource");
}

void NcclGroup::startTimeEstimate() {
  estimated_seconds_ = 0;
}

float NcclGroup::endTimeEstimate() {
  constexpr double kMicroseconds = 1e6;
  const double seconds = estimated_seconds_.value_or(0);
  estimated_seconds_.reset();
  return static_cast<float>(seconds * kMicroseconds);
}

c10::intrusive_ptr<c10d::Work> NcclGroup::estimate(
    CollectiveKind kind,
    double bytes,
    const std::vector<Place>& places,
    const Submission& submission) {
  *estimated_seconds_ += collective_seconds(kind, bytes, places);
  return c10::make_intrusive<TransferWork>(
      rank_, submission.op, TransferWork::Transfers{}, submission.outputs, is_timed_);
}

void NcclGroup::startCoalescing() {
  std::lock_guard<std::mutex> guard(mutex_);
  coalescing_ = true;
  coalesced_.clear();
  coalesced_outputs_.clear();
  start_coalescing_flights(uid_);
}

c10::intrusive_ptr<c10d::Work> NcclGroup::endCoalescing() {
  TransferWork::Transfers transfers;
  std::vector<at::Tensor> outputs;
  end_coalescing_flights(
      flight_group_of(*this),
      {"nccl:coalesced", {}, {}, options_->timeout, /*is_message=*/false, is_timed_});
  {
    std::lock_guard<std::mutex> guard(mutex_);
    coalescing_ = false;
    transfers.swap(coalesced_);
    outputs.swap(coalesced_outputs_);
  }
  if (transfers.empty() && !estimated_seconds_.has_value()) {
    return nullptr;
  }
  return c10::make_intrusive<TransferWork>(
      rank_, c10d::OpType::COALESCED, std::move(transfers), std::move(outputs), is_timed_);
}

void NcclGroup::join(c10::DeviceIndex device) {
  if (getpid() != process_) {
    return;
  }
  for (auto* communicator : communicators_->all(/*with_senders=*/false)) {
    for (const auto& transfer : communicator->transfers()) {
      if (transfer->stream().device_index() == device) {
        transfer->join_and_raise_unseen();
      }
    }
  }
}

void NcclGroup::shutdown() {
  shutdown_within(options_->timeout);
}

void NcclGroup::shutdown_within(std::chrono::milliseconds limit) {
  if (getpid() != process_) {
    return;
  }
  const auto deadline = std::chrono::steady_clock::now() + std::min(limit, options_->timeout);
  for (auto* communicator : communicators_->all(/*with_senders=*/true)) {
    communicator->drain(deadline);
  }
  close("the process group was destroyed");
}

void NcclGroup::abort() {
  if (getpid() == process_) {
    close("the process group was aborted");
  }
}

void NcclGroup::close(const std::string& reason) {
  communicators_->transport.close();
  communicators_->roll_call.close();
  for (auto* communicator : communicators_->all(/*with_senders=*/true)) {
    communicator->stop(reason);
  }
  communicators_->transport.disconnect();
}

} // namespace anyrig::virtual_gpu

#endif // USE_C10D_GLOO
