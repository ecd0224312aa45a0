// How fast a card works, and what it is asked to do.
#pragma once

#include <array>
#include <cstddef>
#include <string>

namespace anyrig::virtual_gpu {

// Numbers that the matrix units of cards have rates of their own for.
enum class Precision { Float64, Float32, Tfloat32, Bfloat16, Float16, Float8, Int8 };
inline constexpr size_t kPrecisions = 7;

// Operators that are dense in arithmetic; each kind reaches a fraction of its own of the card's rate.
enum class DenseKind { Product, Convolution, Attention };
inline constexpr size_t kDenseKinds = 3;

struct Arithmetic {
  double flops = 0; // multiplications and additions, as torch.utils.flop_counter counts them
  DenseKind kind = DenseKind::Product;
  Precision precision = Precision::Float32;
  double share = 1; // of `flops` that the kernel does: masked blocks of attention are left out
};

// What a large operator or copy reaches. A rate that is zero is unknown: work then takes no time.
struct Rates {
  std::array<double, kPrecisions> sheet_flops_per_second{};
  std::array<double, kDenseKinds> fractions{};
  double memory_bytes_per_second = 0;
  // To other devices and to the host, in one direction.
  double link_bytes_per_second = 0;
  double pcie_bytes_per_second = 0;
  double network_bytes_per_second = 0;
  // What joins it to other devices: a link joins those of one node with the same text. Empty: none.
  std::string fabric;

  double flops_per_second(const Arithmetic& arithmetic) const {
    return sheet_flops_per_second[static_cast<size_t>(arithmetic.precision)] *
        fractions[static_cast<size_t>(arithmetic.kind)];
  }
};

} // namespace anyrig::virtual_gpu
