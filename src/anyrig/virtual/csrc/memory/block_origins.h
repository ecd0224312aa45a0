// Where the program made each block of memory that is in use, for the report of an out-of-memory
// error.
//
//   allocation ──> find_origin (time/origin.h) ──> Block::line, Block::module, …
//   refusal    ──> the hook, before the error unwinds the program: everything is still there
//
// Without a hook, an allocation costs one comparison. The clock needs the same origin for the work
// of the operator, so the search is made once for both.
#pragma once

#include "memory/memory.h"

#include <functional>

namespace anyrig::virtual_gpu {

// Called with the device and the refused request, by the thread that made the request, which holds
// no lock and not the GIL.
using RefusalHook = std::function<void(c10::DeviceIndex, const OutOfMemory&)>;

// Begins to note origins, and to call `hook` for each refused request that is not an
// OptionalRequest. An empty hook ends this. Call with the GIL.
void watch_block_origins(RefusalHook hook);

// Notes where `block` was made. Takes the GIL while somebody watches: the caller must hold no lock.
void note_block_origin(Block& block, bool is_workspace);

// Calls the program's observers (add_out_of_memory_observer), and the hook, if there is one.
void note_refusal(c10::DeviceIndex device, const OutOfMemory& error);

// While an instance is alive on a thread, its requests may fail without harm.
class OptionalRequest {
 public:
  OptionalRequest();
  ~OptionalRequest();
  OptionalRequest(const OptionalRequest&) = delete;
  OptionalRequest& operator=(const OptionalRequest&) = delete;

 private:
  bool previous_;
};

} // namespace anyrig::virtual_gpu
