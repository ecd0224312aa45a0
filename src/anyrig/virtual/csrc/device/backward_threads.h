// The threads that run backward passes.
//
// PyTorch has one backward thread for each device, so that devices can run concurrently.
#pragma once

#include <ATen/core/Tensor.h>

#include <thread>
#include <vector>

namespace anyrig::virtual_gpu {

// Returns whether a backward from `roots` must run in PyTorch's backward threads, rather than in
// the caller's.
//
// It must if several devices are in use, or if it runs code of the program: hooks and Python
// functions may depend on the thread, hold a lock, or start a backward of their own. No other
// backward can observe its thread.
bool needs_backward_threads(const std::vector<at::Tensor>& roots);

// Drops the remaining tasks of a failed backward from the queue of the calling thread, which must
// not be running a backward.
//
// PyTorch leaves them in the queue, with the graph and its gradients, until the thread's next
// backward. The device threads process their queues all the time and need no such call.
void drop_failed_backward();

// Restarts PyTorch's backward threads if a backward ran before the rig was installed. PyTorch
// starts one thread for each device at the first backward of a process, and at that time found no
// devices.
void start_backward_threads();

// Waits until PyTorch's backward thread of each device has released every backward started before.
//
// PyTorch returns from backward() before its thread drops the last references, some of them to
// Python objects. If the interpreter closes in between, the thread requests the GIL of a closing
// interpreter and the process aborts. The gap exists on real GPUs too, but is wide where the
// threads share few processors. Call before the interpreter closes, without the GIL.
void settle_backward_threads();

// Returns the id of the thread that would run this call on real GPUs, or the empty id for a
// device's backward thread. CUDA and PyTorch keep some state for each thread; where a backward runs
// in its caller's thread, that state must be kept for the two threads separately.
std::thread::id thread_with_gpus() noexcept;

} // namespace anyrig::virtual_gpu
