// The record of the work of one call: what determines how long a GPU takes for it.
//
// Everything that advances the virtual clock describes its work by this record, and `gpu_seconds`
// (cost/cost.h) turns the record into seconds. Sizes and counts are doubles, since they only enter
// formulas. This file does not depend on PyTorch, so that a script can fit the formulas.
//
// Every call makes a record, and the clock compares records (predictions.h), so a record is small:
// it has the shape of its own family only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace anyrig::virtual_gpu {

// Number formats for which GPUs have separate rates.
enum class Precision : uint8_t { Float64, Float32, Tfloat32, Bfloat16, Float16, Float8, Int8 };
inline constexpr size_t kPrecisions = 7;

enum class Family : uint8_t { Memory, Product, Convolution, Attention };
inline constexpr size_t kFamilies = 4;

// Which of the three passes of a convolution a kernel computes.
enum class ConvolutionPass : uint8_t { Forward, ByInput, ByWeight };

enum class AttentionKernel : uint8_t { Flash, Efficient, Cudnn };

// How a kernel that is bound by memory accesses it.
enum class Access : uint8_t {
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
  Conversion,    // copies to another dtype that PyTorch's kernel does element by element
};
inline constexpr size_t kAccesses = 19;

// A batch of products of an m x k and a k x n matrix.
struct ProductShape {
  double batch = 1;
  double m = 0;
  double n = 0;
  double k = 0;

  bool operator==(const ProductShape&) const = default;
};

// The geometry of the forward pass, whichever pass is computed. A transposed convolution is the
// pass by input of the convolution that it transposes.
struct ConvolutionShape {
  using Extent = std::array<float, 3>; // depth, height, width; exact up to 2^24
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
  return static_cast<double>(extent[0]) * extent[1] * extent[2];
}

struct AttentionShape {
  AttentionKernel kernel = AttentionKernel::Flash;
  bool backward = false;
  double batch = 1;
  double heads = 1;
  double queries = 0; // of one sequence
  double keys = 0;

  bool operator==(const AttentionShape&) const = default;
};

struct MemoryShape {
  Access access = Access::Pointwise;
  // For a normalization: the rows that it works on. For a factorization or a recurrent layer: the
  // steps that wait for each other, in columns of a Cholesky factorization. For a softmax along
  // columns, and for a reduction whose blocks add up their parts: the rows in a column, or 1 for a
  // sum over all. For a resampling whose threads walk over the planes: the planes. 0 where the
  // number does not matter.
  double rows = 0;
  double elements = 0; // of the largest operand; 0: unknown

  bool operator==(const MemoryShape&) const = default;
};

struct Work {
  Family family = Family::Memory;
  Precision precision = Precision::Float32; // of the arithmetic
  double element_bytes = 4;
  double flops = 0; // additions and multiplications, as torch.utils.flop_counter counts them
  // How much of its shape's arithmetic the kernel does: attention skips masked blocks, a recurrent
  // layer repeats its product in every step.
  double share = 1;
  // Over all passes: a tensor that is read twice counts twice.
  double bytes_read = 0;
  double bytes_written = 0;
  double footprint_bytes = 0; // the distinct bytes among them
  double kernels = 1;
  // The shape that `family` names; the others have no value. The constructors choose it.
  union {
    MemoryShape memory;
    ProductShape product;
    ConvolutionShape convolution;
    AttentionShape attention;
  };

  Work() : memory() {}
  explicit Work(const MemoryShape& shape) : memory(shape) {}
  explicit Work(const ProductShape& shape) : family(Family::Product), product(shape) {}
  explicit Work(const ConvolutionShape& shape) : family(Family::Convolution), convolution(shape) {}
  explicit Work(const AttentionShape& shape) : family(Family::Attention), attention(shape) {}

  bool operator==(const Work& other) const {
    return family == other.family && precision == other.precision && flops == other.flops &&
        bytes_read == other.bytes_read && bytes_written == other.bytes_written &&
        footprint_bytes == other.footprint_bytes && share == other.share &&
        kernels == other.kernels && element_bytes == other.element_bytes && has_shape_of(other);
  }

  double bytes() const { return bytes_read + bytes_written; }

 private:
  // Returns whether two works of one family have the same shape.
  bool has_shape_of(const Work& other) const {
    switch (family) {
      case Family::Memory:
        return memory == other.memory;
      case Family::Product:
        return product == other.product;
      case Family::Convolution:
        return convolution == other.convolution;
      case Family::Attention:
        return attention == other.attention;
    }
    return false;
  }
};

// Returns the record of one kernel that is bound by memory.
inline Work memory_work(
    double bytes_read,
    double bytes_written,
    Access access = Access::Pointwise) {
  Work work(MemoryShape{.access = access});
  work.bytes_read = bytes_read;
  work.bytes_written = bytes_written;
  work.footprint_bytes = bytes_read + bytes_written;
  return work;
}

} // namespace anyrig::virtual_gpu
