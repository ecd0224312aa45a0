#pragma once

#include <thread>

namespace anyrig::virtual_gpu {

// PyTorch starts a thread for each device at the first backward of a process. One that ran before
// the rig was there found no devices, and would leave them without; this starts them then.
void start_backward_threads();

// Returns when PyTorch's backward thread of each device has let go of every backward that was
// started before.
//
// PyTorch keeps one thread a device for backwards. It tells the caller that a backward is done
// before it drops what it holds of it, a Python object among that; a program that ends in between
// meets a thread that asks a closing interpreter for its lock, and is aborted. On a card the gap is
// the same, but where the threads share few processors it is wide. Call it before the interpreter
// closes, with Python's lock released.
void settle_backward_threads();

// Which thread the calling one would be with cards, to tell the program's threads from each other
// and from a device's backward thread: the latter has no id here. A backward on the only device in
// use computes in its caller's thread (backward_engine.py), and what CUDA and PyTorch keep for each
// thread is to be kept for two nevertheless.
std::thread::id thread_with_cards() noexcept;

} // namespace anyrig::virtual_gpu
