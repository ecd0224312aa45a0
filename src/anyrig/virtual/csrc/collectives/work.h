// The torch.distributed.Work that a collective returns, with the stream semantics of CUDA.
//
// On a GPU, wait() makes the current stream wait and returns; later work on that stream finds the
// data. A virtual device computes an operator on the host when it is called, so here wait() blocks
// the host until the transfer is done. On the virtual clock, wait() moves only the current stream
// to the end of the transfer, not the host. The other ways to reach the data do the same: result(),
// get_future(), whose callbacks run at once in the thread that adds them, as NCCL's do, and
// torch.cuda.synchronize(). Reading the data without any of these is a race on a GPU, and one here.
//
// A send is the exception. Its data was copied when it was called, so nothing waits for it: two
// ranks that both send to each other before they receive do not deadlock, as with NCCL.
//
// An error is raised in the thread that waits. NCCL's watchdog would end the process instead,
// because it cannot stop a kernel that hangs.
#pragma once

#include "collectives/transfer.h"

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <memory>
#include <string>
#include <vector>

namespace anyrig::virtual_gpu {

// The work of one transfer, or of several that were coalesced.
class TransferWork final : public c10d::Work {
 public:
  using Transfers = std::vector<std::shared_ptr<Transfer>>;

  TransferWork(
      int rank,
      c10d::OpType op,
      Transfers transfers,
      std::vector<at::Tensor> outputs,
      bool is_timed);
  // As above. In addition, a running profiler records `title` with the sizes of `inputs`, until
  // `end_record` is called.
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
  // Returns milliseconds on the virtual clock. Raises RuntimeError unless the group times its work.
  float getDuration() const override;
  uint64_t getSequencenumber() const override;

 private:
  Transfers transfers_;
  std::vector<at::Tensor> outputs_;
  bool is_timed_;
};

} // namespace anyrig::virtual_gpu
