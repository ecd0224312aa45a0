#include "memory/gpu_ledger.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
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

constexpr size_t kMaxProcesses = 4096;  // the file is sparse: unused slots are holes

// A change takes microseconds. It takes longer only if its process is stopped in the middle.
constexpr std::chrono::seconds kMaxWait{5};

// Offsets of the locks. Locks may lie beyond the end of a file.
constexpr off_t kTableLockOffset = 0;
constexpr off_t slot_lock_offset(size_t slot) {
  return static_cast<off_t>(slot) + 1;
}

struct flock lock_request(short type, off_t offset, off_t length) {
  struct flock request{};
  request.l_type = type;
  request.l_whence = SEEK_SET;
  request.l_start = offset;
  request.l_len = length;  // 0: to the end of the file
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

/// Returns the process that holds the lock, -1 if that process is in another PID namespace, or 0 if
/// no other process holds it.
pid_t lock_holder(int file, off_t offset) {
  struct flock request = lock_request(F_WRLCK, offset, 1);
  if (fcntl(file, F_GETLK, &request) != 0 || request.l_type == F_UNLCK) return 0;
  return request.l_pid > 0 ? request.l_pid : -1;
}

[[noreturn]] void raise_unusable(const std::string& folder, const std::string& why) {
  throw std::runtime_error("the virtual GPUs cannot be shared through " + folder + ": " + why);
}

std::string errno_message() {
  return std::generic_category().message(errno);
}

void make_private_folder(const std::string& folder) {
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) raise_unusable(folder, errno_message());
  struct stat found{};
  if (lstat(folder.c_str(), &found) != 0) {
    if (errno == ENOENT) return;  // another process removed it; opening the file will fail
    raise_unusable(folder, errno_message());
  }
  if (!S_ISDIR(found.st_mode) || found.st_uid != geteuid())
    raise_unusable(folder, "it is not a folder owned by this user");
  if ((found.st_mode & 0077) != 0) chmod(folder.c_str(), 0700);
}

/// Maps `bytes` of `file`, shared with other processes, or private zeros if `file` is negative.
/// Returns null on failure. Untouched pages take no memory.
void* map_zeros(size_t bytes, int file) {
  const int flags = file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, file, 0);
  return mapped == MAP_FAILED ? nullptr : mapped;
}

/// Allocates disk space for the first `bytes` of a file and returns an errno value, 0 on success.
/// Without space, writing to a mapped page would end the process with SIGBUS.
int allocate_disk_space(int file, size_t bytes) {
#ifdef __linux__
  return posix_fallocate(file, 0, static_cast<off_t>(bytes));
#else
  return 0;
#endif
}

bool is_still_at(int file, const std::string& path) {
  struct stat opened{}, named{};
  return fstat(file, &opened) == 0 && stat(path.c_str(), &named) == 0 &&
      opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
}

}  // namespace

/// Holds the lock on the table, so that no other process changes it.
class GpuLedger::TableLock {
 public:
  explicit TableLock(const GpuLedger& ledger) : file_(ledger.file_) {
    if (file_ < 0) return;
    const auto end = std::chrono::steady_clock::now() + kMaxWait;
    for (std::chrono::microseconds pause{0}; !try_lock(file_, kTableLockOffset);) {
      if (errno != EAGAIN && errno != EACCES && errno != EINTR)
        raise_unusable(ledger.folder_, errno_message());
      if (std::chrono::steady_clock::now() > end) {
        raise_unusable(
            ledger.folder_,
            "process " + std::to_string(lock_holder(file_, kTableLockOffset)) +
                " has held the lock for 5 s; continue it if it is stopped, or end it");
      }
      std::this_thread::sleep_for(pause);
      pause = std::min(pause + std::chrono::microseconds{20}, std::chrono::microseconds{500});
    }
  }
  ~TableLock() {
    if (file_ >= 0) unlock(file_, kTableLockOffset);
  }
  TableLock(const TableLock&) = delete;
  TableLock& operator=(const TableLock&) = delete;

 private:
  const int file_;
};

size_t GpuLedger::table_bytes() const {
  return (1 + kMaxProcesses * (1 + static_cast<size_t>(gpus_))) * sizeof(Word);
}

void GpuLedger::use_private_table() {
  auto* table = static_cast<Word*>(map_zeros(table_bytes(), -1));
  if (table == nullptr) throw std::bad_alloc();
  table[0] = 1;
  own_slot_ = table + 1;
  table_ = table;
}

void GpuLedger::join(const std::string& folder, int gpus) {
  std::lock_guard<std::mutex> lock(mutex_);
  gpus_ = gpus;
  folder_ = folder;
  path_ = folder + "/gpus";
  leases_ = folder + "/leases";
  open_table();
}

void GpuLedger::rejoin() {
  if (file_ < 0 && !folder_.empty()) open_table();
}

void GpuLedger::open_table() {
  for (int attempt = 0;; ++attempt) {
    make_private_folder(folder_);
    file_ = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (file_ < 0 && (errno != ENOENT || attempt == 100)) raise_unusable(folder_, errno_message());
    if (file_ < 0) continue;  // the last process has just removed the folder
    try {
      if (ftruncate(file_, static_cast<off_t>(table_bytes())) != 0)
        raise_unusable(folder_, errno_message());
      TableLock table_lock(*this);
      if (is_still_at(file_, path_)) return claim_slot();
    } catch (...) {
      close(std::exchange(file_, -1));
      throw;
    }
    close(std::exchange(file_, -1));
  }
}

void GpuLedger::claim_slot() {
  auto* table = static_cast<Word*>(map_zeros(table_bytes(), file_));
  if (table == nullptr) raise_unusable(folder_, errno_message());
  for (size_t i = 0; i < kMaxProcesses; ++i) {
    if (!try_lock(file_, slot_lock_offset(i))) continue;
    Word* slot = slot_of(table, i);
    const size_t used_bytes = static_cast<size_t>(slot_of(table, i + 1) - table) * sizeof(Word);
    if (const int error = allocate_disk_space(file_, used_bytes); error != 0) {
      munmap(table, table_bytes());
      raise_unusable(
          folder_,
          "no room for " + std::to_string(used_bytes) +
              " bytes: " + std::generic_category().message(error));
    }
    clear(slot);
    slot[0] = static_cast<size_t>(getpid());
    table[0] = std::max<size_t>(table[0], i + 1);
    own_slot_ = slot;
    table_ = table;
    return;
  }
  munmap(table, table_bytes());
  raise_unusable(folder_, std::to_string(kMaxProcesses) + " processes already share them");
}

GpuLedger::Word* GpuLedger::slot_of(Word* table, size_t index) const noexcept {
  return table + 1 + index * (1 + static_cast<size_t>(gpus_));
}

void GpuLedger::clear(Word* slot) const noexcept {
  for (int gpu = 0; gpu < gpus_; ++gpu) slot[1 + gpu] = 0;
}

bool GpuLedger::reserve(int gpu, size_t bytes, size_t total_bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  rejoin();
  TableLock table_lock(*this);
  const auto fits = [&] { return bytes <= total_bytes - std::min(total_bytes, sum_bytes(gpu)); };
  if (!fits()) {
    clear_dead_slots();
    if (!fits()) return false;
  }
  own_slot_.load()[1 + gpu] += bytes;
  return true;
}

void GpuLedger::release(int gpu, size_t bytes) noexcept {
  // Needs no lock: only this process writes to its slot. A forked child may release memory that its
  // parent reserved, so the result is clamped at 0.
  Word& held = own_slot_.load()[1 + gpu];
  size_t before = held;
  while (!held.compare_exchange_weak(before, before - std::min(before, bytes))) {
  }
}

size_t GpuLedger::used_bytes(int gpu) {
  std::lock_guard<std::mutex> lock(mutex_);
  rejoin();
  if (sum_bytes(gpu) > own_slot_.load()[1 + gpu]) {
    TableLock table_lock(*this);
    clear_dead_slots();
  }
  return sum_bytes(gpu);
}

size_t GpuLedger::used_bytes_upper_bound(int gpu) const noexcept {
  return sum_bytes(gpu);
}

std::vector<ProcessMemory> GpuLedger::processes(int gpu) {
  std::lock_guard<std::mutex> lock(mutex_);
  rejoin();
  TableLock table_lock(*this);
  clear_dead_slots();
  std::vector<ProcessMemory> found;
  Word* table = table_;
  for (size_t i = 0; i < table[0]; ++i) {
    const Word* slot = slot_of(table, i);
    const size_t bytes = slot[1 + gpu];
    if (slot == own_slot_) {
      found.push_back({std::nullopt, bytes});
    } else if (bytes > 0) {
      found.push_back({static_cast<int>(slot[0]), bytes});
    }
  }
  return found;
}

size_t GpuLedger::sum_bytes(int gpu) const noexcept {
  Word* table = table_;
  size_t total = 0;
  for (size_t i = 0; i < table[0]; ++i) total += slot_of(table, i)[1 + gpu];
  return total;
}

/// The caller holds a TableLock, so that no process is claiming a slot.
void GpuLedger::clear_dead_slots() {
  if (file_ < 0) return;
  Word* table = table_;
  for (size_t i = 0; i < table[0]; ++i) {
    Word* slot = slot_of(table, i);
    const bool holds = std::any_of(slot + 1, slot + 1 + gpus_, [](const Word& bytes) {
      return bytes.load(std::memory_order_relaxed) > 0;
    });
    if (slot != own_slot_ && holds && lock_holder(file_, slot_lock_offset(i)) == 0) clear(slot);
  }
}

void GpuLedger::leave() noexcept {
  std::lock_guard<std::mutex> lock(mutex_);
  if (file_ < 0) return;
  try {
    TableLock table_lock(*this);
    clear(own_slot_);
    // Only the last process gets all the locks. A process that arrives now finds the file removed
    // and creates a new one.
    if (try_lock(file_, 0, 0)) {
      std::error_code ignored;
      std::filesystem::remove_all(leases_, ignored);
      unlink(path_.c_str());
      rmdir(folder_.c_str());
    }
  } catch (const std::exception&) {
    // The kernel frees the slot when the process ends.
  }
  close(std::exchange(file_, -1));
  folder_.clear();
  use_private_table();  // the file stays mapped: another thread may be reading it
}

void GpuLedger::after_fork_in_child() {
  if (file_ >= 0) {
    munmap(table_, table_bytes());
    close(std::exchange(file_, -1));
    use_private_table();
  }
  mutex_.unlock();
}

void GpuLedger::abandon() noexcept {
  // A signal handler can remove the folder of leases only if it is empty.
  if (file_ < 0 || !try_lock(file_, 0, 0)) return;
  rmdir(leases_.c_str());
  unlink(path_.c_str());
  rmdir(folder_.c_str());
}

namespace {

// Signals that end a process at once, without running its exit handlers.
constexpr std::array<int, 2> kTerminatingSignals{SIGTERM, SIGHUP};

void abandon_and_terminate(int signal) {
  gpu_ledger().abandon();
  std::signal(signal, SIG_DFL);
  raise(signal);  // takes effect when this handler returns
}

/// Python does not see these handlers, since it read the signal handlers when it started. A handler
/// that a program sets replaces them.
void install_signal_handlers() {
  for (const int signal : kTerminatingSignals) {
    struct sigaction found{};
    if (sigaction(signal, nullptr, &found) == 0 && found.sa_handler == SIG_DFL)
      std::signal(signal, abandon_and_terminate);
  }
}

}  // namespace

GpuLedger& gpu_ledger() {
  // Never freed: memory may be released while the process ends.
  static auto* ledger = [] {
    auto* made = new GpuLedger();
    std::atexit([] { gpu_ledger().leave(); });
    install_signal_handlers();
    pthread_atfork(
        [] { gpu_ledger().before_fork(); }, [] { gpu_ledger().after_fork_in_parent(); },
        [] { gpu_ledger().after_fork_in_child(); });
    return made;
  }();
  return *ledger;
}

}  // namespace anyrig::virtual_gpu
