#ifdef USE_C10D_GLOO

#include "extras/symmetric/signals.h"

#include "collectives/gil.h"
#include "device/cuda_error.h"

#include <c10/util/StringUtil.h>

#include <atomic>
#include <fstream>
#include <iostream>
#include <thread>

#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace anyrig::virtual_gpu {
namespace {

using Word = std::atomic<uint32_t>;
static_assert(Word::is_always_lock_free && sizeof(Word) == sizeof(uint32_t));

constexpr uint32_t kFree = 0;
constexpr uint32_t kSignalled = 1;
// A tensor copy into the signal pad does not wake the waiting threads, so they poll at this
// interval.
constexpr long kPollNanoseconds = 1'000'000;
constexpr int kPollsPerPeerCheck = 50;

Word& as_word(uint32_t* word) {
  return *reinterpret_cast<Word*>(word);
}

void sleep_while(Word& word, uint32_t value) {
#ifdef __linux__
  const timespec timeout{0, kPollNanoseconds};
  syscall(SYS_futex, &word, FUTEX_WAIT, value, &timeout, nullptr, 0);
#else
  std::this_thread::sleep_for(std::chrono::nanoseconds(kPollNanoseconds));
#endif
}

bool process_has_ended(int64_t process) {
#ifdef __linux__
  std::ifstream stat("/proc/" + std::to_string(process) + "/stat");
  std::string text;
  std::getline(stat, text);
  const auto name_end = text.rfind(") ");
  return name_end == std::string::npos || text.compare(name_end + 2, 1, "Z") == 0;
#else
  return false;
#endif
}

[[noreturn]] void raise_signal_failure(
    const SignalCall& call,
    const char* verb,
    const std::string& why) {
  const auto line = c10::str(
      "CUDASymmetricMemory::", call.what, ": rank ", call.rank, " failed to ", verb, " rank ",
      call.peer, " on channel ", call.channel, ' ', why);
  std::cerr << "[FATAL] " + line + '\n' << std::flush;
  raise_cuda_error(CudaError::LaunchFailure, line);
}

// Waits until the word is `from`, then sets it to `to`. `verb` appears in the error message.
void wait_and_set(
    Word& word,
    uint32_t from,
    uint32_t to,
    const SignalCall& call,
    const char* verb) {
  const auto deadline = std::chrono::steady_clock::now() + call.limit;
  WithoutGil without_gil;
  for (int polls = 0;; ++polls) {
    uint32_t value = from;
    if (word.compare_exchange_strong(value, to, std::memory_order_acq_rel)) {
      wake_waiters(reinterpret_cast<uint32_t*>(&word));
      return;
    }
    if (std::chrono::steady_clock::now() >= deadline) {
      raise_signal_failure(
          call, verb,
          c10::str(
              "after ", call.limit.count(), " ms",
              call.has_own_limit ? ""
                                 : ", the timeout of the process group; a GPU would wait forever"));
    }
    if (polls % kPollsPerPeerCheck == kPollsPerPeerCheck - 1 &&
        process_has_ended(call.peer_process)) {
      raise_signal_failure(call, verb, "because its process has ended");
    }
    sleep_while(word, value);
  }
}

} // namespace

void send_signal(uint32_t* word, double* sent_time, double now, const SignalCall& call) {
  // The receiver reads the time once the word is kSignalled. While the sender writes the time, the
  // word has a value that neither end waits for.
  constexpr uint32_t kBeingWritten = 0xffffffff;
  wait_and_set(as_word(word), kFree, kBeingWritten, call, "send signal to");
  *sent_time = now;
  as_word(word).store(kSignalled, std::memory_order_release);
  wake_waiters(word);
}

double receive_signal(uint32_t* word, const double* sent_time, const SignalCall& call) {
  constexpr uint32_t kBeingRead = 0xfffffffe;
  wait_and_set(as_word(word), kSignalled, kBeingRead, call, "receive signal from");
  const double sent = *sent_time;
  as_word(word).store(kFree, std::memory_order_release);
  wake_waiters(word);
  return sent;
}

void wake_waiters(uint32_t* word) {
#ifdef __linux__
  syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
#else
  (void)word;
#endif
}

} // namespace anyrig::virtual_gpu

#endif // USE_C10D_GLOO
