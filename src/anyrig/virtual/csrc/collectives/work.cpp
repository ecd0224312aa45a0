#ifdef USE_C10D_GLOO

#include "collectives/work.h"

#include "device/device.h"

#include <ATen/core/ivalue.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

namespace anyrig::virtual_gpu {

using c10::ivalue::Future;

TransferWork::TransferWork(
    int rank,
    c10d::OpType op,
    Transfers transfers,
    std::vector<at::Tensor> outputs,
    bool is_timed)
    : Work(rank, op),
      transfers_(std::move(transfers)),
      outputs_(std::move(outputs)),
      is_timed_(is_timed) {}

TransferWork::TransferWork(
    int rank,
    c10d::OpType op,
    Transfers transfers,
    std::vector<at::Tensor> outputs,
    bool is_timed,
    const std::string& title,
    const std::vector<at::Tensor>& inputs)
    : Work(rank, op, title.c_str(), inputs),
      transfers_(std::move(transfers)),
      outputs_(std::move(outputs)),
      is_timed_(is_timed) {}

void TransferWork::end_record() {
  if (recordFunctionEndCallback_) {
    recordFunctionEndCallback_();
    recordFunctionEndCallback_ = nullptr;
  }
}

TransferWork::~TransferWork() {
  if (forked_after_use()) {
    // A thread of the parent may have held the locks of the transfers, or waited for them.
    new Transfers(std::move(transfers_)); // NOLINT: never freed
    return;
  }
  for (const auto& transfer : transfers_) {
    transfer->release();
  }
}

bool TransferWork::isCompleted() {
  for (const auto& transfer : transfers_) {
    if (!transfer->has_ended()) {
      return false;
    }
  }
  return true;
}

bool TransferWork::isSuccess() const {
  return exception() == nullptr;
}

std::exception_ptr TransferWork::exception() const {
  for (const auto& transfer : transfers_) {
    if (auto error = transfer->error()) {
      return error;
    }
  }
  return nullptr;
}

bool TransferWork::wait(std::chrono::milliseconds timeout) {
  std::optional<Moment> deadline;
  if (timeout != kNoTimeout) {
    deadline = std::chrono::steady_clock::now() + timeout;
  }
  for (const auto& transfer : transfers_) {
    if (transfer->is_send() && !transfer->has_ended()) {
      continue;
    }
    if (!transfer->join(deadline)) {
      raise_failure(
          transfer->call(), c10::str("not done ", timeout.count(), " ms after wait() was called"));
    }
    transfer->finish_wait();
    transfer->release();
  }
  return true;
}

void TransferWork::synchronize() {
  wait(kNoTimeout);
}

void TransferWork::blockCurrentStream() {
  wait(kNoTimeout);
}

void TransferWork::abort() {
  TORCH_CHECK(false, "ProcessGroupNCCL::WorkNCCL::abort not implemented.");
}

std::vector<at::Tensor> TransferWork::result() {
  for (const auto& transfer : transfers_) {
    if (!transfer->is_send()) {
      transfer->join();
    }
  }
  return outputs_;
}

c10::intrusive_ptr<Future> TransferWork::getFuture() {
  std::vector<c10::Device> devices;
  if (!outputs_.empty()) {
    devices.push_back(outputs_[0].device());
  }
  auto future = c10::make_intrusive<Future>(
      c10::ListType::create(c10::TensorType::get()), std::move(devices));
  try {
    // The future records its end on the current stream. Make that the transfer's stream, so that
    // the caller's stream continues until it waits for the future, as in DDP's backward pass.
    c10::OptionalStreamGuard on_stream;
    if (!transfers_.empty()) {
      on_stream.reset_stream(transfers_.front()->stream());
    }
    wait(kNoTimeout);
    future->markCompleted(c10::IValue(outputs_));
  } catch (...) {
    future->setError(std::current_exception());
  }
  return future;
}

c10::intrusive_ptr<Future> TransferWork::getFutureResult() {
  for (const auto& transfer : transfers_) {
    transfer->join();
  }
  const auto result = isSuccess() ? c10d::WorkResult::SUCCESS : c10d::WorkResult::COMM_ERROR;
  auto future = c10::make_intrusive<Future>(c10::IntType::get());
  future->markCompleted(c10::IValue(static_cast<int64_t>(result)));
  return future;
}

float TransferWork::getDuration() const {
  TORCH_CHECK(is_timed_, "getDuration only works if timing was enabled");
  constexpr double kMilliseconds = 1e3;
  double seconds = 0;
  for (const auto& transfer : transfers_) {
    seconds += transfer->seconds();
  }
  return static_cast<float>(seconds * kMilliseconds);
}

uint64_t TransferWork::getSequencenumber() const {
  return transfers_.empty() ? 0 : transfers_.front()->call().sequence;
}

} // namespace anyrig::virtual_gpu

#endif // USE_C10D_GLOO
