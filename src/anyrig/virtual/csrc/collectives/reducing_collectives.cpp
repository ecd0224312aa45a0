// NcclGroup's collectives that combine the data of several ranks: their argument checks, and which
// rank sends which bytes to which.
#ifdef USE_C10D_GLOO

#include "collectives/host_bytes.h"
#include "collectives/process_group.h"
#include "collectives/tensor_checks.h"

#include <ATen/ops/view_as_real.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Utils.hpp>

namespace anyrig::virtual_gpu {
namespace {

using Tensors = std::vector<at::Tensor>;

at::Tensor as_real(const at::Tensor& tensor, const c10d::ReduceOp& op, const char* name) {
  if (!tensor.is_complex()) {
    return tensor;
  }
  TORCH_CHECK(
      c10d::isComplexViewAsRealAllowed(op), name, " does not support ", op, " on complex tensors");
  return at::view_as_real(tensor);
}

} // namespace

Collective NcclGroup::all_reduce(const at::Tensor& tensor, const c10d::ReduceOp& op) {
  const auto dtype = tensor.scalar_type();
  check_dtype(dtype);
  auto collective = begin(CollectiveKind::AllReduce, tensor.device().index());
  auto& announcement = collective.announcement;
  collective.reduction.emplace(op, dtype, size_, tensor.device().index());
  announcement.reduction = op.op_;
  announcement.dtype = dtype;
  announcement.send_bytes.assign(size_, bytes_of(tensor));
  announcement.receive_bytes = announcement.send_bytes;
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
  announcement.send_bytes[options.rootRank] = bytes_of(tensor);
  announcement.receive_bytes.assign(size_, is_root ? bytes_of(tensor) : 0);
  collective.bytes = static_cast<double>(bytes_of(tensor));
  collective.reduction.emplace(options.reduceOp, real.scalar_type(), size_, device);
  collective.send_rows[options.rootRank] = host_row(real);
  if (is_root) {
    collective.result = host_row(real);
  }
  return submit(
      {std::move(collective)}, {c10d::OpType::REDUCE, device, tensors, tensors, options.timeout});
}

Collective NcclGroup::reduce_scatter(
    const at::Tensor& output,
    const Tensors& inputs,
    const c10d::ReduceOp& op) {
  auto collective = begin(CollectiveKind::ReduceScatter, output.device().index());
  auto& announcement = collective.announcement;
  announcement.reduction = op.op_;
  announcement.dtype = output.scalar_type();
  announcement.send_bytes = bytes_of(inputs);
  announcement.receive_bytes.assign(size_, bytes_of(output));
  collective.bytes = sum_of(announcement.send_bytes);
  collective.reduction.emplace(op, output.scalar_type(), size_, output.device().index());
  collective.send_rows = host_rows(inputs);
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
  Tensors inputs_and_buffer = inputs[0];
  add_flat_buffer(inputs_and_buffer, inputs[0]);
  return submit(
      {reduce_scatter(real, real_inputs, options.reduceOp)},
      {c10d::OpType::REDUCE_SCATTER, output.device().index(), inputs_and_buffer, outputs,
       options.timeout});
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
  announcement.send_bytes.assign(size_, bytes_of(output));
  announcement.receive_bytes = announcement.send_bytes;
  collective.bytes = static_cast<double>(bytes_of(input));
  collective.reduction.emplace(op, real_output.scalar_type(), size_, real_output.device().index());
  collective.send_rows = split_row(host_row(real_input), size_);
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

} // namespace anyrig::virtual_gpu

#endif // USE_C10D_GLOO
