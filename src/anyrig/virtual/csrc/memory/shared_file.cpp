#include "memory/shared_file.h"

#include "device/cuda_error.h"

#include <c10/util/Exception.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace anyrig::virtual_gpu {
namespace {

void* map(int file, size_t bytes) {
  return mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
}

void check_room(const void* address, size_t bytes) {
  TORCH_CHECK(
      address != MAP_FAILED, "the host has no room to map ", bytes,
      " bytes of a virtual GPU that processes share");
}

} // namespace

int make_shared_file(size_t bytes) {
#ifdef __linux__
  const int file = memfd_create("anyrig", MFD_CLOEXEC);
#else
  const int file = -1; // other systems have no way for another process to open the file
  errno = ENOSYS;
#endif
  TORCH_CHECK(
      file >= 0 && ftruncate(file, static_cast<off_t>(bytes)) == 0, "the host cannot share ", bytes,
      " bytes of a virtual GPU between processes: ", std::strerror(errno),
      "; a process may need more open files (ulimit -n)");
  return file;
}

void* map_shared_file(int file, size_t bytes) {
  void* address = map(file, bytes);
  check_room(address, bytes);
  return address;
}

void* map_file_of(int64_t process, int file, size_t bytes) {
  const std::string path = "/proc/" + std::to_string(process) + "/fd/" + std::to_string(file);
  const int opened = open(path.c_str(), O_RDWR | O_CLOEXEC);
  struct stat facts{};
  if (opened < 0 || fstat(opened, &facts) != 0 || static_cast<size_t>(facts.st_size) != bytes) {
    if (opened >= 0) {
      close(opened);
    }
    raise_cuda_error(CudaError::InvalidHandle);
  }
  void* address = map(opened, bytes);
  close(opened);
  check_room(address, bytes);
  return address;
}

} // namespace anyrig::virtual_gpu
