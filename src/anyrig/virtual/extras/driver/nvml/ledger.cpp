#include "ledger.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <mutex>

namespace anyrig::nvml {
namespace {

using Word = std::size_t;  // as in the file

std::mutex reading;
// Kept open: to close any descriptor of the file would end the locks that this process holds as a
// process of the rehearsal.
int file = -1;
struct stat opened{};

bool is_same_file(const struct stat& one, const struct stat& other) {
  return one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

/// Opens the file that is there now. The last process of a rehearsal removes it, and one that comes
/// later makes it anew.
bool look_at(const std::string& path) {
  struct stat at_path{}, at_file{};
  const bool open_still = file >= 0 && fstat(file, &at_file) == 0 && is_same_file(at_file, opened);
  const bool is_there = stat(path.c_str(), &at_path) == 0;
  if (open_still && is_there && is_same_file(at_path, opened)) return true;
  // Nobody holds a lock of a file that is gone. A number that now names another file is not ours.
  if (open_still) close(file);
  file = is_there ? open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW) : -1;
  return file >= 0 && fstat(file, &opened) == 0;
}

bool read_words(Word* words, std::size_t count, std::size_t first) {
  const std::size_t bytes = count * sizeof(Word);
  return pread(file, words, bytes, static_cast<off_t>(first * sizeof(Word))) ==
      static_cast<ssize_t>(bytes);
}

/// A process holds the lock of its slot while it lives; its own lock it does not see.
bool lives(std::size_t slot, Word pid) {
  if (pid == static_cast<Word>(getpid())) return true;
  struct flock request{};
  request.l_type = F_RDLCK;
  request.l_whence = SEEK_SET;
  request.l_start = static_cast<off_t>(slot) + 1;
  request.l_len = 1;
  return fcntl(file, F_GETLK, &request) == 0 && request.l_type != F_UNLCK;
}

}  // namespace

std::vector<Process> holders(const Rig& rig, std::size_t position) {
  std::lock_guard<std::mutex> lock(reading);
  std::vector<Process> found;
  Word slots = 0;
  if (!look_at(rig.ledger) || !read_words(&slots, 1, 0)) return found;
  const std::size_t stride = 1 + rig.gpus_in_all;
  for (std::size_t slot = 0; slot < slots; ++slot) {
    Word pid = 0, bytes = 0;
    const std::size_t start = 1 + slot * stride;
    if (!read_words(&pid, 1, start) || !read_words(&bytes, 1, start + 1 + position)) break;
    if (bytes > 0 && lives(slot, pid))
      found.push_back({static_cast<unsigned>(pid), bytes, ~0u, ~0u});
  }
  return found;
}

}  // namespace anyrig::nvml
