#ifdef USE_C10D_GLOO

#include "collectives/nccl2_group.h"

#if ANYRIG_TORCH_FROM(14)

#include "collectives/tensor_checks.h"
#include "device/device.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <set>

namespace anyrig::virtual_gpu {

Nccl2Group::Nccl2Group(
    Connections connections,
    int rank,
    int size,
    c10::intrusive_ptr<Options> options)
    : NcclGroup(std::move(connections), rank, size, std::move(options)) {
  set_nan_check(false); // only ProcessGroupNCCL reads TORCH_NCCL_NAN_CHECK
}

void Nccl2Group::bind(c10::Device device) {
  TORCH_CHECK(device.is_cuda(), "ProcessGroupNCCL requires CUDA tensors/devices");
  if (device_.has_value()) {
    TORCH_CHECK(
        *device_ == device, "ProcessGroupNCCL is bound to device ", *device_,
        " but an operation was issued on ", device);
    return;
  }
  TORCH_CHECK(
      !options()->enable_reconfigure,
      "ProcessGroupNCCL has not been initialized. Call reconfigure() before issuing collectives "
      "when enable_reconfigure=True.");
  check_device_index(device.index());
  device_ = device;
  if (!options()->lazy_init) {
    mark_connected();
  }
}

void Nccl2Group::setBoundDeviceId(std::optional<at::Device> device) {
#if ANYRIG_TORCH_FROM(15)
  if (!options()->enable_reconfigure) {
    if (!device.has_value()) {
      const auto& ranks = options()->global_ranks_in_group;
      const auto rank = ranks.empty() ? static_cast<uint64_t>(rank_) : ranks.at(rank_);
      device = device_.value_or(
          c10::Device(kDeviceType, static_cast<c10::DeviceIndex>(rank % device_count())));
    }
    Backend::setBoundDeviceId(device);
    bind(*device);
    return;
  }
#endif
  Backend::setBoundDeviceId(device);
}

void Nccl2Group::eagerConnectSingleDevice(at::Device device) {
#if ANYRIG_TORCH_FROM(15)
  setBoundDeviceId(device);
#else
  bind(device);
#endif
}

void Nccl2Group::check_device(c10::Device device) {
#if ANYRIG_TORCH_FROM(15)
  TORCH_CHECK(
      device_.has_value(),
      options()->enable_reconfigure
          ? "ProcessGroupNCCL has not been initialized. Call reconfigure() before issuing "
            "operations when enable_reconfigure=True."
          : "ProcessGroupNCCL not initialized");
  TORCH_CHECK(*device_ == device, "Expected tensor on ", *device_, " but found tensor on ", device);
#else
  bind(device);
#endif
}

void Nccl2Group::check_dtype(c10::ScalarType dtype) const {
  TORCH_CHECK(
      dtype == at::kFloat4_e2m1fn_x2 || is_moved(dtype), "Unsupported tensor data type for NCCL");
}

c10::DeviceIndex Nccl2Group::barrier_device(const c10d::BarrierOptions& options) const {
  if (device_.has_value()) {
    return device_->index();
  }
  if (!options.device_ids.empty()) {
    return static_cast<c10::DeviceIndex>(options.device_ids[0]);
  }
  const auto bound = getBoundDeviceId();
  return bound.has_value() ? bound->index() : static_cast<c10::DeviceIndex>(rank_ % device_count());
}

c10::intrusive_ptr<c10d::Backend> Nccl2Group::split(
    const c10::intrusive_ptr<c10d::Store>& store,
    const std::vector<int>& ranks,
    const c10::intrusive_ptr<c10d::Backend::Options>& options) {
  std::set<int> seen;
  for (const int rank : ranks) {
    TORCH_CHECK(
        rank >= 0 && rank < size_, "ProcessGroupNCCL::split: invalid rank ", rank,
        "; valid ranks are 0 to ", size_ - 1);
    TORCH_CHECK(
        seen.insert(rank).second, "ProcessGroupNCCL::split: rank ", rank,
        " appears multiple times in ranks");
  }
  const auto given = c10::dynamic_intrusive_pointer_cast<Options>(options);
  TORCH_CHECK(
      given != nullptr, "ProcessGroupNCCL::split: opts is not a nccl2 ProcessGroupNCCL::Options");
  const auto position = std::find(ranks.begin(), ranks.end(), rank_);
  if (position == ranks.end()) {
    return nullptr;
  }
  auto child_options = c10::make_intrusive<Options>(*given);
  child_options->global_ranks_in_group = global_ranks_of(ranks);
  auto child = make<Nccl2Group>(
      store, static_cast<int>(position - ranks.begin()), static_cast<int>(ranks.size()),
      std::move(child_options));
  if (device_.has_value()) {
    child->bind(*device_);
  }
  return child;
}

c10::intrusive_ptr<c10d::Work> Nccl2Group::allgather_coalesced(
    std::vector<std::vector<at::Tensor>>& outputs,
    std::vector<at::Tensor>& inputs,
    const c10d::AllgatherOptions& options) {
  TORCH_CHECK(
      !inputs.empty() && outputs.size() == inputs.size(),
      "Input and output tensor lists must have the same nonzero size");
  std::vector<Collective> collectives;
  std::vector<at::Tensor> all_outputs;
  for (size_t i = 0; i < inputs.size(); ++i) {
    TORCH_CHECK(
        outputs[i].size() == static_cast<size_t>(size_),
        "tensor_list size must equal comm_size for all_gather");
    check_tensor(inputs[i]);
    check_same_device(outputs[i]);
    check_dtype(c10::toRealValueType(inputs[i].scalar_type()));
    collectives.push_back(all_gather(outputs[i], inputs[i]));
    all_outputs.insert(all_outputs.end(), outputs[i].begin(), outputs[i].end());
  }
  return submit(
      std::move(collectives),
      {c10d::OpType::COALESCED, inputs[0].device().index(), inputs, all_outputs, options.timeout});
}

c10::intrusive_ptr<c10d::Backend> Nccl2Group::merge(
    const c10::intrusive_ptr<c10d::Store>& store,
    const c10::intrusive_ptr<c10d::Backend::Options>& options,
    const int& rank,
    const int& size) {
  return Backend::merge(store, options, rank, size);
}

c10::intrusive_ptr<c10d::Work> Nccl2Group::recvAnysource(
    std::vector<at::Tensor>& tensors,
    int tag) {
  return Backend::recvAnysource(tensors, tag);
}

void Nccl2Group::registerOnCompletionHook(
    std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) {
  Backend::registerOnCompletionHook(std::move(hook));
}

void Nccl2Group::waitForPendingWorks() {
  Backend::waitForPendingWorks();
}

} // namespace anyrig::virtual_gpu

#endif // ANYRIG_TORCH_FROM(14)

#endif // USE_C10D_GLOO
