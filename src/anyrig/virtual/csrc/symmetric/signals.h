// The words by which ranks signal each other in symmetric memory, as CUDA's kernels use them: who
// signals sets a word from 0 to 1, who waits sets it back. A word has one sender and one receiver.
//
//   rank 0: put ──> | 1 | ──> rank 1: wait        the sender waits while the last one is not taken
//
// On a card kernels do this while the host goes on; here the host does, in the order of the program.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace anyrig::virtual_gpu {

// One end of it, for what is said when it fails.
struct SignalCall {
  std::string what; // "barrier"
  int rank;
  int peer;
  int channel;
  int64_t peer_process;
  std::chrono::milliseconds limit;
  bool limit_is_given; // by the program; otherwise the process group's
};

// `moment` is the place beside the word for the sender's moment on the virtual clock. Both raise
// torch.AcceleratorError, "unspecified launch failure", at the limit, or if the peer has ended.
void put_signal(uint32_t* word, double* moment, double now, const SignalCall& call);
// Returns the sender's moment.
double take_signal(uint32_t* word, const double* moment, const SignalCall& call);

// Somebody wrote to the word another way; who waits for it looks at once.
void wake_waiting(uint32_t* word);

} // namespace anyrig::virtual_gpu
