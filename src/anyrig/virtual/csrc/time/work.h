// The record of the work of one call: what determines how long a GPU takes for it.
//
// Everything that advances the virtual clock describes its work by this record, and `gpu_seconds`
// (cost/cost.h) turns the record into seconds. Sizes and counts are doubles, since they only enter
// formulas. This file does not depend on PyTorch, so that a script can fit the formulas.
#pragma once

#include <array>
#include <cstddef>

namespace anyrig::virtual_gpu {

// Number formats for which GPUs have separate rates.
enum class Precision { Float64, Float32, Tfloat32, Bfloat16, Float16, Float8, Int8 };
inline constexpr size_t kPrecisions = 7;

enum class Family { Memory, Product, Convolution, Attention };
inline constexpr size_t kFamilies = 4;

// Which of the three passes of a convolution a kernel computes.
enum class ConvolutionPass { Forward, ByInput, ByWeight };

enum class AttentionKernel { Flash, Efficient, Cudnn };

// How a kernel that is bound by memory accesses it.
enum class Access {
  Pointwise,
  Reduction,
  Normalization, // of rows: layer norm, group norm
  NormalizationBackward,
  BatchNorm,
  BatchNormBackward,
  Softmax,
  SoftmaxBackward,
  Gather,  // reads rows or elements by index
  Scatter, // writes rows or elements by index
  Sort,
  Scan,
  Strided, // copies between layouts
  List,    // one kernel for many tensors
  Window,  // pooling, resizing
  WindowBackward,
  Random,
  Factorization, // of matrices, column by column
};
inline constexpr size_t kAccesses = 18;

// A batch of products of an m x k and a k x n matrix.
struct ProductShape {
  double batch = 1;
  double m = 0;
  double n = 0;
  double k = 0;
  // Whether an operand's rows (of a) or columns (of b) are not contiguous along k and n.
  bool transposed_a = false;
  bool transposed_b = false;

  bool operator==(const ProductShape&) const = default;
};

// The geometry of the forward pass, whichever pass is computed. A transposed convolution is the
// pass by input of the convolution that it transposes.
struct ConvolutionShape {
  using Extent = std::array<double, 3>; // depth, height, width
  ConvolutionPass pass = ConvolutionPass::Forward;
  double batch = 1;
  double groups = 1;
  double in_channels = 0;  // of all groups
  double out_channels = 0; // of all groups
  Extent in{1, 1, 1};
  Extent out{1, 1, 1};
  Extent kernel{1, 1, 1};
  Extent stride{1, 1, 1};
  Extent dilation{1, 1, 1};
  bool channels_last = false;

  bool operator==(const ConvolutionShape&) const = default;
};

inline double volume(const ConvolutionShape::Extent& extent) {
  return extent[0] * extent[1] * extent[2];
}

struct AttentionShape {
  AttentionKernel kernel = AttentionKernel::Flash;
  bool backward = false;
  double batch = 1;
  double heads = 1;
  double key_heads = 1;
  double queries = 0; // of one sequence
  double keys = 0;
  double head_size = 0; // of queries and keys
  double value_head_size = 0;
  bool dropout = false;

  bool operator==(const AttentionShape&) const = default;
};

struct MemoryShape {
  Access access = Access::Pointwise;
  // A reduction or normalization works on rows of columns. 0 where it does not matter.
  double rows = 0; // of a factorization: steps that wait for each other, in columns of Cholesky's
  double columns = 0;

  bool operator==(const MemoryShape&) const = default;
};

struct Work {
  Family family = Family::Memory;
  Precision precision = Precision::Float32; // of the arithmetic
  double element_bytes = 4;
  double flops = 0; // additions and multiplications, as torch.utils.flop_counter counts them
  double share = 1; // of `flops` that the kernel does: attention skips masked blocks
  // Over all passes: a tensor that is read twice counts twice.
  double bytes_read = 0;
  double bytes_written = 0;
  double footprint_bytes = 0; // the distinct bytes among them
  double kernels = 1;
  ProductShape product;
  ConvolutionShape convolution;
  AttentionShape attention;
  MemoryShape memory;

  bool operator==(const Work&) const = default;

  double bytes() const { return bytes_read + bytes_written; }
};

// Returns the record of one kernel that is bound by memory.
inline Work memory_work(double bytes_read, double bytes_written, Access access = Access::Pointwise) {
  Work work;
  work.bytes_read = bytes_read;
  work.bytes_written = bytes_written;
  work.footprint_bytes = bytes_read + bytes_written;
  work.memory.access = access;
  return work;
}

} // namespace anyrig::virtual_gpu
