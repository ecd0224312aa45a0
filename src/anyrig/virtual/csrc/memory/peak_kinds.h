// What the tensors of each device are when most memory is in use, without a list of them.
//
//   a  made ──────────────────────────────────────  a parameter when the step ends
//   b     made ──────────── released                made before the peak in a forward pass
//   c           made ──── released                  made before the peak in a backward pass
//   d                    ▲peak  made ─── released   made after the peak
//                                       step ends▲
//
// Memory has numbers in the order in which it is made, so it was there at the peak if its number is
// no larger than the peak's and it was not released before. Until the step of the peak ends, the
// bytes of what is released and was there are added up: b. When it ends, the program names its
// parameters, gradients and optimizer state, and those that were there are added up: a. In the
// steps that follow, no peak is higher as a rule, and nothing is to be done.
#pragma once

#include "memory/memory.h"

#include <c10/core/Device.h>
#include <c10/core/Storage.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace anyrig::virtual_gpu {

// Bytes of tensors at the peak.
struct PeakKinds {
  int64_t parameters = 0;
  int64_t gradients = 0;
  int64_t optimizer = 0; // the state of optimizers
  int64_t activations = 0; // made in a forward pass, released before the step ended
};

// What a step's end names.
struct NamedStorages {
  std::vector<c10::Storage> parameters;
  std::vector<c10::Storage> gradients;
  std::vector<c10::Storage> optimizer;
};

// Begins with no peaks, or notes nothing from now on.
void watch_peaks(bool watches);
// Gives new memory of a block its number, and notes whether a forward pass makes it.
void note_made(DeviceMemory& memory);
// Notes that memory of a block is released. Call this before its bytes are no longer counted.
void note_released(const DeviceMemory& memory);
// The peak of `device` is now.
void note_peak(c10::DeviceIndex device);
// What is made from now on, until `updates` is false, is made by an optimizer.
void note_update(bool updates);
// Returns whether a device has had its peak in a step that has not ended.
bool has_open_peak();
// A step ends: ends the peaks that are open.
void close_peaks(const NamedStorages& named);
// Returns what the peak of `device` was made of; nothing if no step has ended since.
std::optional<PeakKinds> peak_kinds(c10::DeviceIndex device);

} // namespace anyrig::virtual_gpu
