// The speed of a GPU, and the arithmetic of an operator.
#pragma once

#include <array>
#include <cstddef>
#include <string>

namespace anyrig::virtual_gpu {

// Number formats for which matrix units have separate rates.
enum class Precision { Float64, Float32, Tfloat32, Bfloat16, Float16, Float8, Int8 };
inline constexpr size_t kPrecisions = 7;

// Kinds of compute-bound operators. Each reaches its own fraction of the GPU's peak rate.
enum class DenseKind { Product, Convolution, Attention };
inline constexpr size_t kDenseKinds = 3;

struct Arithmetic {
  double flops = 0; // additions and multiplications, as torch.utils.flop_counter counts them
  DenseKind kind = DenseKind::Product;
  Precision precision = Precision::Float32;
  double share = 1; // fraction of `flops` that the kernel does: attention skips masked blocks
};

// The rates that a large operator or copy reaches. A rate of 0 is unknown: such work takes no time.
struct Rates {
  std::array<double, kPrecisions> sheet_flops_per_second{};
  std::array<double, kDenseKinds> fractions{};
  double memory_bytes_per_second = 0;
  // Links to other devices and to the host, in one direction.
  double link_bytes_per_second = 0;
  double pcie_bytes_per_second = 0;
  double network_bytes_per_second = 0;
  // Devices of one node with the same text are connected by a link. Empty: no link.
  std::string fabric;

  double flops_per_second(const Arithmetic& arithmetic) const {
    return sheet_flops_per_second[static_cast<size_t>(arithmetic.precision)] *
        fractions[static_cast<size_t>(arithmetic.kind)];
  }
};

} // namespace anyrig::virtual_gpu
