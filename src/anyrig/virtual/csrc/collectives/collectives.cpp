// The collectives of NcclGroup: what is checked, who gives which bytes to whom.
#ifdef USE_C10D_GLOO

#include "collectives/host_bytes.h"
#include "collectives/process_group.h"
#include "collectives/tensor_checks.h"
#include "device/device.h"
#include "time/clock.h"
#include "time/streams.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/view_as_real.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Utils.hpp>

namespace anyrig::virtual_gpu {
namespace {

using Tensors = std::vector<at::Tensor>;

int64_t bytes_of(const at::Tensor& tensor) {
  return static_cast<int64_t>(tensor.numel() * tensor.element_size());
}

std::vector<int64_t> bytes_of(const Tensors& tensors) {
  std::vector<int64_t> bytes;
  bytes.reserve(tensors.size());
  for (const auto& tensor : tensors) {
    bytes.push_back(bytes_of(tensor));
  }
  return bytes;
}

double sum_of(const std::vector<int64_t>& bytes) {
  double sum = 0;
  for (const int64_t part : bytes) {
    sum += static_cast<double>(part);
  }
  return sum;
}

at::Tensor as_real(const at::Tensor& tensor, const c10d::ReduceOp& op, const char* name) {
  if (!tensor.is_complex()) {
    return tensor;
  }
  TORCH_CHECK(
      c10d::isComplexViewAsRealAllowed(op),
      name, " does not support ", op, " on complex tensors");
  return at::view_as_real(tensor);
}

// NCCL moves lists of equal tensors through one buffer, which takes memory as long as it runs.
void add_buffer(Tensors& kept, const Tensors& list) {
  int64_t numbers = 0;
  for (const auto& tensor : list) {
    if (tensor.sizes() != list[0].sizes()) {
      return;
    }
    numbers += tensor.numel();
  }
  kept.push_back(at::empty({numbers}, list[0].options()));
}

[[noreturn]] void refuse(const char* function, const std::string& reason) {
  C10_THROW_ERROR(ValueError, std::string("ProcessGroupNCCL::") + function + ": " + reason);
}

void check_list(
    const char* function,
    const char* kind,
    const std::vector<Tensors>& lists,
    int size) {
  if (lists.size() != 1) {
    refuse(
        function,
        c10::str(
            "requires a single-element ", kind, " list containing a list with ", size,
            " tensors."));
  }
  if (lists[0].size() != static_cast<size_t>(size)) {
    const std::string capital = kind[0] == 'o' ? "Output" : "Input";
    refuse(
        function,
        c10::str(
            "Incorrect ", kind, " list size ", lists[0].size(), ". ", capital,
            " list size should be ", size, ", same as size of the process group."));
  }
}

void check_root(const char* function, int64_t root, int size) {
  if (root < 0 || root >= size) {
    refuse(function, c10::str("invalid root rank: ", root));
  }
}

} // namespace

Collective NcclGroup::begin(CollectiveKind kind, c10::DeviceIndex device) {
  Collective collective;
  auto& announcement = collective.announcement;
  announcement.kind = kind;
  announcement.ready = launch(stream(device, kCollectives));
  announcement.place = place_of(device);
  announcement.gives.assign(size_, 0);
  announcement.takes.assign(size_, 0);
  collective.gives.resize(size_);
  collective.takes.resize(size_);
  return collective;
}

c10::intrusive_ptr<c10d::Work> NcclGroup::broadcast(
    Tensors& tensors,
    const c10d::BroadcastOptions& options) {
  const auto& tensor = check_single(tensors);
  check_tensor(tensor);
  check_root("broadcast", options.rootRank, size_);
  check_dtype(c10::toRealValueType(tensor.scalar_type()));
  const auto device = tensor.device().index();
  auto collective = begin(CollectiveKind::Broadcast, device);
  auto& announcement = collective.announcement;
  announcement.root = options.rootRank;
  collective.bytes = static_cast<double>(bytes_of(tensor));
  if (rank_ == options.rootRank) {
    announcement.gives.assign(size_, bytes_of(tensor));
    collective.gives.assign(size_, host_row(tensor));
  } else {
    collective.takes[options.rootRank] = row_to_fill(tensor);
  }
  announcement.takes[options.rootRank] = bytes_of(tensor);
  return submit(
      {std::move(collective)},
      {c10d::OpType::BROADCAST, device, tensors, tensors, options.timeout});
}

Collective NcclGroup::all_reduce(const at::Tensor& tensor, const c10d::ReduceOp& op) {
  const auto dtype = tensor.scalar_type();
  check_dtype(dtype);
  auto collective = begin(CollectiveKind::AllReduce, tensor.device().index());
  auto& announcement = collective.announcement;
  collective.reduction.emplace(op, dtype, size_);
  announcement.reduction = op.op_;
  announcement.dtype = dtype;
  announcement.gives.assign(size_, bytes_of(tensor));
  announcement.takes = announcement.gives;
  collective.bytes = static_cast<double>(bytes_of(tensor));
  collective.result = host_row(tensor);
  return collective;
}

c10::intrusive_ptr<c10d::Work> NcclGroup::allreduce(
    Tensors& tensors,
    const c10d::AllreduceOptions& options) {
  const auto& tensor = check_single(tensors);
  const auto real = as_real(tensor, options.reduceOp, "all_reduce");
  check_tensor(real);
  auto collective = all_reduce(real, options.reduceOp);
  return submit(
      {std::move(collective)},
      {c10d::OpType::ALLREDUCE, tensor.device().index(), tensors, tensors, options.timeout});
}

c10::intrusive_ptr<c10d::Work> NcclGroup::allreduce_sparse(
    Tensors& /*tensors*/,
    const c10d::AllreduceOptions& /*options*/) {
  C10_THROW_ERROR(
      Error,
      "NCCL does not support all_reduce with sparse tensors. Please use dense tensors instead.");
}

c10::intrusive_ptr<c10d::Work> NcclGroup::allreduce_coalesced(
    Tensors& tensors,
    const c10d::AllreduceCoalescedOptions& options) {
  check_same_device(tensors);
  std::vector<Collective> collectives;
  for (const auto& tensor : tensors) {
    collectives.push_back(
        all_reduce(as_real(tensor, options.reduceOp, "all_reduce"), options.reduceOp));
  }
  return submit(
      std::move(collectives),
      {c10d::OpType::COALESCED, tensors[0].device().index(), tensors, tensors, options.timeout});
}

c10::intrusive_ptr<c10d::Work> NcclGroup::reduce(
    Tensors& tensors,
    const c10d::ReduceOptions& options) {
  const auto& tensor = check_single(tensors);
  const auto real = as_real(tensor, options.reduceOp, "reduce");
  check_tensor(real);
  check_root("reduce", options.rootRank, size_);
  check_dtype(real.scalar_type());
  const auto device = tensor.device().index();
  const bool is_root = rank_ == options.rootRank;
  auto collective = begin(CollectiveKind::Reduce, device);
  auto& announcement = collective.announcement;
  announcement.root = options.rootRank;
  announcement.reduction = options.reduceOp.op_;
  announcement.dtype = real.scalar_type();
  announcement.gives[options.rootRank] = bytes_of(tensor);
  announcement.takes.assign(size_, is_root ? bytes_of(tensor) : 0);
  collective.bytes = static_cast<double>(bytes_of(tensor));
  collective.reduction.emplace(options.reduceOp, real.scalar_type(), size_);
  collective.gives[options.rootRank] = host_row(real);
  if (is_root) {
    collective.result = host_row(real);
  }
  return submit(
      {std::move(collective)},
      {c10d::OpType::REDUCE, device, tensors, tensors, options.timeout});
}

Collective NcclGroup::all_gather(const Tensors& outputs, const at::Tensor& input) {
  auto collective = begin(CollectiveKind::AllGather, input.device().index());
  auto& announcement = collective.announcement;
  announcement.gives.assign(size_, bytes_of(input));
  announcement.takes = bytes_of(outputs);
  collective.bytes = sum_of(announcement.takes);
  collective.gives.assign(size_, host_row(input));
  collective.takes = rows_to_fill(outputs);
  return collective;
}

c10::intrusive_ptr<c10d::Work> NcclGroup::allgather(
    std::vector<Tensors>& outputs,
    Tensors& inputs,
    const c10d::AllgatherOptions& options) {
  const auto& input = check_single(inputs);
  check_tensor(input);
  check_dtype(c10::toRealValueType(input.scalar_type()));
  check_list("allgather", "output", outputs, size_);
  check_same_device(outputs[0]);
  Tensors kept = inputs;
  add_buffer(kept, outputs[0]);
  return submit(
      {all_gather(outputs[0], input)},
      {c10d::OpType::ALLGATHER, input.device().index(), kept, outputs[0], options.timeout});
}

Collective NcclGroup::all_gather_into(const at::Tensor& output, const at::Tensor& input) {
  check_tensor(input);
  check_tensor(output);
  if (input.dtype() != output.dtype()) {
    C10_THROW_ERROR(TypeError, "output tensor must have the same type as input tensor");
  }
  if (input.numel() * size_ != output.numel()) {
    C10_THROW_ERROR(
        ValueError, "output tensor size must be equal to world_size times input tensor size");
  }
  check_dtype(c10::toRealValueType(input.scalar_type()));
  auto collective = begin(CollectiveKind::AllGather, input.device().index());
  auto& announcement = collective.announcement;
  announcement.gives.assign(size_, bytes_of(input));
  announcement.takes = announcement.gives;
  collective.bytes = static_cast<double>(bytes_of(output));
  collective.gives.assign(size_, host_row(input));
  collective.takes = split_row(row_to_fill(output), size_);
  return collective;
}

c10::intrusive_ptr<c10d::Work> NcclGroup::_allgather_base(
    at::Tensor& output,
    at::Tensor& input,
    const c10d::AllgatherOptions& options) {
  return submit(
      {all_gather_into(output, input)},
      {c10d::OpType::_ALLGATHER_BASE, input.device().index(), {input}, {output}, options.timeout});
}

c10::intrusive_ptr<c10d::Work> NcclGroup::allgather_into_tensor_coalesced(
    Tensors& outputs,
    Tensors& inputs,
    const c10d::AllgatherOptions& options) {
  check_same_device(inputs);
  std::vector<Collective> collectives;
  for (size_t i = 0; i < inputs.size(); ++i) {
    collectives.push_back(all_gather_into(outputs.at(i), inputs[i]));
  }
  return submit(
      std::move(collectives),
      {c10d::OpType::COALESCED, inputs[0].device().index(), inputs, outputs, options.timeout});
}

Collective NcclGroup::reduce_scatter(
    const at::Tensor& output,
    const Tensors& inputs,
    const c10d::ReduceOp& op) {
  auto collective = begin(CollectiveKind::ReduceScatter, output.device().index());
  auto& announcement = collective.announcement;
  announcement.reduction = op.op_;
  announcement.dtype = output.scalar_type();
  announcement.gives = bytes_of(inputs);
  announcement.takes.assign(size_, bytes_of(output));
  collective.bytes = sum_of(announcement.gives);
  collective.reduction.emplace(op, output.scalar_type(), size_);
  collective.gives = host_rows(inputs);
  collective.result = row_to_fill(output);
  return collective;
}

c10::intrusive_ptr<c10d::Work> NcclGroup::reduce_scatter(
    Tensors& outputs,
    std::vector<Tensors>& inputs,
    const c10d::ReduceScatterOptions& options) {
  const auto& output = check_single(outputs);
  const auto real = as_real(output, options.reduceOp, "reduce_scatter");
  check_tensor(real);
  check_dtype(real.scalar_type());
  check_list("reduce_scatter", "input", inputs, size_);
  check_same_device(inputs[0]);
  Tensors real_inputs;
  for (const auto& input : inputs[0]) {
    real_inputs.push_back(as_real(input, options.reduceOp, "reduce_scatter"));
  }
  Tensors kept = inputs[0];
  add_buffer(kept, inputs[0]);
  return submit(
      {reduce_scatter(real, real_inputs, options.reduceOp)},
      {c10d::OpType::REDUCE_SCATTER, output.device().index(), kept, outputs, options.timeout});
}

Collective NcclGroup::reduce_scatter_from(
    const at::Tensor& output,
    const at::Tensor& input,
    const c10d::ReduceOp& op) {
  if (input.dtype() != output.dtype()) {
    C10_THROW_ERROR(TypeError, "input tensor must be the same type as the output tensor.");
  }
  if (input.numel() != output.numel() * size_) {
    C10_THROW_ERROR(
        ValueError, "input tensor must be the same size as output size times world size");
  }
  const auto real_input = as_real(input, op, "reduce_scatter_tensor");
  const auto real_output = as_real(output, op, "reduce_scatter_tensor");
  check_tensor(real_input);
  check_tensor(real_output);
  check_dtype(real_input.scalar_type());
  auto collective = begin(CollectiveKind::ReduceScatter, output.device().index());
  auto& announcement = collective.announcement;
  announcement.reduction = op.op_;
  announcement.dtype = real_output.scalar_type();
  announcement.gives.assign(size_, bytes_of(output));
  announcement.takes = announcement.gives;
  collective.bytes = static_cast<double>(bytes_of(input));
  collective.reduction.emplace(op, real_output.scalar_type(), size_);
  collective.gives = split_row(host_row(real_input), size_);
  collective.result = row_to_fill(real_output);
  return collective;
}

c10::intrusive_ptr<c10d::Work> NcclGroup::_reduce_scatter_base(
    at::Tensor& output,
    at::Tensor& input,
    const c10d::ReduceScatterOptions& options) {
  return submit(
      {reduce_scatter_from(output, input, options.reduceOp)},
      {c10d::OpType::_REDUCE_SCATTER_BASE,
       output.device().index(),
       {input},
       {output},
       options.timeout});
}

c10::intrusive_ptr<c10d::Work> NcclGroup::reduce_scatter_tensor_coalesced(
    Tensors& outputs,
    Tensors& inputs,
    const c10d::ReduceScatterOptions& options) {
  check_same_device(inputs);
  std::vector<Collective> collectives;
  for (size_t i = 0; i < inputs.size(); ++i) {
    collectives.push_back(reduce_scatter_from(outputs.at(i), inputs[i], options.reduceOp));
  }
  return submit(
      std::move(collectives),
      {c10d::OpType::COALESCED, inputs[0].device().index(), inputs, outputs, options.timeout});
}

c10::intrusive_ptr<c10d::Work> NcclGroup::all_to_all(
    const Tensors& given,
    const Tensors& taken,
    const Submission& submission) {
  auto collective = begin(CollectiveKind::AllToAll, submission.device);
  collective.announcement.gives = bytes_of(given);
  collective.announcement.takes = bytes_of(taken);
  collective.bytes = sum_of(collective.announcement.gives);
  collective.gives = host_rows(given);
  collective.takes = rows_to_fill(taken);
  return submit({std::move(collective)}, submission);
}

c10::intrusive_ptr<c10d::Work> NcclGroup::alltoall_base(
    at::Tensor& output,
    at::Tensor& input,
    std::vector<int64_t>& output_splits,
    std::vector<int64_t>& input_splits,
    const c10d::AllToAllOptions& options) {
  check_tensor(output);
  check_tensor(input);
  check_dtype(c10::toRealValueType(input.scalar_type()));
  c10d::checkSplitSizes(input_splits, input, size_);
  c10d::checkSplitSizes(output_splits, output, size_);
  const auto split = [this](const at::Tensor& tensor, const std::vector<int64_t>& splits) {
    Tensors parts;
    int64_t start = 0;
    for (int i = 0; i < size_; ++i) {
      const int64_t length = splits.empty() ? tensor.size(0) / size_ : splits[i];
      parts.push_back(tensor.narrow(0, start, length));
      start += length;
    }
    return parts;
  };
  return all_to_all(
      split(input, input_splits),
      split(output, output_splits),
      {c10d::OpType::ALLTOALL_BASE, input.device().index(), {input}, {output}, options.timeout});
}

c10::intrusive_ptr<c10d::Work> NcclGroup::alltoall(
    Tensors& outputs,
    Tensors& inputs,
    const c10d::AllToAllOptions& options) {
  for (const auto* list : {&outputs, &inputs}) {
    TORCH_CHECK_VALUE(
        list->size() == static_cast<size_t>(size_),
        "ProcessGroupNCCL::alltoall: a list has ", list->size(), " tensors, and the group ", size_,
        " ranks");
    check_same_device(*list);
    for (const auto& tensor : *list) {
      check_tensor(tensor);
    }
  }
  check_dtype(c10::toRealValueType(inputs[0].scalar_type()));
  return all_to_all(
      inputs,
      outputs,
      {c10d::OpType::ALLTOALL, inputs[0].device().index(), inputs, outputs, options.timeout});
}

c10::intrusive_ptr<c10d::Work> NcclGroup::gather(
    std::vector<Tensors>& outputs,
    Tensors& inputs,
    const c10d::GatherOptions& options) {
  check_root("gather", options.rootRank, size_);
  const auto& input = check_single(inputs);
  check_tensor(input);
  check_dtype(c10::toRealValueType(input.scalar_type()));
  auto collective = begin(CollectiveKind::Gather, input.device().index());
  auto& announcement = collective.announcement;
  announcement.root = options.rootRank;
  announcement.gives[options.rootRank] = bytes_of(input);
  collective.bytes = static_cast<double>(bytes_of(input)) * size_;
  collective.gives[options.rootRank] = host_row(input);
  Tensors to;
  if (rank_ == options.rootRank) {
    check_list("gather", "output", outputs, size_);
    check_same_device(outputs[0]);
    to = outputs[0];
    announcement.takes = bytes_of(to);
    collective.takes = rows_to_fill(to);
  } else if (!outputs.empty()) {
    refuse("gather", "requires empty output on non-root");
  }
  return submit(
      {std::move(collective)},
      {c10d::OpType::GATHER, input.device().index(), inputs, to, options.timeout});
}

c10::intrusive_ptr<c10d::Work> NcclGroup::scatter(
    Tensors& outputs,
    std::vector<Tensors>& inputs,
    const c10d::ScatterOptions& options) {
  check_root("scatter", options.rootRank, size_);
  const auto& output = check_single(outputs);
  check_tensor(output);
  check_dtype(c10::toRealValueType(output.scalar_type()));
  auto collective = begin(CollectiveKind::Scatter, output.device().index());
  auto& announcement = collective.announcement;
  announcement.root = options.rootRank;
  announcement.takes[options.rootRank] = bytes_of(output);
  collective.bytes = static_cast<double>(bytes_of(output)) * size_;
  collective.takes[options.rootRank] = row_to_fill(output);
  Tensors from;
  if (rank_ == options.rootRank) {
    check_list("scatter", "input", inputs, size_);
    check_same_device(inputs[0]);
    from = inputs[0];
    announcement.gives = bytes_of(from);
    collective.gives = host_rows(from);
  } else if (!inputs.empty()) {
    refuse("scatter", "requires empty input on non-root");
  }
  return submit(
      {std::move(collective)},
      {c10d::OpType::SCATTER, output.device().index(), from, outputs, options.timeout});
}

c10::DeviceIndex NcclGroup::barrier_device(const c10d::BarrierOptions& options) const {
  if (!options.device_ids.empty()) {
    return static_cast<c10::DeviceIndex>(options.device_ids[0]);
  }
  for (const auto& device : {options.device, getBoundDeviceId()}) {
    if (device.has_value() && device->is_cuda() && device->has_index()) {
      return device->index();
    }
  }
  return static_cast<c10::DeviceIndex>(
      last_device_ >= 0 ? last_device_.load() : rank_ % device_count());
}

c10::intrusive_ptr<c10d::Work> NcclGroup::barrier(const c10d::BarrierOptions& options) {
  const auto device = barrier_device(options);
  check_device_index(device);
  Submission submission{c10d::OpType::BARRIER, device, {}, {}, options.timeout};
  submission.blocks_host = true;
  return submit({begin(CollectiveKind::Barrier, device)}, submission);
}

} // namespace anyrig::virtual_gpu

#endif // USE_C10D_GLOO
