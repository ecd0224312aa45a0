// NcclGroup's collectives that move data unchanged: their argument checks, and which rank sends
// which bytes to which. Also NcclGroup::begin, the first step of every collective.
#ifdef USE_C10D_GLOO

#include "collectives/host_bytes.h"
#include "collectives/process_group.h"
#include "collectives/tensor_checks.h"
#include "device/device.h"
#include "time/clock.h"
#include "time/running_operator.h"
#include "time/streams.h"

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Utils.hpp>

namespace anyrig::virtual_gpu {
namespace {

using Tensors = std::vector<at::Tensor>;

} // namespace

const at::Tensor& NcclGroup::check_movable(const Tensors& tensors) const {
  const auto& tensor = check_single(tensors);
  check_tensor(tensor);
  check_dtype(c10::toRealValueType(tensor.scalar_type()));
  return tensor;
}

Collective NcclGroup::begin(CollectiveKind kind, c10::DeviceIndex device) {
  check_device(c10::Device(kDeviceType, device));
  Collective collective;
  auto& announcement = collective.announcement;
  announcement.kind = kind;
  if (!estimated_seconds_.has_value()) {
    const RunningOperator running(name_of(kind));
    announcement.ready = launch_after_current(stream(device, kCollectives));
  }
  announcement.place = place_of(device);
  announcement.send_bytes.assign(size_, 0);
  announcement.receive_bytes.assign(size_, 0);
  collective.send_rows.resize(size_);
  collective.receive_rows.resize(size_);
  return collective;
}

c10::intrusive_ptr<c10d::Work> NcclGroup::broadcast(
    Tensors& tensors,
    const c10d::BroadcastOptions& options) {
  const auto& tensor = check_movable(tensors);
  check_root("broadcast", options.rootRank, size_);
  const auto device = tensor.device().index();
  auto collective = begin(CollectiveKind::Broadcast, device);
  auto& announcement = collective.announcement;
  announcement.root = options.rootRank;
  collective.bytes = static_cast<double>(bytes_of(tensor));
  if (rank_ == options.rootRank) {
    announcement.send_bytes.assign(size_, bytes_of(tensor));
    collective.send_rows.assign(size_, host_row(tensor));
  } else {
    collective.receive_rows[options.rootRank] = row_to_fill(tensor);
  }
  announcement.receive_bytes[options.rootRank] = bytes_of(tensor);
  return submit(
      {std::move(collective)},
      {c10d::OpType::BROADCAST, device, tensors, tensors, options.timeout});
}

Collective NcclGroup::all_gather(const Tensors& outputs, const at::Tensor& input) {
  auto collective = begin(CollectiveKind::AllGather, input.device().index());
  auto& announcement = collective.announcement;
  announcement.send_bytes.assign(size_, bytes_of(input));
  announcement.receive_bytes = bytes_of(outputs);
  collective.bytes = sum_of(announcement.receive_bytes);
  collective.send_rows.assign(size_, host_row(input));
  collective.receive_rows = rows_to_fill(outputs);
  return collective;
}

c10::intrusive_ptr<c10d::Work> NcclGroup::allgather(
    std::vector<Tensors>& outputs,
    Tensors& inputs,
    const c10d::AllgatherOptions& options) {
  const auto& input = check_movable(inputs);
  check_list("allgather", "output", outputs, size_);
  check_same_device(outputs[0]);
  Tensors inputs_and_buffer = inputs;
  add_flat_buffer(inputs_and_buffer, outputs[0]);
  return submit(
      {all_gather(outputs[0], input)},
      {c10d::OpType::ALLGATHER, input.device().index(), inputs_and_buffer, outputs[0],
       options.timeout});
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
  announcement.send_bytes.assign(size_, bytes_of(input));
  announcement.receive_bytes = announcement.send_bytes;
  collective.bytes = static_cast<double>(bytes_of(output));
  collective.send_rows.assign(size_, host_row(input));
  collective.receive_rows = split_row(row_to_fill(output), size_);
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

c10::intrusive_ptr<c10d::Work> NcclGroup::all_to_all(
    const Tensors& inputs,
    const Tensors& outputs,
    const Submission& submission) {
  auto collective = begin(CollectiveKind::AllToAll, submission.device);
  collective.announcement.send_bytes = bytes_of(inputs);
  collective.announcement.receive_bytes = bytes_of(outputs);
  collective.bytes = sum_of(collective.announcement.send_bytes);
  collective.send_rows = host_rows(inputs);
  collective.receive_rows = rows_to_fill(outputs);
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
      split(input, input_splits), split(output, output_splits),
      {c10d::OpType::ALLTOALL_BASE, input.device().index(), {input}, {output}, options.timeout});
}

c10::intrusive_ptr<c10d::Work> NcclGroup::alltoall(
    Tensors& outputs,
    Tensors& inputs,
    const c10d::AllToAllOptions& options) {
  for (const auto* list : {&outputs, &inputs}) {
    TORCH_CHECK_VALUE(
        list->size() == static_cast<size_t>(size_), "ProcessGroupNCCL::alltoall: a list has ",
        list->size(), " tensors, but the group has ", size_, " ranks");
    check_same_device(*list);
    for (const auto& tensor : *list) {
      check_tensor(tensor);
    }
  }
  check_dtype(c10::toRealValueType(inputs[0].scalar_type()));
  return all_to_all(
      inputs, outputs,
      {c10d::OpType::ALLTOALL, inputs[0].device().index(), inputs, outputs, options.timeout});
}

c10::intrusive_ptr<c10d::Work> NcclGroup::gather(
    std::vector<Tensors>& outputs,
    Tensors& inputs,
    const c10d::GatherOptions& options) {
  check_root("gather", options.rootRank, size_);
  const bool is_root = rank_ == options.rootRank;
  const auto& input = check_movable(inputs);
  const auto& root_outputs = check_root_list("gather", "output", outputs, size_, is_root);
  auto collective = begin(CollectiveKind::Gather, input.device().index());
  auto& announcement = collective.announcement;
  announcement.root = options.rootRank;
  announcement.send_bytes[options.rootRank] = bytes_of(input);
  collective.send_rows[options.rootRank] = host_row(input);
  collective.bytes = static_cast<double>(bytes_of(input)) * size_;
  if (is_root) {
    announcement.receive_bytes = bytes_of(root_outputs);
    collective.receive_rows = rows_to_fill(root_outputs);
  }
  return submit(
      {std::move(collective)},
      {c10d::OpType::GATHER, input.device().index(), inputs, root_outputs, options.timeout});
}

c10::intrusive_ptr<c10d::Work> NcclGroup::gather_single(
    at::Tensor& output,
    at::Tensor& input,
    const c10d::GatherOptions& options) {
  check_root("gather_single", options.rootRank, size_);
  check_movable({input});
  const bool is_root = rank_ == options.rootRank; // the others pass an empty output
  if (is_root) {
    check_tensor(output);
    TORCH_CHECK(
        input.dtype() == output.dtype(), "output tensor must have the same type as input tensor");
    TORCH_CHECK(
        input.numel() * size_ == output.numel(),
        "output tensor size must be equal to world_size times input tensor size");
  }
  auto collective = begin(CollectiveKind::Gather, input.device().index());
  auto& announcement = collective.announcement;
  announcement.root = options.rootRank;
  announcement.send_bytes[options.rootRank] = bytes_of(input);
  collective.send_rows[options.rootRank] = host_row(input);
  collective.bytes = static_cast<double>(bytes_of(input)) * size_;
  if (is_root) {
    announcement.receive_bytes.assign(size_, bytes_of(input));
    collective.receive_rows = split_row(row_to_fill(output), size_);
  }
  return submit(
      {std::move(collective)},
      {c10d::OpType::GATHER,
       input.device().index(),
       {input},
       is_root ? Tensors{output} : Tensors{},
       options.timeout});
}

c10::intrusive_ptr<c10d::Work> NcclGroup::scatter(
    Tensors& outputs,
    std::vector<Tensors>& inputs,
    const c10d::ScatterOptions& options) {
  check_root("scatter", options.rootRank, size_);
  const bool is_root = rank_ == options.rootRank;
  const auto& output = check_movable(outputs);
  const auto& root_inputs = check_root_list("scatter", "input", inputs, size_, is_root);
  auto collective = begin(CollectiveKind::Scatter, output.device().index());
  auto& announcement = collective.announcement;
  announcement.root = options.rootRank;
  announcement.receive_bytes[options.rootRank] = bytes_of(output);
  collective.receive_rows[options.rootRank] = row_to_fill(output);
  collective.bytes = static_cast<double>(bytes_of(output)) * size_;
  if (is_root) {
    announcement.send_bytes = bytes_of(root_inputs);
    collective.send_rows = host_rows(root_inputs);
  }
  return submit(
      {std::move(collective)},
      {c10d::OpType::SCATTER, output.device().index(), root_inputs, outputs, options.timeout});
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
