// A thread that runs transfers one after another, as a communicator's CUDA stream does. The thread
// starts with the first transfer, and ends when it has had none for a while: a program may have
// hundreds of groups, and exchange messages with every rank once.
//
// The thread never takes the GIL: transfers run without it, and the thread does not destroy them.
// Destroying a transfer may free the Python object of a tensor, which needs the GIL, and a Python
// thread that waits for this thread may hold the GIL. So finished transfers are kept until a thread
// of the program drops them.
#pragma once

#include "collectives/transfer.h"

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace anyrig::virtual_gpu {

class Communicator {
 public:
  using TransferPointer = std::shared_ptr<Transfer>;

  Communicator() = default;
  // Stops the thread if it still runs.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // Queues `transfer`. Raises DistBackendError if the communicator was stopped.
  void enqueue(TransferPointer transfer);
  // Waits until all queued transfers have run. Returns false if `deadline` passed first.
  bool drain(Moment deadline);
  // Ends the thread after the running transfer, and fails the transfers behind that one for
  // `reason`.
  void stop(const std::string& reason);
  // Returns the finished transfers that were not dropped yet, the running one and the queued ones.
  std::vector<TransferPointer> transfers();
  // Drops the finished transfers. Only threads that may take the GIL call this.
  void drop_finished();

 private:
  void loop();

  std::mutex mutex_;
  std::condition_variable changed_;
  // The first transfer is running.
  std::deque<TransferPointer> transfers_;
  std::vector<TransferPointer> finished_;
  bool stopping_ = false;
  bool is_running_ = false; // whether the thread will look at `transfers_` again
  // The virtual time at which the communicator's stream becomes free.
  double free_at_ = 0;
  std::thread thread_;
};

} // namespace anyrig::virtual_gpu
