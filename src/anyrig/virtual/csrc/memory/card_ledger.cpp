#include "memory/card_ledger.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <new>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>

namespace anyrig::virtual_gpu {
namespace {

constexpr size_t kMostProcesses = 4096;  // the file is sparse: a slot that was never used is a hole

// A change takes microseconds; only a process that was stopped in the middle of one takes longer.
constexpr std::chrono::seconds kLongestWait{5};

// Offsets of the locks. Locks may lie beyond the end of a file.
constexpr off_t kChangeLock = 0;
constexpr off_t lock_of_slot(size_t slot) { return static_cast<off_t>(slot) + 1; }

struct flock lock_request(short type, off_t offset, off_t length) {
  struct flock request {};
  request.l_type = type;
  request.l_whence = SEEK_SET;
  request.l_start = offset;
  request.l_len = length;  // 0: to the end, wherever that is
  return request;
}

bool try_lock(int file, off_t offset, off_t length = 1) {
  struct flock request = lock_request(F_WRLCK, offset, length);
  return fcntl(file, F_SETLK, &request) == 0;
}

void unlock(int file, off_t offset, off_t length = 1) {
  struct flock request = lock_request(F_UNLCK, offset, length);
  fcntl(file, F_SETLK, &request);
}

/// Another process that holds the lock; 0 if there is none.
pid_t holder_of(int file, off_t offset) {
  struct flock request = lock_request(F_WRLCK, offset, 1);
  if (fcntl(file, F_GETLK, &request) != 0 || request.l_type == F_UNLCK) return 0;
  return request.l_pid > 0 ? request.l_pid : -1;  // not a process of this namespace: it still lives
}

[[noreturn]] void raise_unusable(const std::string& folder, const std::string& why) {
  throw std::runtime_error("the virtual cards cannot be shared through " + folder + ": " + why);
}

std::string words_of_errno() { return std::generic_category().message(errno); }

void make_private_folder(const std::string& folder) {
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) raise_unusable(folder, words_of_errno());
  struct stat found {};
  if (lstat(folder.c_str(), &found) != 0) {
    if (errno == ENOENT) return;  // removed meanwhile; opening the file in it will tell
    raise_unusable(folder, words_of_errno());
  }
  if (!S_ISDIR(found.st_mode) || found.st_uid != geteuid())
    raise_unusable(folder, "it is not a folder of this user's");
  if ((found.st_mode & 0077) != 0) chmod(folder.c_str(), 0700);
}

/// The bytes of a file, shared with all that map it; without one, memory of this process. Null
/// where there is none. What is not touched takes no memory.
void* map_zeros(size_t bytes, int file) {
  const int flags = file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, file, 0);
  return mapped == MAP_FAILED ? nullptr : mapped;
}

/// Takes room on the disk for the first `bytes` of a file. A page without room would end the process
/// that writes to it with SIGBUS. Returns the error, 0 for none.
int take_room(int file, size_t bytes) {
#ifdef __linux__
  return posix_fallocate(file, 0, static_cast<off_t>(bytes));
#else
  return 0;
#endif
}

bool is_still_at(int file, const std::string& path) {
  struct stat opened {}, named {};
  return fstat(file, &opened) == 0 && stat(path.c_str(), &named) == 0 &&
         opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
}

}  // namespace

/// While it lives, no other process changes the table.
class CardLedger::Change {
 public:
  explicit Change(const CardLedger& ledger) : file_(ledger.file_) {
    if (file_ < 0) return;
    const auto end = std::chrono::steady_clock::now() + kLongestWait;
    for (std::chrono::microseconds pause{0}; !try_lock(file_, kChangeLock);) {
      if (errno != EAGAIN && errno != EACCES && errno != EINTR)
        raise_unusable(ledger.folder_, words_of_errno());
      if (std::chrono::steady_clock::now() > end) {
        raise_unusable(ledger.folder_,
                       "process " + std::to_string(holder_of(file_, kChangeLock)) +
                           " has held the lock for 5 s; continue it if it is stopped, or end it");
      }
      std::this_thread::sleep_for(pause);
      pause = std::min(pause + std::chrono::microseconds{20}, std::chrono::microseconds{500});
    }
  }
  ~Change() {
    if (file_ >= 0) unlock(file_, kChangeLock);
  }
  Change(const Change&) = delete;
  Change& operator=(const Change&) = delete;

 private:
  const int file_;
};

size_t CardLedger::table_bytes() const {
  return (1 + kMostProcesses * (1 + static_cast<size_t>(cards_))) * sizeof(Word);
}

void CardLedger::be_alone() {
  auto* table = static_cast<Word*>(map_zeros(table_bytes(), -1));
  if (table == nullptr) throw std::bad_alloc();
  table[0] = 1;
  own_ = table + 1;
  table_ = table;
}

void CardLedger::join(const std::string& folder, int cards) {
  std::lock_guard<std::mutex> lock(mutex_);
  cards_ = cards;
  folder_ = folder;
  path_ = folder + "/cards";
  leases_ = folder + "/leases";
  enter();
}

void CardLedger::join_again() {
  if (file_ < 0 && !folder_.empty()) enter();
}

void CardLedger::enter() {
  for (int attempt = 0;; ++attempt) {
    make_private_folder(folder_);
    file_ = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (file_ < 0 && (errno != ENOENT || attempt == 100)) raise_unusable(folder_, words_of_errno());
    if (file_ < 0) continue;  // the last of its processes removed the folder just now
    try {
      if (ftruncate(file_, static_cast<off_t>(table_bytes())) != 0) raise_unusable(folder_, words_of_errno());
      Change change(*this);
      if (is_still_at(file_, path_)) return claim_slot();
    } catch (...) {
      close(std::exchange(file_, -1));
      throw;
    }
    close(std::exchange(file_, -1));
  }
}

void CardLedger::claim_slot() {
  auto* table = static_cast<Word*>(map_zeros(table_bytes(), file_));
  if (table == nullptr) raise_unusable(folder_, words_of_errno());
  for (size_t i = 0; i < kMostProcesses; ++i) {
    if (!try_lock(file_, lock_of_slot(i))) continue;
    Word* slot = slot_of(table, i);
    const size_t used_bytes = static_cast<size_t>(slot_of(table, i + 1) - table) * sizeof(Word);
    if (const int error = take_room(file_, used_bytes); error != 0) {
      munmap(table, table_bytes());
      raise_unusable(folder_, "there is no room for " + std::to_string(used_bytes) + " bytes: " +
                                  std::generic_category().message(error));
    }
    clear(slot);
    slot[0] = static_cast<size_t>(getpid());
    table[0] = std::max<size_t>(table[0], i + 1);
    own_ = slot;
    table_ = table;
    return;
  }
  munmap(table, table_bytes());
  raise_unusable(folder_, "there are " + std::to_string(kMostProcesses) + " processes already");
}

CardLedger::Word* CardLedger::slot_of(Word* table, size_t index) const noexcept {
  return table + 1 + index * (1 + static_cast<size_t>(cards_));
}

void CardLedger::clear(Word* slot) const noexcept {
  for (int card = 0; card < cards_; ++card) slot[1 + card] = 0;
}

bool CardLedger::reserve(int card, size_t bytes, size_t total_bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  join_again();
  Change change(*this);
  const auto fits = [&] { return bytes <= total_bytes - std::min(total_bytes, sum(card)); };
  if (!fits()) {
    bury_the_dead();
    if (!fits()) return false;
  }
  own_.load()[1 + card] += bytes;
  return true;
}

void CardLedger::release(int card, size_t bytes) noexcept {
  // Without a lock: nobody else writes there. A forked child may give back what its parent took.
  Word& held = own_.load()[1 + card];
  size_t before = held;
  while (!held.compare_exchange_weak(before, before - std::min(before, bytes))) {
  }
}

size_t CardLedger::used_bytes(int card) {
  std::lock_guard<std::mutex> lock(mutex_);
  join_again();
  if (sum(card) > own_.load()[1 + card]) {
    Change change(*this);
    bury_the_dead();
  }
  return sum(card);
}

size_t CardLedger::used_bytes_at_most(int card) const noexcept { return sum(card); }

std::vector<ProcessMemory> CardLedger::processes(int card) {
  std::lock_guard<std::mutex> lock(mutex_);
  join_again();
  Change change(*this);
  bury_the_dead();
  std::vector<ProcessMemory> found;
  Word* table = table_;
  for (size_t i = 0; i < table[0]; ++i) {
    const Word* slot = slot_of(table, i);
    const size_t bytes = slot[1 + card];
    if (slot == own_) {
      found.push_back({std::nullopt, bytes});
    } else if (bytes > 0) {
      found.push_back({static_cast<int>(slot[0]), bytes});
    }
  }
  return found;
}

size_t CardLedger::sum(int card) const noexcept {
  Word* table = table_;
  size_t total = 0;
  for (size_t i = 0; i < table[0]; ++i) total += slot_of(table, i)[1 + card];
  return total;
}

/// Within a Change, so that none of the slots is being claimed.
void CardLedger::bury_the_dead() {
  if (file_ < 0) return;
  Word* table = table_;
  for (size_t i = 0; i < table[0]; ++i) {
    Word* slot = slot_of(table, i);
    const bool holds = std::any_of(slot + 1, slot + 1 + cards_, [](const Word& bytes) {
      return bytes.load(std::memory_order_relaxed) > 0;
    });
    if (slot != own_ && holds && holder_of(file_, lock_of_slot(i)) == 0) clear(slot);
  }
}

void CardLedger::leave() noexcept {
  std::lock_guard<std::mutex> lock(mutex_);
  if (file_ < 0) return;
  try {
    Change change(*this);
    clear(own_);
    // Only who is alone gets all the locks. Who comes now finds the file gone, and makes another.
    if (try_lock(file_, 0, 0)) {
      std::error_code ignored;
      std::filesystem::remove_all(leases_, ignored);
      unlink(path_.c_str());
      rmdir(folder_.c_str());
    }
  } catch (const std::exception&) {
    // The end of the process gives the slot back all the same.
  }
  close(std::exchange(file_, -1));
  folder_.clear();
  be_alone();  // the file stays mapped: another thread may be reading it
}

void CardLedger::after_fork_in_child() {
  if (file_ >= 0) {
    munmap(table_, table_bytes());
    close(std::exchange(file_, -1));
    be_alone();
  }
  mutex_.unlock();
}

void CardLedger::abandon() noexcept {
  // Of leases, only an empty folder can be removed here.
  if (file_ < 0 || !try_lock(file_, 0, 0)) return;
  rmdir(leases_.c_str());
  unlink(path_.c_str());
  rmdir(folder_.c_str());
}

namespace {

// These end a process at once, before it could leave in good order.
constexpr std::array<int, 2> kEndings{SIGTERM, SIGHUP};

void abandon_and_end(int signal) {
  card_ledger().abandon();
  std::signal(signal, SIG_DFL);
  raise(signal);  // as soon as this handler returns
}

/// Python does not see these handlers: it read the ones it goes by when it started. One that a
/// program sets takes their place.
void leave_before_a_signal_ends_the_process() {
  for (const int signal : kEndings) {
    struct sigaction found {};
    if (sigaction(signal, nullptr, &found) == 0 && found.sa_handler == SIG_DFL)
      std::signal(signal, abandon_and_end);
  }
}

}  // namespace

CardLedger& card_ledger() {
  // Never freed: memory may be given back while the process ends.
  static auto* ledger = [] {
    auto* made = new CardLedger();
    std::atexit([] { card_ledger().leave(); });
    leave_before_a_signal_ends_the_process();
    pthread_atfork([] { card_ledger().before_fork(); },
                   [] { card_ledger().after_fork_in_parent(); },
                   [] { card_ledger().after_fork_in_child(); });
    return made;
  }();
  return *ledger;
}

}  // namespace anyrig::virtual_gpu
