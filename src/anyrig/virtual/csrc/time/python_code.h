// Whether the calling thread runs Python code, which takes turns with all other Python code.
#pragma once

namespace anyrig::virtual_gpu {

// Returns whether Python code called, directly or not, what this thread does. In a thread of a
// backward pass, that is the code of a torch.autograd.Function, of a hook, or of a checkpoint that
// recomputes its forward. The thread need not hold the GIL.
bool is_called_by_python();

} // namespace anyrig::virtual_gpu
