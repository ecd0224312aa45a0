// torch.ops.symm_mem: what CUDA's kernels compute straight from the memory of all ranks. Checks and
// words are those of torch/csrc/distributed/c10d/symm_mem/CUDASymmetricMemoryOps.cu.
//
//   all ranks meet ── each reads what it needs of every buffer ── all meet again
//
// Sums are made in the order of the ranks, and rounded after each step, as CUDA's are. More than 400
// lines: an operator each, most of which is what CUDA refuses.
#ifdef USE_C10D_GLOO

#include "symmetric/symmetric_memory.h"

#include "dispatch/known_values.h"
#include "dispatch/no_warnings.h"
#include "dispatch/twin.h"
#include "symmetric/signals.h"
#include "time/clock.h"
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
  const size_t least = std::max<size_t>(4, element);
  const size_t of_place = alignment_of(static_cast<size_t>(tensor.storage_offset()) * element);
  TORCH_CHECK(
      of_place >= least, name, "<", tensor.scalar_type(),
      ">: input ptr + offset must be at least ", least, "-byte aligned.");
  const size_t of_size = alignment_of(static_cast<size_t>(tensor.numel()) * element);
  TORCH_CHECK(
      of_size >= least, name, "<", tensor.scalar_type(), ">: input size must be at least ", least,
      "-byte aligned.");
  return std::min(of_place, of_size);
}

void check_float_or_bfloat16(const at::Tensor& tensor, const char* name) {
  const auto dtype = tensor.scalar_type();
  TORCH_CHECK_NOT_IMPLEMENTED(
      dtype == at::kFloat || dtype == at::kBFloat16, '"', name, "\" not implemented for '",
      c10::toString(dtype), "'");
}

void check_unrolled(int ranks) {
  TORCH_CHECK(
      ranks == 2 || ranks == 4 || ranks == 8, "Not implemented for world_size=", ranks);
}

MetMemory checked_memory(
    const at::Tensor& tensor, const Text& group, const char* name, const char* which = "input") {
  auto memory = met_memory(tensor, group);
  TORCH_CHECK(
      memory.peers != nullptr, name, ": ", which, " must be allocated with empty_strided_p2p().");
  return memory;
}

// Elements of a tensor, as each rank has them.
class Elements {
 public:
  Elements(const MetMemory& memory, const at::Tensor& tensor)
      : peers_(*memory.peers),
        dtype_(tensor.scalar_type()),
        first_byte_(
            memory.offset +
            static_cast<size_t>(tensor.storage_offset() * tensor.element_size())),
        count_(tensor.numel()) {}

  // A row of the host over those from `begin` to `end`, where the last ranks may have none.
  at::Tensor of_rank(int rank, int64_t begin, int64_t end) const {
    const int64_t from = std::min(begin, count_);
    const auto start = static_cast<size_t>(from) * c10::elementSize(dtype_);
    auto* first = static_cast<char*>(peers_.piece(rank).buffer()) + first_byte_ + start;
    return at::from_blob(first, {std::min(end, count_) - from}, at::TensorOptions().dtype(dtype_));
  }

  at::Tensor sum(int64_t begin, int64_t end) const {
    at::Tensor sum = of_rank(0, begin, end).clone();
    for (int rank = 1; rank < peers_.size(); ++rank) {
      sum.add_(of_rank(rank, begin, end));
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

// A call of an operator on this rank. In ShapeOnly the ranks meet, and nothing is computed.
class Round {
 public:
  Round(const Peers& peers, const char* name, CollectiveKind kind, double bytes)
      : peers_(peers), name_(name), stream_(current_stream(peers.device())) {
    auto& clock = Clock::get();
    const double start = meet(clock.launch_collective(stream_));
    clock.run_collective(stream_, start, collective_seconds(kind, bytes, peers.places()));
  }

  double meet(double now = 0) const {
    return peers_.meet_all(name_, /*channel=*/0, /*timeout_ms=*/0, now);
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
    const MetMemory& memory,
    const char* name,
    const at::Tensor& out) {
  const Elements elements(memory, input);
  if (local_input.has_value() && !shape_only()) {
    elements.of_rank(memory.peers->rank(), 0, local_input->numel())
        .copy_(twin_of(*local_input).view(-1));
  }
  const Round round(
      *memory.peers, name, CollectiveKind::AllReduce, static_cast<double>(input.nbytes()));
  if (shape_only()) {
    forget_values(out);
  } else {
    copy_row_to(out, elements.sum(0, out.numel()));
  }
  round.meet();
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
  const auto memory = checked_memory(input, group, kName);
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
    const at::Tensor& input, Text reduce_op, Text group, at::Tensor out) {
  return one_shot(input, std::nullopt, reduce_op, group, std::move(out));
}

at::Tensor one_shot_all_reduce_copy(
    const at::Tensor& buffer, const at::Tensor& local_input, Text reduce_op, Text group) {
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

int64_t share_of_rank(int64_t count, int64_t unit, int ranks) {
  const int64_t whole = unit * ranks;
  return (count + whole - 1) / whole * whole / ranks;
}

// Each rank sums its share of the elements. In place it writes them to all buffers, else to its own,
// where the others find them.
at::Tensor two_shot(
    const at::Tensor& input,
    const std::optional<at::Tensor>& output,
    const Text& reduce_op,
    const Text& group) {
  constexpr auto kName = "two_shot_all_reduce";
  TORCH_CHECK(input.is_contiguous(), kName, ": input must be contiguous.");
  TORCH_CHECK(reduce_op == "sum", kName, ": only sum is supported for now.");
  const auto memory = checked_memory(input, group, kName);
  const auto alignment = static_cast<int64_t>(checked_alignment(input, kName));
  const at::Tensor result = output.value_or(input);
  if (output.has_value()) {
    TORCH_CHECK(output->is_contiguous(), kName, ": output must be contiguous.");
    const auto of_output = static_cast<int64_t>(checked_alignment(*output, kName));
    TORCH_CHECK(
        alignment <= of_output, kName,
        ": output alignment must be equal to or larger than input.");
    TORCH_CHECK(
        output->sizes() == input.sizes(), kName, ": input/output size mismatch, input.sizes(): ",
        input.sizes(), ", output.sizes(): ", output->sizes());
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
  const Round round(
      peers, kName, CollectiveKind::AllReduce, static_cast<double>(input.nbytes()));
  const int64_t share = share_of_rank(input.numel(), alignment, peers.size());
  const int64_t begin = share * peers.rank();
  if (!shape_only()) {
    const auto sum = elements.sum(begin, begin + share);
    for (int rank = 0; rank < peers.size(); ++rank) {
      if (!output.has_value() || rank == peers.rank()) {
        elements.of_rank(rank, begin, begin + share).copy_(sum);
      }
    }
  }
  round.meet();
  if (output.has_value()) {
    if (!shape_only()) {
      const auto row = twin_of(*output).view(-1);
      for (int rank = 0; rank < peers.size(); ++rank) {
        const auto from = elements.of_rank(rank, share * rank, share * (rank + 1));
        row.narrow(0, std::min(share * rank, row.numel()), from.numel()).copy_(from);
      }
    }
    round.meet();
  }
  if (shape_only()) {
    forget_values(result);
  }
  return result;
}

at::Tensor two_shot_all_reduce_(at::Tensor input, Text reduce_op, Text group) {
  return two_shot(input, std::nullopt, reduce_op, group);
}

at::Tensor two_shot_all_reduce_out(
    at::Tensor input, Text reduce_op, Text group, at::Tensor output) {
  return two_shot(input, std::move(output), reduce_op, group);
}

at::Tensor reduce_scatter_out(
    at::Tensor input, Text group, bool split_last_dim, at::Tensor output) {
  constexpr auto kName = "reduce_scatter";
  TORCH_CHECK(input.is_contiguous(), kName, ": input must be contiguous.");
  TORCH_CHECK(output.is_contiguous(), kName, ": output must be contiguous.");
  const auto memory = checked_memory(input, group, kName);
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
  const Round round(
      peers, kName, CollectiveKind::ReduceScatter, static_cast<double>(input.nbytes()));
  if (shape_only()) {
    forget_values(output);
  } else if (split_last_dim) {
    const int64_t width = output.size(-1);
    copy_row_to(
        output,
        elements.sum().view(input.sizes()).narrow(-1, width * peers.rank(), width).contiguous());
  } else {
    const int64_t share = output.numel();
    copy_row_to(output, elements.sum(share * peers.rank(), share * (peers.rank() + 1)));
  }
  round.meet();
  return output;
}

at::Tensor multimem_all_reduce_(const at::Tensor& input, Text reduce_op, Text group) {
  constexpr auto kName = "multimem_all_reduce_";
  TORCH_CHECK(input.is_contiguous(), kName, ": input must be contiguous.");
  TORCH_CHECK(reduce_op == "sum", kName, ": only sum is supported for now.");
  const auto memory = checked_memory(input, group, kName);
  TORCH_CHECK(memory.peers->multicast() != nullptr, kName, ": multicast support is required.");
  checked_alignment(input, kName);
  check_float_or_bfloat16(input, kName);
  return two_shot(input, std::nullopt, reduce_op, group);
}

at::Tensor multimem_one_shot_all_reduce_out(
    const at::Tensor& input, Text reduce_op, Text group, at::Tensor out) {
  constexpr auto kName = "multimem_one_shot_all_reduce";
  TORCH_CHECK(input.is_contiguous(), kName, ": input must be contiguous.");
  TORCH_CHECK(out.is_contiguous(), kName, ": output must be contiguous.");
  TORCH_CHECK(out.sizes() == input.sizes(), kName, ": input/output size mismatch.");
  TORCH_CHECK(reduce_op == "sum", kName, ": only sum is supported for now.");
  const auto memory = checked_memory(input, group, kName);
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
  const auto memory = checked_memory(out, group, kName, "output");
  TORCH_CHECK(
      memory.peers->multicast() != nullptr, kName, ": output must have multicast support.");
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
  const Round round(
      peers, kName, CollectiveKind::AllGather, static_cast<double>(out.nbytes()));
  if (shape_only()) {
    forget_values(out);
  } else {
    const int64_t begin = input.numel() * peers.rank();
    for (int rank = 0; rank < peers.size(); ++rank) {
      elements.of_rank(rank, begin, begin + input.numel()).copy_(twin_of(input).view(-1));
    }
  }
  round.meet();
  return out;
}

// Of the words of signals, which somebody may be waiting for; they are there in ShapeOnly, too.
void write_words(
    const at::Tensor& tensor, int64_t offset, int64_t value, int64_t count, const char* name) {
  TORCH_CHECK(
      tensor.dim() == 1 && tensor.is_contiguous() && tensor.scalar_type() == at::kUInt32, name,
      ": input must be a flat, contiguous uint32 tensor.");
  TORCH_CHECK(
      offset >= 0, name, ": offset must be greater than or equal to 0 (got ", offset, ")");
  TORCH_CHECK(count > 0, name, ": count must be a positive integer (got ", count, ")");
  TORCH_CHECK(
      value >= 0 && value <= std::numeric_limits<uint32_t>::max(), name,
      ": val must be in the range of [0, 4294967295] (uint32_t).");
  const auto* address = static_cast<const uint32_t*>(tensor.const_data_ptr()) + offset;
  const auto piece = piece_of(address);
  if (shape_only() && (piece == nullptr || !piece->has_word(address))) {
    forget_values(tensor);
    return;
  }
  auto* words = const_cast<uint32_t*>(address);
  for (int64_t i = 0; i < count; ++i) {
    reinterpret_cast<std::atomic<uint32_t>*>(words + i)->store(static_cast<uint32_t>(value));
    wake_waiting(words + i);
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
    const at::Tensor& words, int64_t kind, int64_t peer, int64_t channel, int64_t timeout_ms) {
  const auto peers = peers_of_words(words);
  TORCH_INTERNAL_ASSERT(peers != nullptr);
  auto& clock = Clock::get();
  const auto stream = current_stream(peers->device());
  const double now = clock.launch_collective(stream);
  const auto limit = static_cast<size_t>(timeout_ms);
  const int of_rank = static_cast<int>(peer);
  const int on_channel = static_cast<int>(channel);
  switch (static_cast<SignalKind>(kind)) {
    case SignalKind::Barrier: {
      const double start = peers->meet_all("barrier", on_channel, limit, now);
      clock.run_collective(
          stream, start, collective_seconds(CollectiveKind::Barrier, 0, peers->places()));
      return;
    }
    case SignalKind::Put:
      peers->put(of_rank, on_channel, limit, now);
      return;
    case SignalKind::Wait:
      clock.run_collective(stream, peers->take(of_rank, on_channel, limit, now), 0);
      return;
  }
}

// A PyTorch of another version may lack an operator, or have it with other arguments; a call of it
// is refused then, as of any operator without a kernel.
template <class Kernel>
void add_if_fitting(torch::Library& library, const char* name, Kernel kernel) {
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
    const at::Tensor& words, SignalKind kind, int peer, int channel, size_t timeout_ms) {
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("anyrig::symmetric_signal", "")
          .typed<void(const at::Tensor&, int64_t, int64_t, int64_t, int64_t)>();
  op.call(
      words, static_cast<int64_t>(kind), peer, channel, static_cast<int64_t>(timeout_ms));
}

void install_symmetric_operators() {
  const WithoutWarnings without_warnings; // a PyTorch built for CUDA has all of these kernels
  static auto* own =
      new torch::Library(torch::Library::FRAGMENT, "anyrig", std::nullopt, __FILE__, __LINE__);
  own->def(
      "symmetric_signal(Tensor words, int kind, int peer, int channel, int timeout_ms) -> ()");
  own->impl("symmetric_signal", torch::dispatch(c10::DispatchKey::CUDA, TORCH_FN(run_signal)));
  static auto* library = new torch::Library(
      torch::Library::IMPL, "symm_mem", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  add_if_fitting(*library, "one_shot_all_reduce", one_shot_all_reduce);
  add_if_fitting(*library, "one_shot_all_reduce_out", one_shot_all_reduce_out);
  add_if_fitting(*library, "one_shot_all_reduce_copy", one_shot_all_reduce_copy);
  add_if_fitting(*library, "one_shot_all_reduce_copy_out", one_shot_all_reduce_copy_out);
  add_if_fitting(*library, "two_shot_all_reduce_", two_shot_all_reduce_);
  add_if_fitting(*library, "two_shot_all_reduce_out", two_shot_all_reduce_out);
  add_if_fitting(*library, "reduce_scatter_out", reduce_scatter_out);
  add_if_fitting(*library, "multimem_all_reduce_", multimem_all_reduce_);
  add_if_fitting(*library, "multimem_one_shot_all_reduce", multimem_one_shot_all_reduce);
  add_if_fitting(*library, "multimem_one_shot_all_reduce_out", multimem_one_shot_all_reduce_out);
  add_if_fitting(*library, "multimem_all_gather_out", multimem_all_gather_out);
  add_if_fitting(*library, "memset32_", memset32_);
  add_if_fitting(*library, "stream_write_value32_", stream_write_value32_);
}

} // namespace anyrig::virtual_gpu

#endif // USE_C10D_GLOO
