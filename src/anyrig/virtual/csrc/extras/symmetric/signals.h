// The words through which ranks signal each other in symmetric memory, as CUDA's kernels use them:
// the sender sets a word from 0 to 1, and the receiver sets it back. A word has one sender and one
// receiver.
//
//   rank 0: send_signal ──> | 1 | ──> rank 1: receive_signal
//
// The sender waits until its previous signal was received. On a GPU kernels wait while the host
// continues; here the host itself waits, in program order.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace anyrig::virtual_gpu {

// The call that sends or receives a signal, as error messages describe it.
struct SignalCall {
  std::string what; // "barrier"
  int rank;
  int peer;
  int channel;
  int64_t peer_process;
  std::chrono::milliseconds limit;
  bool has_own_limit; // false: `limit` is the process group's timeout
};

// Sends a signal: waits until `word` is 0, sets it to 1, and sets `*sent_time` to `now`, the
// sender's virtual time. This function and `receive_signal` raise torch.AcceleratorError,
// "unspecified launch failure", at the time limit or if the peer's process has ended.
void send_signal(uint32_t* word, double* sent_time, double now, const SignalCall& call);
// Receives a signal: waits until `word` is 1 and sets it to 0. Returns the sender's virtual time.
double receive_signal(uint32_t* word, const double* sent_time, const SignalCall& call);

// Wakes the threads of all processes that wait for `word` to change. Call it after writing to a
// word.
void wake_waiters(uint32_t* word);

} // namespace anyrig::virtual_gpu
