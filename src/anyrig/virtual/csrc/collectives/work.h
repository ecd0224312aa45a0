// What a collective returns: torch.distributed.Work, with the meaning it has for CUDA's streams.
//
// On a card, wait() makes the current stream wait and returns; what comes later on that stream
// finds the data. On a virtual device an operator is computed on the host, at the moment it is
// called, so the host must wait in its place: wait() returns when the transfer is done, and moves
// the current stream, not the host, to its end on the virtual clock. So does everything else by
// which a program may come to look at the data: result(), get_future() (whose callbacks run at
// once, in the thread that adds them, as NCCL's do), and torch.cuda.synchronize(). Data that is
// looked at without any of these is a race on a card, and it is one here.
//
// A send is the exception. Its data was copied when it was called, so the program may go on and
// nothing waits: two ranks that first send to each other and then receive go on, as with NCCL.
//
// An error is raised in the thread that waits. NCCL's watchdog would end the process instead, as a
// kernel that hangs leaves it no choice.
#pragma once

#include "collectives/transfer.h"

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <memory>
#include <string>
#include <vector>

namespace anyrig::virtual_gpu {

// Of one transfer, or of several that were coalesced.
class TransferWork final : public c10d::Work {
 public:
  using Transfers = std::vector<std::shared_ptr<Transfer>>;

  TransferWork(
      int rank,
      c10d::OpType op,
      Transfers transfers,
      std::vector<at::Tensor> outputs,
      bool is_timed);
  // As above, and the profiler, if one runs, takes `title` down as begun, with the sizes of what is
  // given, until `end_record`.
  TransferWork(
      int rank,
      c10d::OpType op,
      Transfers transfers,
      std::vector<at::Tensor> outputs,
      bool is_timed,
      const std::string& title,
      const std::vector<at::Tensor>& inputs);
  void end_record();
  ~TransferWork() override;

  const Transfers& transfers() const { return transfers_; }

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  // Raises DistBackendError.
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override;
  void blockCurrentStream() override;
  void abort() override;
  std::vector<at::Tensor> result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  // In milliseconds of the virtual clock; raises RuntimeError unless the group times its work.
  float getDuration() const override;
  uint64_t getSequencenumber() const override;

 private:
  Transfers transfers_;
  std::vector<at::Tensor> outputs_;
  bool is_timed_;
};

} // namespace anyrig::virtual_gpu
