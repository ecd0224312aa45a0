#ifdef USE_C10D_GLOO

#include "symmetric/signals.h"

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
// A copy to the words wakes nobody, so whoever waits looks this often.
constexpr long kNanosecondsBetweenLooks = 1'000'000;
constexpr int kLooksBetweenChecksOfPeer = 50;

Word& as_word(uint32_t* word) {
  return *reinterpret_cast<Word*>(word);
}

void sleep_while(Word& word, uint32_t value) {
#ifdef __linux__
  const timespec most{0, kNanosecondsBetweenLooks};
  syscall(SYS_futex, &word, FUTEX_WAIT, value, &most, nullptr, 0);
#else
  std::this_thread::sleep_for(std::chrono::nanoseconds(kNanosecondsBetweenLooks));
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

[[noreturn]] void raise_lost(const SignalCall& call, const char* verb, const std::string& why) {
  const auto line = c10::str(
      "CUDASymmetricMemory::", call.what, ": rank ", call.rank, " failed to ", verb, " rank ",
      call.peer, " on channel ", call.channel, ' ', why);
  std::cerr << "[FATAL] " + line + '\n' << std::flush;
  raise_cuda_error(CudaError::LaunchFailure, line);
}

// Sets the word from one value to the other, as soon as it has the first.
void change_word(
    Word& word, uint32_t from, uint32_t to, const SignalCall& call, const char* verb) {
  const auto deadline = std::chrono::steady_clock::now() + call.limit;
  WithoutGil without_gil;
  for (int looks = 0;; ++looks) {
    uint32_t value = from;
    if (word.compare_exchange_strong(value, to, std::memory_order_acq_rel)) {
      wake_waiting(reinterpret_cast<uint32_t*>(&word));
      return;
    }
    if (std::chrono::steady_clock::now() >= deadline) {
      raise_lost(
          call, verb,
          c10::str(
              "after ", call.limit.count(), " ms",
              call.limit_is_given
                  ? ""
                  : ", the time limit of the process group; a card would wait for ever"));
    }
    if (looks % kLooksBetweenChecksOfPeer == kLooksBetweenChecksOfPeer - 1 &&
        process_has_ended(call.peer_process)) {
      raise_lost(call, verb, "as its process has ended");
    }
    sleep_while(word, value);
  }
}

} // namespace

void put_signal(uint32_t* word, double* moment, double now, const SignalCall& call) {
  // Of the two ends of a word only the receiver looks at the moment, and only once it is signalled;
  // a value that no word has in between keeps it from looking at half of it.
  constexpr uint32_t kBeingWritten = 0xffffffff;
  change_word(as_word(word), kFree, kBeingWritten, call, "send signal to");
  *moment = now;
  as_word(word).store(kSignalled, std::memory_order_release);
  wake_waiting(word);
}

double take_signal(uint32_t* word, const double* moment, const SignalCall& call) {
  constexpr uint32_t kBeingRead = 0xfffffffe;
  change_word(as_word(word), kSignalled, kBeingRead, call, "receive signal from");
  const double sent = *moment;
  as_word(word).store(kFree, std::memory_order_release);
  wake_waiting(word);
  return sent;
}

void wake_waiting(uint32_t* word) {
#ifdef __linux__
  syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
#else
  (void)word;
#endif
}

} // namespace anyrig::virtual_gpu

#endif // USE_C10D_GLOO
