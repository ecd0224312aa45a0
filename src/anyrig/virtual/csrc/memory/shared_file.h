// Unnamed files that processes of one node share. Another process opens a file through the
// descriptor of its creator, which must still be alive. The file exists as long as a process maps
// it, however the processes end. Linux only.
#pragma once

#include <cstddef>
#include <cstdint>

namespace anyrig::virtual_gpu {

// Creates a file of `bytes` zeros and returns its descriptor, which the caller closes. Raises
// RuntimeError if the host cannot create the file.
int make_shared_file(size_t bytes);

// Maps a file; the caller unmaps it. Raises RuntimeError if the host has no room.
void* map_shared_file(int file, size_t bytes);

// Maps the file that has the descriptor `file` in another process; the caller unmaps it. Raises
// torch.AcceleratorError, "invalid resource handle", if there is no such file of this size.
void* map_file_of(int64_t process, int file, size_t bytes);

} // namespace anyrig::virtual_gpu
