// What the formulas of the clock know about a GPU in addition to its data sheet. The values come
// from anyrig/hardware/coefficients.toml, which states the source of each.
#pragma once

#include "time/work.h"

#include <array>
#include <cstddef>
#include <string>

namespace anyrig::virtual_gpu {

// The tiles of the result that one block of a product computes: rows x columns.
struct Tile {
  double m, n;
};
inline constexpr std::array<Tile, 11> kTiles = {
    {{256, 128},
     {128, 256},
     {128, 128},
     {128, 64},
     {64, 128},
     {64, 64},
     {128, 32},
     {32, 128},
     {64, 32},
     {32, 64},
     {32, 32}}};

// Products, and convolutions as implicit products.
struct TileCoefficients {
  // The fraction of a multiprocessor's rate that blocks reach together, for each of kTiles; 0: the
  // library has no such tile.
  std::array<double, kTiles.size()> efficiency{};
  double block_cycles = 0;  // start and end of a block of 128 x 128; less for a smaller tile
  double lone_share = 1;    // of that rate, for a multiprocessor with one block of 128 x 128
  double lone_exponent = 0; // the share of a smaller tile: times (its area / 128^2)^exponent
  double wave_exponent = 1; // a last wave of fill f takes f^exponent of a wave; 0: a whole wave
  double memory_fraction = 1; // of the bandwidth
  double overlap = 0; // of the shorter of computing and moving data, the part that adds to the time
  double long_penalty = 0; // for each doubling of k beyond 8192
  double throttle = 0; // how much slower long kernels are, when the power limit lowers the clock
  double throttle_seconds = 1; // the duration at which half of it applies
};

struct ConvolutionCoefficients {
  // Of implicit products, relative to products of the same sizes; by ConvolutionPass.
  std::array<double, 3> efficiency{};
  double memory_fraction = 1; // of the bandwidth
  double overlap = 0; // as for products, as the next two
  double throttle = 0;
  double throttle_seconds = 1;
  // Winograd's algorithm in one kernel, of tiles of 2 x 2; 0: not used
  double winograd_efficiency = 0;
  double winograd_overhead = 0; // as channels
  double winograd_lone_share = 1;
  // Winograd's algorithm of tiles of 4 x 4, by products between two transforms: of the rate, for each
  // of kTiles; 0: no such tile; all 0: not used
  std::array<double, kTiles.size()> transformed_efficiency{};
  double transform_fraction = 1; // of the bandwidth
  double filter_fraction = 1; // of the bandwidth, for the transform of the weight
  double grouped_efficiency = 1; // of groups that matrix units do not take, relative to one group
  double grouped_transpose_fraction = 0; // of the bandwidth; 0: no transposes
  double grouped_transpose_forward = 1; // 0: forward passes need none
  // Which groups are transposed: those at least a width wide, in channels, of tensors with fewer
  // channels than the width's limit; the last width has no limit.
  std::array<double, 3> grouped_transpose_widths{};
  std::array<double, 2> grouped_transpose_channels{};
  std::array<double, 3> depthwise_efficiency{}; // of the float32 rate; by ConvolutionPass
  double depthwise_memory_fraction = 1; // of the bandwidth
  double depthwise_planar_share = 1; // of depthwise_efficiency, in NCHW
  // Of the float32 rate, for fewer than 4 channels, as in a first layer; 0: as for more channels
  std::array<double, 3> few_channels_rate{}; // by ConvolutionPass
  double layout_fraction = 1; // of the bandwidth, for the transforms of NCHW; 0: no transforms
  // Kernels of 1 x 1 take NCHW without transforms if a plane is a multiple of this many bytes, by
  // ConvolutionPass; 0: never
  std::array<double, 3> planar_alignment_bytes{};
};

inline constexpr size_t kAttentionKernels = 3;

struct AttentionCoefficients {
  // Of the rate, when many blocks work on long sequences; by AttentionKernel.
  std::array<double, kAttentionKernels> forward_efficiency{};
  std::array<double, kAttentionKernels> backward_efficiency{};
  double head_overhead = 0; // cost of a score's exponential, as elements of the head
  double block_overhead = 0; // start and end of a block, as keys
  double memory_fraction = 1;
};

struct MemoryCoefficients {
  std::array<double, kAccesses> fraction{}; // of the bandwidth, by Access
  // Of a multiprocessor, for each element, by Access: short elements do not make such kernels
  // faster. 0: no limit
  std::array<double, kAccesses> element_cycles{};
  double cache_speedup = 1; // of bytes that fit the L2 cache, relative to the bandwidth
  double cache_share = 1; // of the L2 cache that such bytes may fill
  double row_cycles = 0; // of a multiprocessor, for each row that is normalized
  double factorization_cycles = 0; // for each column of a Cholesky factorization
  double column_cycles = 0; // for each row of a reduction along columns
  double softmax_column_cycles = 0; // for each row of a softmax along columns
  // Of a multiprocessor, for each element of a softmax along columns, forward and backward; 0: no
  // limit
  std::array<double, 2> softmax_column_element_cycles{};
  double join_seconds = 0; // of a reduction whose blocks add up their parts
  double window_step_seconds = 0; // of a thread that resamples a point plane by plane
};

struct CopyCoefficients {
  double pcie_fraction = 1; // of the bandwidth, from and to pinned memory
  double pageable_fraction = 1;
  double link_fraction = 1;
  double network_fraction = 1;
  double start_seconds = 0; // of each copy from or to a device
};

// NCCL moves small messages by a protocol of low latency, and large ones by one of high bandwidth.
struct CollectiveCoefficients {
  double base_seconds = 0; // of the low-latency protocol
  double link_step_seconds = 0;
  double pcie_step_seconds = 0;
  double ring_network_step_seconds = 0;
  double tree_network_step_seconds = 0;
  double low_latency_fraction = 1; // of the copies' rate
  double large_base_seconds = 0; // of the protocol of high bandwidth, for all steps in a node
  double bandwidth_fraction = 1; // of the copies' rate
  double multiprocessor_share = 0; // of the GPU, taken from kernels that overlap
};

struct HostCoefficients {
  double launch_seconds = 0; // of a kernel or copy
  double operator_seconds = 0; // of an operator that the program calls, in addition
  double backward_seconds = 0; // of an operator in a backward pass, in addition
  double graph_node_seconds = 0; // of the GPU, between the nodes of a CUDA graph
};

struct Coefficients {
  TileCoefficients product_simt; // without matrix units
  TileCoefficients batched_simt;
  TileCoefficients product_tensor; // on matrix units
  ConvolutionCoefficients convolution_simt;
  ConvolutionCoefficients convolution_tensor;
  AttentionCoefficients attention;
  MemoryCoefficients memory;
  CopyCoefficients copy;
  CollectiveCoefficients collective;
  HostCoefficients host;
  double kernel_floor_seconds = 0; // the shortest kernel
};

// Calls `visit(name, first value, count)` for each coefficient, such as
// ("product.simt.overlap", &…, 1).
template <class Visit>
void visit_coefficients(Coefficients& all, const Visit& visit) {
  const auto tiles = [&](const std::string& group, TileCoefficients& of) {
    visit(group + ".tile_efficiency", of.efficiency.data(), of.efficiency.size());
    visit(group + ".block_cycles", &of.block_cycles, size_t{1});
    visit(group + ".lone_share", &of.lone_share, size_t{1});
    visit(group + ".lone_exponent", &of.lone_exponent, size_t{1});
    visit(group + ".wave_exponent", &of.wave_exponent, size_t{1});
    visit(group + ".memory_fraction", &of.memory_fraction, size_t{1});
    visit(group + ".overlap", &of.overlap, size_t{1});
    visit(group + ".long_penalty", &of.long_penalty, size_t{1});
    visit(group + ".throttle", &of.throttle, size_t{1});
    visit(group + ".throttle_seconds", &of.throttle_seconds, size_t{1});
  };
  const auto convolution = [&](const std::string& group, ConvolutionCoefficients& of) {
    visit(group + ".efficiency", of.efficiency.data(), of.efficiency.size());
    visit(group + ".memory_fraction", &of.memory_fraction, size_t{1});
    visit(group + ".overlap", &of.overlap, size_t{1});
    visit(group + ".throttle", &of.throttle, size_t{1});
    visit(group + ".throttle_seconds", &of.throttle_seconds, size_t{1});
    visit(group + ".winograd_efficiency", &of.winograd_efficiency, size_t{1});
    visit(group + ".winograd_overhead", &of.winograd_overhead, size_t{1});
    visit(group + ".winograd_lone_share", &of.winograd_lone_share, size_t{1});
    visit(
        group + ".transformed_efficiency", of.transformed_efficiency.data(),
        of.transformed_efficiency.size());
    visit(group + ".transform_fraction", &of.transform_fraction, size_t{1});
    visit(group + ".filter_fraction", &of.filter_fraction, size_t{1});
    visit(group + ".grouped_efficiency", &of.grouped_efficiency, size_t{1});
    visit(group + ".grouped_transpose_fraction", &of.grouped_transpose_fraction, size_t{1});
    visit(group + ".grouped_transpose_forward", &of.grouped_transpose_forward, size_t{1});
    visit(
        group + ".grouped_transpose_widths", of.grouped_transpose_widths.data(),
        of.grouped_transpose_widths.size());
    visit(
        group + ".grouped_transpose_channels", of.grouped_transpose_channels.data(),
        of.grouped_transpose_channels.size());
    visit(group + ".depthwise_efficiency", of.depthwise_efficiency.data(), size_t{3});
    visit(group + ".depthwise_memory_fraction", &of.depthwise_memory_fraction, size_t{1});
    visit(group + ".depthwise_planar_share", &of.depthwise_planar_share, size_t{1});
    visit(group + ".few_channels_rate", of.few_channels_rate.data(), size_t{3});
    visit(group + ".planar_alignment_bytes", of.planar_alignment_bytes.data(), size_t{3});
    visit(group + ".layout_fraction", &of.layout_fraction, size_t{1});
  };
  tiles("product.simt", all.product_simt);
  tiles("batched.simt", all.batched_simt);
  tiles("product.tensor", all.product_tensor);
  convolution("convolution.simt", all.convolution_simt);
  convolution("convolution.tensor", all.convolution_tensor);
  visit("attention.forward_efficiency", all.attention.forward_efficiency.data(), kAttentionKernels);
  visit(
      "attention.backward_efficiency", all.attention.backward_efficiency.data(), kAttentionKernels);
  visit("attention.head_overhead", &all.attention.head_overhead, size_t{1});
  visit("attention.block_overhead", &all.attention.block_overhead, size_t{1});
  visit("attention.memory_fraction", &all.attention.memory_fraction, size_t{1});
  visit("memory.fraction", all.memory.fraction.data(), all.memory.fraction.size());
  visit(
      "memory.element_cycles", all.memory.element_cycles.data(), all.memory.element_cycles.size());
  visit("memory.cache_speedup", &all.memory.cache_speedup, size_t{1});
  visit("memory.cache_share", &all.memory.cache_share, size_t{1});
  visit("memory.row_cycles", &all.memory.row_cycles, size_t{1});
  visit("memory.factorization_cycles", &all.memory.factorization_cycles, size_t{1});
  visit("memory.column_cycles", &all.memory.column_cycles, size_t{1});
  visit("memory.softmax_column_cycles", &all.memory.softmax_column_cycles, size_t{1});
  visit(
      "memory.softmax_column_element_cycles", all.memory.softmax_column_element_cycles.data(),
      size_t{2});
  visit("memory.join_seconds", &all.memory.join_seconds, size_t{1});
  visit("memory.window_step_seconds", &all.memory.window_step_seconds, size_t{1});
  visit("memory.kernel_floor_seconds", &all.kernel_floor_seconds, size_t{1});
  visit("copy.pcie_fraction", &all.copy.pcie_fraction, size_t{1});
  visit("copy.pageable_fraction", &all.copy.pageable_fraction, size_t{1});
  visit("copy.link_fraction", &all.copy.link_fraction, size_t{1});
  visit("copy.network_fraction", &all.copy.network_fraction, size_t{1});
  visit("copy.start_seconds", &all.copy.start_seconds, size_t{1});
  visit("collective.base_seconds", &all.collective.base_seconds, size_t{1});
  visit("collective.link_step_seconds", &all.collective.link_step_seconds, size_t{1});
  visit("collective.pcie_step_seconds", &all.collective.pcie_step_seconds, size_t{1});
  visit(
      "collective.ring_network_step_seconds", &all.collective.ring_network_step_seconds, size_t{1});
  visit(
      "collective.tree_network_step_seconds", &all.collective.tree_network_step_seconds, size_t{1});
  visit("collective.low_latency_fraction", &all.collective.low_latency_fraction, size_t{1});
  visit("collective.large_base_seconds", &all.collective.large_base_seconds, size_t{1});
  visit("collective.bandwidth_fraction", &all.collective.bandwidth_fraction, size_t{1});
  visit("collective.multiprocessor_share", &all.collective.multiprocessor_share, size_t{1});
  visit("host.launch_seconds", &all.host.launch_seconds, size_t{1});
  visit("host.operator_seconds", &all.host.operator_seconds, size_t{1});
  visit("host.backward_seconds", &all.host.backward_seconds, size_t{1});
  visit("host.graph_node_seconds", &all.host.graph_node_seconds, size_t{1});
}

} // namespace anyrig::virtual_gpu
