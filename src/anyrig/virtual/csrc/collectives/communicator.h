// A thread that runs one transfer after another, as a communicator's stream does on a card.
//
// It never needs the GIL: neither its transfers do, nor does it drop them. A transfer holds tensors,
// the last holder of a tensor may have to free its Python object, and a thread of Python that waits
// for this one may hold the GIL meanwhile. So what has run is kept until a thread of the program
// comes by and drops it.
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

  Communicator();
  // Stops it, if need be.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // Raises DistBackendError if it was stopped.
  void enqueue(TransferPointer transfer);
  // Waits until all that was enqueued has run. False if `deadline` came first.
  bool drain(Moment deadline);
  // Ends the thread after the transfer it is at, and fails the ones behind that one for `reason`.
  void stop(const std::string& reason);
  // What is under way or waits, and what has run and was not dropped yet.
  std::vector<TransferPointer> held();
  // Drops what has run. Called from threads that may take the GIL.
  void drop_spent();

 private:
  void loop();

  std::mutex mutex_;
  std::condition_variable changed_;
  // The first one is under way.
  std::deque<TransferPointer> transfers_;
  std::vector<TransferPointer> spent_;
  bool stopping_ = false;
  // The moment of the virtual clock from which on the communicator's stream is free.
  double free_from_ = 0;
  std::thread thread_;
};

} // namespace anyrig::virtual_gpu
