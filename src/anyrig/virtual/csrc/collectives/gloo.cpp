#ifdef USE_C10D_GLOO

#include "collectives/gloo.h"

#include "collectives/gil.h"
#include "device/device.h"
#include "dispatch/no_warnings.h"
#include "dispatch/twin.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/empty.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/library.h>

#include <memory>
#include <mutex>

namespace anyrig::virtual_gpu {
namespace {

using c10::ivalue::Future;

// The tensors of one call and their CPU copies.
class Staging {
 public:
  explicit Staging(c10::Device device)
      : guard_(kDeviceType), stream_(guard_.getStreamFromGlobalPool(device, true)) {
    c10::Event ready(kDeviceType);
    ready.record(guard_.getStream(device));
    ready.block(stream_);
  }

  // Returns `value` with its virtual tensors replaced by CPU tensors. Copies the values if
  // `is_read`; `copy_back` returns them to the device if `is_written`.
  c10::IValue to_host(const c10::IValue& value, bool is_read, bool is_written) {
    auto host = stage(value, is_read, is_written);
    copied_to_host_.record(stream_);
    return host;
  }

  // Starts the copies of gloo's results to the device.
  void copy_back() {
    c10::StreamGuard on_stream(stream_);
    for (auto& [tensor, host] : written_) {
      tensor.copy_(host, /*non_blocking=*/true);
    }
    copied_back_.record(stream_);
  }

  // Blocks the host until the copies to the CPU are done, and the current stream until the copies
  // back are done.
  void join() {
    copied_to_host_.synchronize();
    copied_back_.block(guard_.getStream(stream_.device()));
  }

  const c10::Stream& stream() const { return stream_; }

  std::vector<at::Tensor> outputs() const {
    std::vector<at::Tensor> outputs;
    for (const auto& [tensor, host] : written_) {
      outputs.push_back(tensor);
    }
    return outputs;
  }

 private:
  c10::IValue stage(const c10::IValue& value, bool is_read, bool is_written) {
    if (value.isTensor()) {
      return stage(value.toTensor(), is_read, is_written);
    }
    if (value.isTensorList()) {
      c10::List<at::Tensor> host;
      for (const auto& tensor : value.toTensorVector()) {
        host.push_back(stage(tensor, is_read, is_written));
      }
      return host;
    }
    c10::impl::GenericList host(c10::ListType::create(c10::TensorType::get()));
    for (const auto& list : value.toListRef()) {
      host.push_back(stage(list, is_read, is_written));
    }
    return host;
  }

  at::Tensor stage(const at::Tensor& tensor, bool is_read, bool is_written) {
    if (!is_virtual(tensor)) {
      return tensor;
    }
    c10::StreamGuard on_stream(stream_);
    at::Tensor host;
    if (tensor.layout() != at::kStrided) {
      host = tensor.to(at::kCPU);
    } else {
      const auto options = tensor.options().device(at::kCPU).requires_grad(false);
      host = at::empty(tensor.sizes(), options.pinned_memory(true));
      guard_.recordDataPtrOnStream(tensor.storage().data_ptr(), stream_);
      if (is_read) {
        host.copy_(tensor, /*non_blocking=*/true);
      }
    }
    if (is_written) {
      written_.emplace_back(tensor, host);
    }
    return host;
  }

  c10::impl::VirtualGuardImpl guard_;
  c10::Stream stream_;
  c10::Event copied_to_host_{kDeviceType};
  c10::Event copied_back_{kDeviceType};
  std::vector<std::pair<at::Tensor, at::Tensor>> written_;
};

// The work of a call with staged tensors. The first thread that waits starts the copies back.
class StagedWork final : public c10d::Work {
 public:
  StagedWork(c10::intrusive_ptr<c10d::Work> work, std::unique_ptr<Staging> staging)
      : Work(-1, work->retrieveOpType()), work_(std::move(work)), staging_(std::move(staging)) {}

  bool isCompleted() override { return work_->isCompleted(); }
  bool isSuccess() const override { return work_->isSuccess(); }
  std::exception_ptr exception() const override { return work_->exception(); }
  void abort() override { work_->abort(); }
  uint64_t getSequencenumber() const override { return work_->getSequencenumber(); }

  bool wait(std::chrono::milliseconds timeout) override {
    const bool done = wait_and_copy_back(timeout);
    if (done) {
      staging_->join();
    }
    return done;
  }

  void synchronize() override { wait(kNoTimeout); }
  void blockCurrentStream() override { wait(kNoTimeout); }

  std::vector<at::Tensor> result() override {
    wait(kNoTimeout);
    return staging_->outputs();
  }

  c10::intrusive_ptr<Future> getFuture() override {
    auto outputs = staging_->outputs();
    auto future = c10::make_intrusive<Future>(
        c10::ListType::create(c10::TensorType::get()),
        std::vector<c10::Device>{outputs.at(0).device()});
    try {
      wait_and_copy_back(kNoTimeout);
      // The future records its end on the staging stream, as in work.cpp: the caller's stream
      // continues until it waits for the future.
      c10::StreamGuard on_stream(staging_->stream());
      future->markCompleted(c10::IValue(std::move(outputs)));
    } catch (...) {
      future->setError(std::current_exception());
    }
    return future;
  }

 private:
  bool wait_and_copy_back(std::chrono::milliseconds timeout) {
    WithoutGil without_gil;
    const bool done = work_->wait(timeout);
    std::lock_guard<std::mutex> guard(mutex_);
    if (done && !is_copied_back_) {
      staging_->copy_back();
      is_copied_back_ = true;
    }
    return done;
  }

  c10::intrusive_ptr<c10d::Work> work_;
  std::mutex mutex_;
  std::unique_ptr<Staging> staging_;
  bool is_copied_back_ = false;
};

bool uses_gloo(const torch::jit::Stack& arguments) {
  for (const auto& argument : arguments) {
    if (argument.isObject() || argument.isCustomClass()) {
      const auto group = argument.toCustomClass<c10d::ProcessGroup>();
      return group->getBackend(kDeviceType)->getBackendName() == "gloo";
    }
  }
  return false;
}

c10::Device device_of(const c10::IValue& tensors) {
  return tensors.isTensor() ? tensors.toTensor().device() : tensors.toTensorVector().at(0).device();
}

// Overrides PyTorch's kernel of a c10d operator, which passes any tensors on to the backend. Calls
// that kernel if the backend is not gloo.
class GlooKernel : public c10::OperatorKernel {
 public:
  GlooKernel(const c10::OperatorHandle& op, c10::DispatchKey key)
      : pytorch_kernel_(op.getComputedKernelForDispatchKey(key)) {}

  void operator()(
      const c10::OperatorHandle& op,
      c10::DispatchKeySet keys,
      torch::jit::Stack* stack) {
    if (uses_gloo(*stack)) {
      run_with_gloo(op, keys, stack);
    } else {
      pytorch_kernel_.callBoxed(op, keys, stack);
    }
  }

 protected:
  virtual void run_with_gloo(
      const c10::OperatorHandle& op,
      c10::DispatchKeySet keys,
      torch::jit::Stack* stack) = 0;

  c10::SafeKernelFunction pytorch_kernel_;
};

class StagingKernel final : public GlooKernel {
 public:
  using GlooKernel::GlooKernel;

 private:
  void run_with_gloo(
      const c10::OperatorHandle& op,
      c10::DispatchKeySet keys,
      torch::jit::Stack* stack) override {
    // Each of these operators writes to its first argument. all_reduce has no other tensors.
    const c10::IValue written = stack->at(0);
    const bool in_place = op.schema().name() == "c10d::allreduce_";
    auto staging = std::make_unique<Staging>(device_of(written));
    stack->at(0) = staging->to_host(written, /*is_read=*/in_place, /*is_written=*/true);
    if (!in_place) {
      stack->at(1) = staging->to_host(stack->at(1), /*is_read=*/true, /*is_written=*/false);
    }
    pytorch_kernel_.callBoxed(op, keys, stack);
    auto& work = stack->back();
    work = c10::IValue(
        c10::intrusive_ptr<c10d::Work>(
            c10::make_intrusive<StagedWork>(work.toCustomClass<c10d::Work>(), std::move(staging))));
    if (op.schema().returns().size() == 2) {
      stack->at(stack->size() - 2) = written;
    }
  }
};

class RefusingKernel final : public GlooKernel {
 public:
  using GlooKernel::GlooKernel;

 private:
  void run_with_gloo(
      const c10::OperatorHandle& /*op*/,
      c10::DispatchKeySet /*keys*/,
      torch::jit::Stack* /*stack*/) override {
    TORCH_CHECK(
        false,
        "gloo cannot send or receive CUDA tensors: Bad address. Copy them to the CPU, or use NCCL");
  }
};

template <class Kernel>
void override_kernels(c10::DispatchKey key, const std::vector<std::string>& names) {
  // A Library deregisters its kernels when it is destroyed; this one lives until the process ends.
  auto* library = new torch::Library(torch::Library::IMPL, "c10d", key, __FILE__, __LINE__);
  for (const auto& name : names) {
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(("c10d::" + name).c_str(), "");
    library->impl(
        name.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Kernel>(op, key)));
  }
}

} // namespace

void install_gloo_collectives() {
  WithoutWarnings without_warnings; // about kernels that are replaced
  override_kernels<StagingKernel>(
      c10::DispatchKey::CUDA,
      {"allreduce_", "reduce_scatter_", "_reduce_scatter_base_",
       "reduce_scatter_tensor_coalesced_"});
  override_kernels<StagingKernel>(c10::DispatchKey::SparseCUDA, {"allreduce_"});
  override_kernels<RefusingKernel>(c10::DispatchKey::CUDA, {"send", "recv_", "recv_any_source_"});
}

} // namespace anyrig::virtual_gpu

#endif // USE_C10D_GLOO
