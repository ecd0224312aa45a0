// torch.ops.symm_mem: operators whose CUDA kernels access the memory of all ranks directly. The
// checks and their messages are those of
// torch/csrc/distributed/c10d/symm_mem/CUDASymmetricMemoryOps.cu.
//
//   barrier ── each rank reads what it needs from all buffers ── barrier
//
// Sums add the ranks in order and round after each step, as CUDA's do. More than 400 lines: one
// function for each operator, most of it argument checks.
#ifdef USE_C10D_GLOO

#include "extras/symmetric/symmetric_memory.h"

#include "dispatch/no_warnings.h"
#include "dispatch/twin.h"
#include "extras/symmetric/signals.h"
#include "memory/known_values.h"
#include "time/clock.h"
#include "time/running_operator.h"
#include "time/streams.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <limits>

namespace anyrig::virtual_gpu {
namespace {

using Text = std::string;

size_t alignment_of(size_t bytes) {
  for (const size_t alignment : {16, 8, 4, 2}) {
    if (bytes % alignment == 0) {
      return alignment;
    }
  }
  return 1;
}

size_t checked_alignment(const at::Tensor& tensor, const char* name) {
  const auto element = static_cast<size_t>(tensor.element_size());
  const size_t minimum = std::max<size_t>(4, element);
  const size_t offset_alignment =
      alignment_of(static_cast<size_t>(tensor.storage_offset()) * element);
  TORCH_CHECK(
      offset_alignment >= minimum, name, "<", tensor.scalar_type(),
      ">: input ptr + offset must be at least ", minimum, "-byte aligned.");
  const size_t size_alignment = alignment_of(static_cast<size_t>(tensor.numel()) * element);
  TORCH_CHECK(
      size_alignment >= minimum, name, "<", tensor.scalar_type(), ">: input size must be at least ",
      minimum, "-byte aligned.");
  return std::min(offset_alignment, size_alignment);
}

void check_float_or_bfloat16(const at::Tensor& tensor, const char* name) {
  const auto dtype = tensor.scalar_type();
  TORCH_CHECK_NOT_IMPLEMENTED(
      dtype == at::kFloat || dtype == at::kBFloat16, '"', name, "\" not implemented for '",
      c10::toString(dtype), "'");
}

void check_unrolled(int ranks) {
  TORCH_CHECK(ranks == 2 || ranks == 4 || ranks == 8, "Not implemented for world_size=", ranks);
}

Rendezvous checked_rendezvous(
    const at::Tensor& tensor,
    const Text& group,
    const char* name,
    const char* which = "input") {
  auto memory = rendezvous(tensor, group);
  TORCH_CHECK(
      memory.peers != nullptr, name, ": ", which, " must be allocated with empty_strided_p2p().");
  return memory;
}

// The elements of a symmetric tensor on each rank.
class Elements {
 public:
  Elements(const Rendezvous& memory, const at::Tensor& tensor)
      : peers_(*memory.peers),
        dtype_(tensor.scalar_type()),
        first_byte_(
            memory.offset + static_cast<size_t>(tensor.storage_offset() * tensor.element_size())),
        count_(tensor.numel()) {}

  // Returns a one-dimensional CPU tensor over elements [begin, end) of `rank`'s tensor. The range
  // is clipped to the tensor, so the last ranks may get no elements.
  at::Tensor slice(int rank, int64_t begin, int64_t end) const {
    const int64_t from = std::min(begin, count_);
    const auto start = static_cast<size_t>(from) * c10::elementSize(dtype_);
    auto* first = static_cast<char*>(peers_.piece(rank).buffer()) + first_byte_ + start;
    return at::from_blob(first, {std::min(end, count_) - from}, at::TensorOptions().dtype(dtype_));
  }

  at::Tensor sum(int64_t begin, int64_t end) const {
    at::Tensor sum = slice(0, begin, end).clone();
    for (int rank = 1; rank < peers_.size(); ++rank) {
      sum.add_(slice(rank, begin, end));
    }
    return sum;
  }

  at::Tensor sum() const { return sum(0, count_); }

 private:
  const Peers& peers_;
  c10::ScalarType dtype_;
  size_t first_byte_;
  int64_t count_;
};

// One call of an operator on this rank: waits for all ranks and occupies the stream on the virtual
// clock. In ShapeOnly the ranks wait for each other, too, but compute nothing.
class SymmetricCall {
 public:
  SymmetricCall(const Peers& peers, const char* name, CollectiveKind kind, double bytes)
      : peers_(peers), name_(name), stream_(current_stream(peers.device())) {
    auto& clock = Clock::get();
    const RunningOperator running(name_);
    const double start = barrier(clock.launch_collective(stream_));
    clock.run_collective(
        stream_, start, collective_seconds(kind, bytes, peers.places()), Clock::Direction::Both,
        {bytes});
  }

  double barrier(double now = 0) const {
    return peers_.barrier(name_, /*channel=*/0, /*timeout_ms=*/0, now);
  }

 private:
  const Peers& peers_;
  const char* name_;
  c10::Stream stream_;
};

void copy_row_to(const at::Tensor& tensor, const at::Tensor& row) {
  twin_of(tensor).copy_(row.view(tensor.sizes()));
}

at::Tensor sum_to(
    const at::Tensor& input,
    const std::optional<at::Tensor>& local_input,
    const Rendezvous& memory,
    const char* name,
    const at::Tensor& out) {
  const Elements elements(memory, input);
  if (local_input.has_value() && !shape_only()) {
    elements.slice(memory.peers->rank(), 0, local_input->numel())
        .copy_(twin_of(*local_input).view(-1));
  }
  const SymmetricCall call(
      *memory.peers, name, CollectiveKind::AllReduce, static_cast<double>(input.nbytes()));
  if (shape_only()) {
    forget_values(out, WhyUnknown::FromOutside);
  } else {
    copy_row_to(out, elements.sum(0, out.numel()));
  }
  call.barrier();
  return out;
}

at::Tensor one_shot(
    const at::Tensor& input,
    const std::optional<at::Tensor>& local_input,
    const Text& reduce_op,
    const Text& group,
    at::Tensor out) {
  constexpr auto kName = "one_shot_all_reduce";
  TORCH_CHECK(input.is_contiguous(), kName, ": input must be contiguous.");
  TORCH_CHECK(out.is_contiguous(), kName, ": output must be contiguous.");
  TORCH_CHECK(
      local_input.has_value() || out.sizes() == input.sizes(), kName,
      ": input/output size mismatch, input.sizes(): ", input.sizes(),
      ", output.sizes(): ", out.sizes());
  TORCH_CHECK(reduce_op == "sum", kName, ": only sum is supported for now.");
  if (local_input.has_value()) {
    TORCH_CHECK(local_input->is_contiguous(), kName, ": local input must be contiguous.");
    TORCH_CHECK(
        local_input->numel() <= input.numel(), kName,
        ": local input size must be smaller than symm buffer size.");
    TORCH_CHECK(
        local_input->sizes() == out.sizes(), kName,
        ": input/output size mismatch, input.sizes(): ", local_input->sizes(),
        ", output.sizes(): ", out.sizes());
  }
  if (input.numel() == 0) {
    TORCH_CHECK(input.scalar_type() == out.scalar_type());
    return out;
  }
  const auto memory = checked_rendezvous(input, group, kName);
  checked_alignment(input, kName);
  if (local_input.has_value()) {
    checked_alignment(*local_input, kName);
  }
  check_float_or_bfloat16(input, kName);
  return sum_to(input, local_input, memory, kName, out);
}

at::Tensor one_shot_all_reduce(const at::Tensor& input, Text reduce_op, Text group) {
  return one_shot(input, std::nullopt, reduce_op, group, at::empty_like(input));
}

at::Tensor one_shot_all_reduce_out(
    const at::Tensor& input,
    Text reduce_op,
    Text group,
    at::Tensor out) {
  return one_shot(input, std::nullopt, reduce_op, group, std::move(out));
}

at::Tensor one_shot_all_reduce_copy(
    const at::Tensor& buffer,
    const at::Tensor& local_input,
    Text reduce_op,
    Text group) {
  return one_shot(buffer, local_input, reduce_op, group, at::empty_like(local_input));
}

at::Tensor one_shot_all_reduce_copy_out(
    const at::Tensor& buffer,
    const at::Tensor& local_input,
    Text reduce_op,
    Text group,
    at::Tensor out) {
  return one_shot(buffer, local_input, reduce_op, group, std::move(out));
}

int64_t elements_per_rank(int64_t count, int64_t unit, int ranks) {
  const int64_t whole = unit * ranks;
  return (count + whole - 1) / whole * whole / ranks;
}

// Each rank sums its share of the elements. In place, the rank writes the sum to all buffers.
// Otherwise it writes the sum to its own buffer, from which the other ranks copy it.
at::Tensor two_shot(
    const at::Tensor& input,
    const std::optional<at::Tensor>& output,
    const Text& reduce_op,
    const Text& group) {
  constexpr auto kName = "two_shot_all_reduce";
  TORCH_CHECK(input.is_contiguous(), kName, ": input must be contiguous.");
  TORCH_CHECK(reduce_op == "sum", kName, ": only sum is supported for now.");
  const auto memory = checked_rendezvous(input, group, kName);
  const auto alignment = static_cast<int64_t>(checked_alignment(input, kName));
  const at::Tensor result = output.value_or(input);
  if (output.has_value()) {
    TORCH_CHECK(output->is_contiguous(), kName, ": output must be contiguous.");
    const auto output_alignment = static_cast<int64_t>(checked_alignment(*output, kName));
    TORCH_CHECK(
        alignment <= output_alignment, kName,
        ": output alignment must be equal to or larger than input.");
    TORCH_CHECK(
        output->sizes() == input.sizes(), kName,
        ": input/output size mismatch, input.sizes(): ", input.sizes(),
        ", output.sizes(): ", output->sizes());
    TORCH_CHECK(input.numel() > 0 || output->scalar_type() == input.scalar_type());
  }
  if (input.numel() == 0) {
    return result;
  }
  check_float_or_bfloat16(input, kName);
  const Peers& peers = *memory.peers;
  if (output.has_value()) {
    check_unrolled(peers.size());
  }
  const Elements elements(memory, input);
  const SymmetricCall call(
      peers, kName, CollectiveKind::AllReduce, static_cast<double>(input.nbytes()));
  const int64_t share = elements_per_rank(input.numel(), alignment, peers.size());
  const int64_t begin = share * peers.rank();
  if (!shape_only()) {
    const auto sum = elements.sum(begin, begin + share);
    for (int rank = 0; rank < peers.size(); ++rank) {
      if (!output.has_value() || rank == peers.rank()) {
        elements.slice(rank, begin, begin + share).copy_(sum);
      }
    }
  }
  call.barrier();
  if (output.has_value()) {
    if (!shape_only()) {
      const auto row = twin_of(*output).view(-1);
      for (int rank = 0; rank < peers.size(); ++rank) {
        const auto from = elements.slice(rank, share * rank, share * (rank + 1));
        row.narrow(0, std::min(share * rank, row.numel()), from.numel()).copy_(from);
      }
    }
    call.barrier();
  }
  if (shape_only()) {
    forget_values(result, WhyUnknown::FromOutside);
  }
  return result;
}

at::Tensor two_shot_all_reduce_(at::Tensor input, Text reduce_op, Text group) {
  return two_shot(input, std::nullopt, reduce_op, group);
}

at::Tensor two_shot_all_reduce_out(
    at::Tensor input,
    Text reduce_op,
    Text group,
    at::Tensor output) {
  return two_shot(input, std::move(output), reduce_op, group);
}

at::Tensor reduce_scatter_out(
    at::Tensor input,
    Text group,
    bool split_last_dim,
    at::Tensor output) {
  constexpr auto kName = "reduce_scatter";
  TORCH_CHECK(input.is_contiguous(), kName, ": input must be contiguous.");
  TORCH_CHECK(output.is_contiguous(), kName, ": output must be contiguous.");
  const auto memory = checked_rendezvous(input, group, kName);
  const Peers& peers = *memory.peers;
  const size_t alignment = checked_alignment(input, kName);
  const auto unit = peers.size() * static_cast<int64_t>(alignment) / input.element_size();
  TORCH_CHECK(
      input.numel() % unit == 0,
      "expected number of elements to be divisible by world_size * alignment, number of elements ",
      input.numel(), " world size ", peers.size(), "alignment ", alignment);
  if (split_last_dim) {
    TORCH_CHECK(input.dim() == output.dim());
    TORCH_CHECK(
        input.sizes().slice(0, input.dim() - 1) == output.sizes().slice(0, input.dim() - 1),
        "reduce_scatter expected input and output to have same sizes except in the last dimension");
    TORCH_CHECK(
        output.size(-1) == input.size(-1) / peers.size(),
        "reduce_scatter expected output last dim size to be input last dim size / world_size");
    TORCH_CHECK(
        input.size(-1) % unit == 0,
        "expected last dimension to be divisible by world_size * alignment, last dimension ",
        input.size(-1), " world size ", peers.size(), "alignment ", alignment);
  } else {
    TORCH_CHECK(input.dim() == 1, "reduce_scatter expected 1D input");
    TORCH_CHECK(output.dim() == 1, "reduce_scatter expected 1D output");
    TORCH_CHECK(output.numel() == input.numel() / peers.size());
  }
  if (input.numel() == 0) {
    TORCH_CHECK(input.scalar_type() == output.scalar_type());
    return output;
  }
  check_float_or_bfloat16(input, "two_shot_all_reduce");
  check_unrolled(peers.size());
  const Elements elements(memory, input);
  const SymmetricCall call(
      peers, kName, CollectiveKind::ReduceScatter, static_cast<double>(input.nbytes()));
  if (shape_only()) {
    forget_values(output, WhyUnknown::FromOutside);
  } else if (split_last_dim) {
    const int64_t width = output.size(-1);
    copy_row_to(
        output,
        elements.sum().view(input.sizes()).narrow(-1, width * peers.rank(), width).contiguous());
  } else {
    const int64_t share = output.numel();
    copy_row_to(output, elements.sum(share * peers.rank(), share * (peers.rank() + 1)));
  }
  call.barrier();
  return output;
}

at::Tensor multimem_all_reduce_(const at::Tensor& input, Text reduce_op, Text group) {
  constexpr auto kName = "multimem_all_reduce_";
  TORCH_CHECK(input.is_contiguous(), kName, ": input must be contiguous.");
  TORCH_CHECK(reduce_op == "sum", kName, ": only sum is supported for now.");
  const auto memory = checked_rendezvous(input, group, kName);
  TORCH_CHECK(memory.peers->multicast() != nullptr, kName, ": multicast support is required.");
  checked_alignment(input, kName);
  check_float_or_bfloat16(input, kName);
  return two_shot(input, std::nullopt, reduce_op, group);
}

at::Tensor multimem_one_shot_all_reduce_out(
    const at::Tensor& input,
    Text reduce_op,
    Text group,
    at::Tensor out) {
  constexpr auto kName = "multimem_one_shot_all_reduce";
  TORCH_CHECK(input.is_contiguous(), kName, ": input must be contiguous.");
  TORCH_CHECK(out.is_contiguous(), kName, ": output must be contiguous.");
  TORCH_CHECK(out.sizes() == input.sizes(), kName, ": input/output size mismatch.");
  TORCH_CHECK(reduce_op == "sum", kName, ": only sum is supported for now.");
  const auto memory = checked_rendezvous(input, group, kName);
  TORCH_CHECK(memory.peers->multicast() != nullptr, kName, ": requires multicast support.");
  checked_alignment(input, kName);
  check_float_or_bfloat16(input, kName);
  return sum_to(input, std::nullopt, memory, kName, out);
}

at::Tensor multimem_one_shot_all_reduce(const at::Tensor& input, Text reduce_op, Text group) {
  return multimem_one_shot_all_reduce_out(
      input, std::move(reduce_op), std::move(group), at::empty_like(input));
}

at::Tensor multimem_all_gather_out(const at::Tensor& input, Text group, at::Tensor out) {
  constexpr auto kName = "multimem_all_gather_out";
  const auto memory = checked_rendezvous(out, group, kName, "output");
  TORCH_CHECK(memory.peers->multicast() != nullptr, kName, ": output must have multicast support.");
  TORCH_CHECK(input.is_contiguous(), kName, ": input must be contiguous.");
  TORCH_CHECK(out.is_contiguous(), kName, ": output must be contiguous.");
  TORCH_CHECK(input.dim() == out.dim(), kName, ": input/output dimension mismatch.");
  const Peers& peers = *memory.peers;
  TORCH_CHECK(
      out.size(0) == input.size(0) * peers.size(), kName,
      ": out.sizes()[0] must be equal to input.sizes[0] * world_size. (out.sizes():", out.sizes(),
      ", input.sizes(): ", input.sizes(), ", world_size: ", peers.size(), ")");
  TORCH_CHECK(
      out.sizes().slice(1) == input.sizes().slice(1), kName,
      ": all non-0th dimension of input and output must match.");
  checked_alignment(out, kName);
  const Elements elements(memory, out);
  const SymmetricCall call(
      peers, kName, CollectiveKind::AllGather, static_cast<double>(out.nbytes()));
  if (shape_only()) {
    forget_values(out, WhyUnknown::FromOutside);
  } else {
    const int64_t begin = input.numel() * peers.rank();
    for (int rank = 0; rank < peers.size(); ++rank) {
      elements.slice(rank, begin, begin + input.numel()).copy_(twin_of(input).view(-1));
    }
  }
  call.barrier();
  return out;
}

// Writes `count` 32-bit words, and wakes threads that wait for them as signals. In ShapeOnly only
// signal pads have memory.
void write_words(
    const at::Tensor& tensor,
    int64_t offset,
    int64_t value,
    int64_t count,
    const char* name) {
  TORCH_CHECK(
      tensor.dim() == 1 && tensor.is_contiguous() && tensor.scalar_type() == at::kUInt32, name,
      ": input must be a flat, contiguous uint32 tensor.");
  TORCH_CHECK(offset >= 0, name, ": offset must be greater than or equal to 0 (got ", offset, ")");
  TORCH_CHECK(count > 0, name, ": count must be a positive integer (got ", count, ")");
  TORCH_CHECK(
      value >= 0 && value <= std::numeric_limits<uint32_t>::max(), name,
      ": val must be in the range of [0, 4294967295] (uint32_t).");
  const auto* address = static_cast<const uint32_t*>(tensor.const_data_ptr()) + offset;
  const auto piece = piece_of(address);
  if (shape_only() && (piece == nullptr || !piece->signal_pad_contains(address))) {
    forget_values(tensor, WhyUnknown::FromOutside);
    return;
  }
  auto* words = const_cast<uint32_t*>(address);
  for (int64_t i = 0; i < count; ++i) {
    reinterpret_cast<std::atomic<uint32_t>*>(words + i)->store(static_cast<uint32_t>(value));
    wake_waiters(words + i);
  }
}

at::Tensor memset32_(at::Tensor& input, int64_t offset, int64_t value, int64_t count) {
  constexpr auto kName = "symm_mem::memset32_";
  TORCH_CHECK(
      offset < 0 || count <= 0 || offset + count <= input.numel(), kName, ": offset + count (",
      offset + count, ") exceeded the numel of the input (", input.numel(), ")");
  write_words(input, offset, value, count, kName);
  return input;
}

at::Tensor stream_write_value32_(at::Tensor& input, int64_t offset, int64_t value) {
  constexpr auto kName = "symm_mem::stream_write_value32_";
  TORCH_CHECK(
      offset < 0 || offset < input.numel(), kName, ": offset (", offset,
      ") exceeded the numel of the input (", input.numel(), ")");
  write_words(input, offset, value, 1, kName);
  return input;
}

void run_signal(
    const at::Tensor& signal_pad,
    int64_t kind,
    int64_t peer,
    int64_t channel,
    int64_t timeout_ms) {
  const auto peers = peers_of_signal_pad(signal_pad);
  TORCH_INTERNAL_ASSERT(peers != nullptr);
  auto& clock = Clock::get();
  const auto stream = current_stream(peers->device());
  const double now = clock.launch_collective(stream);
  const auto limit = static_cast<size_t>(timeout_ms);
  const int peer_rank = static_cast<int>(peer);
  const int channel_index = static_cast<int>(channel);
  switch (static_cast<SignalKind>(kind)) {
    case SignalKind::Barrier: {
      const double start = peers->barrier("barrier", channel_index, limit, now);
      clock.run_collective(
          stream, start, collective_seconds(CollectiveKind::Barrier, 0, peers->places()));
      return;
    }
    case SignalKind::Put:
      peers->put_signal(peer_rank, channel_index, limit, now);
      return;
    case SignalKind::Wait:
      clock.run_collective(stream, peers->wait_signal(peer_rank, channel_index, limit, now), 0);
      return;
  }
}

// Registers `kernel` if this PyTorch has the operator with the same arguments. Otherwise a call of
// the operator fails like any operator without a kernel.
template <class Kernel>
void register_if_supported(torch::Library& library, const char* name, Kernel kernel) {
  if (!c10::Dispatcher::singleton().findSchema({Text("symm_mem::") + name, ""}).has_value()) {
    return;
  }
  try {
    library.impl(name, kernel);
  } catch (const c10::Error&) {
    return;
  }
}

} // namespace

void call_signal(
    const at::Tensor& signal_pad,
    SignalKind kind,
    int peer,
    int channel,
    size_t timeout_ms) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("anyrig::symmetric_signal", "")
                             .typed<void(const at::Tensor&, int64_t, int64_t, int64_t, int64_t)>();
  op.call(signal_pad, static_cast<int64_t>(kind), peer, channel, static_cast<int64_t>(timeout_ms));
}

void install_symmetric_operators() {
  const WithoutWarnings without_warnings; // about a CUDA build's kernels, which these replace
  static auto* own =
      new torch::Library(torch::Library::FRAGMENT, "anyrig", std::nullopt, __FILE__, __LINE__);
  own->def(
      "symmetric_signal(Tensor signal_pad, int kind, int peer, int channel, int timeout_ms) -> ()");
  own->impl("symmetric_signal", torch::dispatch(c10::DispatchKey::CUDA, TORCH_FN(run_signal)));
  static auto* library = new torch::Library(
      torch::Library::IMPL, "symm_mem", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  register_if_supported(*library, "one_shot_all_reduce", one_shot_all_reduce);
  register_if_supported(*library, "one_shot_all_reduce_out", one_shot_all_reduce_out);
  register_if_supported(*library, "one_shot_all_reduce_copy", one_shot_all_reduce_copy);
  register_if_supported(*library, "one_shot_all_reduce_copy_out", one_shot_all_reduce_copy_out);
  register_if_supported(*library, "two_shot_all_reduce_", two_shot_all_reduce_);
  register_if_supported(*library, "two_shot_all_reduce_out", two_shot_all_reduce_out);
  register_if_supported(*library, "reduce_scatter_out", reduce_scatter_out);
  register_if_supported(*library, "multimem_all_reduce_", multimem_all_reduce_);
  register_if_supported(*library, "multimem_one_shot_all_reduce", multimem_one_shot_all_reduce);
  register_if_supported(
      *library, "multimem_one_shot_all_reduce_out", multimem_one_shot_all_reduce_out);
  register_if_supported(*library, "multimem_all_gather_out", multimem_all_gather_out);
  register_if_supported(*library, "memset32_", memset32_);
  register_if_supported(*library, "stream_write_value32_", stream_write_value32_);
}

} // namespace anyrig::virtual_gpu

#endif // USE_C10D_GLOO
