// In which thread a backward computes.
//
// PyTorch keeps one thread a device for backwards, so that devices work side by side.
#pragma once

#include <ATen/core/Tensor.h>

#include <thread>
#include <vector>

namespace anyrig::virtual_gpu {

// Whether a backward from `roots` is to compute in PyTorch's threads, or may in the caller's.
//
// It is to where several devices are in use, and where it runs code of the program: hooks and
// Python's functions may tell one thread from another, hold a lock, or start a backward
// themselves. What is left looks the same from either thread.
bool needs_backward_threads(const std::vector<at::Tensor>& roots);

// Drops what a failed backward left to do in the calling thread, which is in no backward now.
//
// PyTorch leaves it in the thread's queue, with the graph and the gradients it was to be done with,
// until a later backward comes to it. Its own threads are at their queues all the time.
void drop_failed_backward();

// PyTorch starts a thread for each device at the first backward of a process. One that ran before
// the rig was there found no devices, and would leave them without; this starts them then.
void start_backward_threads();

// Returns when PyTorch's backward thread of each device has let go of every backward that was
// started before.
//
// It tells the caller that a backward is done before its thread drops what it holds of it, a Python
// object among that; a program that ends in between meets a thread that asks a closing interpreter
// for its lock, and is aborted. On a card the gap is the same, but where the threads share few
// processors it is wide. Call it before the interpreter closes, with Python's lock released.
void settle_backward_threads();

// Which thread the calling one would be with cards, to tell the program's threads from each other
// and from a device's backward thread: the latter has no id here. What CUDA and PyTorch keep for each
// thread is kept for two where a backward computes in its caller's.
std::thread::id thread_with_cards() noexcept;

} // namespace anyrig::virtual_gpu
