// Where the program made each block of memory that is in use, for the report of an error that ends
// the program for want of memory.
//
//   allocation ──> find_origin (time/origin.h) ──> Block::line, Block::module, …
//   refusal    ──> the hook, before the error unwinds the program: everything is still there
//
// While nobody watches, an allocation costs one comparison. The origin that the clock finds for the
// work of the same operator is the same one, and is searched once.
#pragma once

#include "memory/memory.h"

#include <functional>

namespace anyrig::virtual_gpu {

// Called with the device and the refused request, by the thread that made the request, which holds
// no lock and not the GIL.
using RefusalHook = std::function<void(c10::DeviceIndex, const OutOfMemory&)>;

// Notes origins from now on and calls `hook` for each refused request, but for those that the
// program does without (OptionalRequest); an empty hook ends this. Call with the GIL.
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
