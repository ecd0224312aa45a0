// Files without a name that processes of a machine share. Another process opens one through the
// descriptor of the process that made it, which must live until then; after that the file is kept
// by who maps it, and gone when the last of them is, however it ends. Linux only.
#pragma once

#include <cstddef>
#include <cstdint>

namespace anyrig::virtual_gpu {

// A descriptor of a new file of `bytes` zeros, to be closed by the caller. Raises RuntimeError if
// the host has none.
int make_shared_file(size_t bytes);

// The bytes of a file, to be unmapped by the caller. Raises RuntimeError without room.
void* map_shared_file(int file, size_t bytes);

// The same of the file that has the descriptor `file` in another process. Raises
// torch.AcceleratorError, "invalid resource handle", if it has none of that size.
void* map_file_of(int64_t process, int file, size_t bytes);

} // namespace anyrig::virtual_gpu
