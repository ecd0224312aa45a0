// Convolutions: implicit products, whose operands are gathered from the tensors.
//
//              m                     n               k
//   forward    batch * outputs       out channels    in channels * kernel
//   by input   batch * inputs        in channels     out channels * kernel / strides
//   by weight  out channels          in ch. * kernel batch * outputs
//
// Channels count per group. Matrix units want channels last, in multiples of 16 bytes: other tensors
// are transformed first.
//
//   groups on matrix units        channels last                         NCHW
//   narrow, not a multiple of 4   slow kernels; by weight, k not split  slow kernels
//   wide, or of few channels      transposes to float32, products       transforms, products
//   others                        products                              transforms, products
#include "time/cost/cost.h"

#include <algorithm>
#include <cmath>

namespace anyrig::virtual_gpu {
namespace {

// cuDNN pads the batch to a multiple of this between Winograd's transforms, as the grids of its
// products show.
constexpr double kImageBlock = 16;
constexpr double kFewChannels = 4;
constexpr double kPaddedGroup = 64;
constexpr double kAlignedBytes = 16;

ProductShape implicit_product(const ConvolutionShape& shape) {
  const double in = shape.in_channels / shape.groups;
  const double out = shape.out_channels / shape.groups;
  const double kernel = volume(shape.kernel);
  ProductShape product;
  product.batch = shape.groups;
  switch (shape.pass) {
    case ConvolutionPass::Forward:
      product.m = shape.batch * volume(shape.out);
      product.n = out;
      product.k = in * kernel;
      break;
    case ConvolutionPass::ByInput:
      product.m = shape.batch * volume(shape.in);
      product.n = in;
      // Each input meets only the part of the kernel that its phase of the stride allows.
      product.k = out * kernel * volume(shape.out) / std::max(volume(shape.in), 1.0);
      break;
    case ConvolutionPass::ByWeight:
      product.m = out;
      product.n = in * kernel;
      product.k = shape.batch * volume(shape.out);
      break;
  }
  return product;
}

bool is_depthwise(const ConvolutionShape& shape) {
  return shape.groups > 1 && shape.groups == shape.in_channels;
}

bool suits_winograd(const ConvolutionShape& shape, float kernel) {
  return shape.kernel[1] == kernel && shape.kernel[2] == kernel && shape.kernel[0] == 1 &&
      volume(shape.stride) == 1 && volume(shape.dilation) == 1 && shape.groups == 1;
}

bool is_grouped(const ConvolutionShape& shape) {
  return shape.groups > 1 && !is_depthwise(shape);
}

// Kernels on matrix units load 8 bytes at a time, of one group. They pad a wide group, as they pad
// the channels of a convolution without groups.
bool suits_matrix_units(const ConvolutionShape& shape, double element_bytes) {
  const double step = 8 / element_bytes;
  const double in = shape.in_channels / shape.groups;
  const double out = shape.out_channels / shape.groups;
  return std::min(in, out) >= kPaddedGroup ||
      (std::fmod(in, step) == 0 && std::fmod(out, step) == 0);
}

// An image in NCHW is a matrix of channels x points. A kernel of 1 x 1 multiplies it as it is, if its
// rows are aligned as the kernel asks.
bool is_planar_product(const ConvolutionCoefficients& coefficients, const Work& work) {
  const auto& shape = work.convolution;
  const double alignment = coefficients.planar_alignment_bytes[static_cast<size_t>(shape.pass)];
  return alignment > 0 && volume(shape.kernel) == 1 && volume(shape.stride) == 1 &&
      shape.groups == 1 && std::fmod(volume(shape.in) * work.element_bytes, alignment) == 0;
}

// cuDNN 8 has no kernels for some groups of halves in channels-last order: it transposes the
// tensors to float32 and back. Sources: pytorch/pytorch issues 34977 (groups of 64 channels) and
// 54324 (the transposes). Training steps of timm's models show that wide groups are transposed, and
// narrower ones of tensors with few channels. Inference steps show that cuDNN 9 transposes none.
bool needs_transposes(const ConvolutionCoefficients& coefficients, const Work& work) {
  const auto& shape = work.convolution;
  const bool has_kernel =
      shape.pass == ConvolutionPass::Forward && coefficients.grouped_transpose_forward == 0;
  if (has_kernel || !is_grouped(shape) || !shape.channels_last || work.element_bytes != 2) {
    return false;
  }
  const double channels = std::max(shape.in_channels, shape.out_channels);
  const double width = channels / shape.groups;
  const auto& widths = coefficients.grouped_transpose_widths;
  const auto& limits = coefficients.grouped_transpose_channels;
  for (size_t i = 0; i < limits.size(); ++i) {
    if (width >= widths[i] && channels < limits[i]) {
      return true;
    }
  }
  return width >= widths.back();
}

double transposing_seconds(
    const GpuFacts& gpu,
    const ConvolutionCoefficients& coefficients,
    const Work& work) {
  const auto& shape = work.convolution;
  const double elements =
      shape.batch * (shape.in_channels * volume(shape.in) + shape.out_channels * volume(shape.out));
  return quotient(
      elements * (work.element_bytes + 4),
      gpu.memory_bytes_per_second * coefficients.grouped_transpose_fraction);
}

bool has_few_channels(const ConvolutionShape& shape) {
  return shape.groups == 1 && std::min(shape.in_channels, shape.out_channels) < kFewChannels;
}

// The bytes of the tensors in channels-last order whose channels are not a multiple of 16 bytes, which
// kernels on matrix units load at a time. cuDNN pads the channels in copies of these tensors.
double unaligned_bytes(const Work& work) {
  const auto& shape = work.convolution;
  const auto bytes_of = [&](double channels, double points) {
    const bool is_aligned = std::fmod(channels * work.element_bytes, kAlignedBytes) == 0;
    return is_aligned ? 0 : shape.batch * channels * points * work.element_bytes;
  };
  return bytes_of(shape.in_channels, volume(shape.in)) +
      bytes_of(shape.out_channels, volume(shape.out));
}

// The bytes that are copied to tensors in the order, or of the channels, that the kernel reads.
double laid_out_bytes(const ConvolutionCoefficients& coefficients, const Work& work) {
  if (work.convolution.channels_last) {
    return has_few_channels(work.convolution) ? 0 : unaligned_bytes(work);
  }
  return is_planar_product(coefficients, work) ? 0 : work.bytes();
}

// The gradient by input of a kernel smaller than its stride has gaps, which are zeroed first.
double zeroing_seconds(
    const GpuFacts& gpu,
    const ConvolutionCoefficients& coefficients,
    const Work& work) {
  const auto& shape = work.convolution;
  const bool has_gaps =
      shape.pass == ConvolutionPass::ByInput && volume(shape.kernel) < volume(shape.stride);
  return has_gaps
      ? moving_seconds(gpu, work.bytes_written, work.bytes_written, coefficients.memory_fraction)
      : 0;
}

// Kernels for depthwise convolutions use no matrix units.
double depthwise_seconds(
    const GpuFacts& gpu,
    const ConvolutionCoefficients& coefficients,
    const Work& work) {
  const double efficiency =
      coefficients.depthwise_efficiency[static_cast<size_t>(work.convolution.pass)] *
      (work.convolution.channels_last ? 1.0 : coefficients.depthwise_planar_share);
  return std::max(
      quotient(work.flops, gpu.rate(Precision::Float32) * efficiency),
      moving_seconds(
          gpu, work.bytes(), work.footprint_bytes, coefficients.depthwise_memory_fraction));
}

// Kernels for the first layer use no matrix units, whatever the dtype.
double few_channels_seconds(
    const GpuFacts& gpu,
    const ConvolutionCoefficients& coefficients,
    const Work& work,
    double rate) {
  return std::max(
      quotient(work.flops, gpu.rate(Precision::Float32) * rate),
      moving_seconds(gpu, work.bytes(), work.footprint_bytes, coefficients.memory_fraction));
}

// Returns the time of `blocks` blocks of which a multiprocessor holds two, in times that it takes
// for each of two. A lone block takes 1 / `lone_share` of it.
double pairs_of(double blocks, double multiprocessors, double lone_share) {
  const double waves = blocks / multiprocessors;
  const double paired = 2 * std::floor(waves / 2);
  const double rest = waves - paired;
  return paired + (rest > 1 ? 2.0 : rest > 0 ? std::min(1 / lone_share, 2.0) : 0.0);
}

// Winograd's algorithm with tiles of 2 x 2 outputs: 16 products in place of 36. A block computes
// 8 x 16 outputs of 32 channels.
double winograd_seconds(
    const GpuFacts& gpu,
    const ConvolutionCoefficients& coefficients,
    const Work& work) {
  const auto& shape = work.convolution;
  const bool by_input = shape.pass == ConvolutionPass::ByInput;
  const auto& image = by_input ? shape.in : shape.out;
  const double results = by_input ? shape.in_channels : shape.out_channels;
  const double sums = by_input ? shape.out_channels : shape.in_channels;
  const double blocks =
      shape.batch * std::ceil(image[1] / 8) * std::ceil(image[2] / 16) * std::ceil(results / 32);
  const double rate =
      gpu.rate(work.precision) * coefficients.winograd_efficiency / gpu.multiprocessors;
  const double block_seconds = 2 * 16 * 32 * 32 * (sums + coefficients.winograd_overhead) / rate;
  const double filters = work.element_bytes * results * sums;
  return pairs_of(blocks, gpu.multiprocessors, coefficients.winograd_lone_share) * block_seconds +
      moving_seconds(gpu, (9 + 2 * 16) * filters, 16 * filters, coefficients.filter_fraction) +
      moving_seconds(gpu, work.bytes(), work.footprint_bytes, coefficients.memory_fraction) *
      coefficients.overlap +
      gpu.coefficients.kernel_floor_seconds;
}

// Winograd's algorithm with tiles of 4 x 4 outputs, between two transforms in memory: 36 products in
// place of 144 for a kernel of 3 x 3, and 64 in place of 400 for one of 5 x 5.
double transformed_seconds(
    const GpuFacts& gpu,
    const ConvolutionCoefficients& coefficients,
    const Work& work) {
  const auto& shape = work.convolution;
  const double side = shape.kernel[1], points = (side + 3) * (side + 3);
  const auto& out = shape.pass == ConvolutionPass::ByInput ? shape.in : shape.out;
  const double images = shape.pass == ConvolutionPass::ByWeight
      ? shape.batch // which the sum runs over
      : kImageBlock * std::ceil(shape.batch / kImageBlock);
  const double places = images * std::ceil(out[1] / 4) * std::ceil(out[2] / 4);
  ProductShape product;
  product.batch = points;
  switch (shape.pass) {
    case ConvolutionPass::Forward:
      product.m = places, product.n = shape.out_channels, product.k = shape.in_channels;
      break;
    case ConvolutionPass::ByInput:
      product.m = places, product.n = shape.in_channels, product.k = shape.out_channels;
      break;
    case ConvolutionPass::ByWeight:
      product.m = shape.out_channels, product.n = shape.in_channels, product.k = places;
      break;
  }
  const double filters = work.element_bytes * shape.in_channels * shape.out_channels;
  const double data =
      points * work.element_bytes * places * (shape.in_channels + shape.out_channels);
  TileCoefficients tiles = gpu.coefficients.batched_simt;
  tiles.efficiency = coefficients.transformed_efficiency;
  return tiled_seconds(gpu, tiles, product, gpu.rate(work.precision)) +
      moving_seconds(gpu, 2 * data + work.bytes(), data, coefficients.transform_fraction) +
      moving_seconds(
             gpu, (side * side + 2 * points) * filters, points * filters,
             coefficients.filter_fraction) +
      3 * gpu.coefficients.kernel_floor_seconds;
}

} // namespace

double convolution_seconds(const GpuFacts& gpu, const Work& work) {
  const auto& shape = work.convolution;
  const bool on_matrix_units = gpu.uses_matrix_units(work.precision);
  const auto& coefficients =
      on_matrix_units ? gpu.coefficients.convolution_tensor : gpu.coefficients.convolution_simt;
  const auto& tiles =
      on_matrix_units ? gpu.coefficients.product_tensor : gpu.coefficients.product_simt;
  if (is_depthwise(shape)) {
    return depthwise_seconds(gpu, coefficients, work);
  }
  const double few_channels_rate = coefficients.few_channels_rate[static_cast<size_t>(shape.pass)];
  if (has_few_channels(shape) && few_channels_rate > 0) {
    return few_channels_seconds(gpu, coefficients, work, few_channels_rate);
  }
  const bool is_slow =
      is_grouped(shape) && !(on_matrix_units && suits_matrix_units(shape, work.element_bytes));
  const bool is_transposed = on_matrix_units && needs_transposes(coefficients, work);
  const double efficiency = coefficients.efficiency[static_cast<size_t>(shape.pass)] *
      (is_slow ? coefficients.grouped_efficiency : 1.0);
  const bool may_split = !is_slow || !shape.channels_last;
  double seconds =
      overlapped(
          tiled_seconds(
              gpu, tiles, implicit_product(shape), gpu.rate(work.precision) * efficiency,
              may_split),
          moving_seconds(gpu, work.bytes(), work.footprint_bytes, coefficients.memory_fraction),
          coefficients.overlap) +
      zeroing_seconds(gpu, coefficients, work);
  const auto& transformed = coefficients.transformed_efficiency;
  const bool is_transformed =
      std::any_of(transformed.begin(), transformed.end(), [](double share) { return share > 0; });
  if ((suits_winograd(shape, 3) || suits_winograd(shape, 5)) && is_transformed) {
    seconds = std::min(seconds, transformed_seconds(gpu, coefficients, work));
  }
  if (suits_winograd(shape, 3) && coefficients.winograd_efficiency > 0 &&
      shape.pass != ConvolutionPass::ByWeight) {
    seconds = std::min(seconds, winograd_seconds(gpu, coefficients, work));
  }
  double layout = 0;
  if (is_transposed) {
    layout = transposing_seconds(gpu, coefficients, work);
  } else if (on_matrix_units && !(is_slow && shape.channels_last)) {
    layout = quotient(
        2 * laid_out_bytes(coefficients, work),
        gpu.memory_bytes_per_second * coefficients.layout_fraction);
  }
  return throttled(seconds, coefficients.throttle, coefficients.throttle_seconds) + layout;
}

} // namespace anyrig::virtual_gpu
