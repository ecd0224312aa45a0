// The process groups that Python sees as ProcessGroupNCCL2 and ProcessGroupNCCLLazy. PyTorch has
// them from 2.14 on; from 2.15 on, the backend "nccl" creates the first, and "nccl-legacy" an
// NcclGroup.
//
// Such a group belongs to one device. In PyTorch 2.15, the constructor names it; in 2.14, the first
// call does. A tensor on another device is an error.
#pragma once

#include "collectives/process_group.h"

#if ANYRIG_TORCH_FROM(14)

namespace anyrig::virtual_gpu {

class Nccl2Group : public NcclGroup {
 public:
  Nccl2Group(Connections connections, int rank, int size, c10::intrusive_ptr<Options> options);

  const std::string getBackendName() const override { return "nccl2"; }
  bool supportsTimeEstimation() const override { return ANYRIG_TORCH_FROM(15); }

  // From PyTorch 2.15 on: without a device, binds the device whose index is the global rank modulo
  // the number of devices.
  void setBoundDeviceId(std::optional<at::Device> device) override;
  void eagerConnectSingleDevice(at::Device device) override;

  c10::intrusive_ptr<c10d::Backend> split(
      const c10::intrusive_ptr<c10d::Store>& store,
      const std::vector<int>& ranks,
      const c10::intrusive_ptr<c10d::Backend::Options>& options) override;

  c10::intrusive_ptr<c10d::Work> allgather_coalesced(
      std::vector<std::vector<at::Tensor>>& outputs,
      std::vector<at::Tensor>& inputs,
      const c10d::AllgatherOptions& options) override;

  // These raise PyTorch's error for a backend that does not have them.
  c10::intrusive_ptr<c10d::Backend> merge(
      const c10::intrusive_ptr<c10d::Store>& store,
      const c10::intrusive_ptr<c10d::Backend::Options>& options,
      const int& rank,
      const int& size) override;
  c10::intrusive_ptr<c10d::Work> recvAnysource(std::vector<at::Tensor>& tensors, int tag) override;
  void registerOnCompletionHook(
      std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) override;
  void waitForPendingWorks() override;

 protected:
  void check_device(c10::Device device) override;
  void check_dtype(c10::ScalarType dtype) const override;
  c10::DeviceIndex barrier_device(const c10d::BarrierOptions& options) const override;

 private:
  // Raises an error if the group belongs to another device already.
  void bind(c10::Device device);

  std::optional<c10::Device> device_;
};

// Its messages use a communicator for each pair of ranks, as those of an NcclGroup do.
class NcclLazyGroup final : public Nccl2Group {
 public:
  using Nccl2Group::Nccl2Group;

  const std::string getBackendName() const override { return "nccl-lazy"; }
  size_t count_channels() const { return count_message_peers(); }
};

} // namespace anyrig::virtual_gpu

#endif // ANYRIG_TORCH_FROM(14)
