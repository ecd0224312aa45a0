// PyTorch's RPC agent looks up a converter for each device type in one registry, and TensorPipe's
// channels in another. CUDA builds register CUDA's. This file registers a converter and a channel
// that pass the host memory of virtual devices to TensorPipe's `basic` channel:
//
//   tensor of cuda:0 ── GpuBuffer ──┐                                ┌── GpuBuffer ── cuda:1
//                                   ├─> GpuChannel ─ basic channel ──┤
//   tensor of the CPU ── CpuBuffer ─┘                                └── CpuBuffer ── the CPU
//
// The agent's streams, device maps and futures are PyTorch's own and work as usual. The copies take
// no virtual time. In ShapeOnly no data moves, and receiving a tensor on the CPU is an error.

#include "extras/rpc/tensorpipe.h"

#if __has_include(<tensorpipe/channel/basic/factory.h>) // this PyTorch has TensorPipe

#include "device/device.h"
#include "extras/rpc/tensorpipe_channel.h"
#include "memory/memory.h"

#ifndef USE_TENSORPIPE
#define USE_TENSORPIPE // without it, PyTorch's headers do not declare the agent
#endif

#include <c10/core/StreamGuard.h>
#include <tensorpipe/channel/basic/factory.h>
#include <tensorpipe/core/message.h>
#include <torch/csrc/distributed/rpc/tensorpipe_agent.h>
#include <torch/csrc/distributed/rpc/tensorpipe_utils.h>

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace anyrig::virtual_gpu {
namespace {

namespace rpc = torch::distributed::rpc;
using ChannelCallback = std::function<void(const tensorpipe::Error&)>;

// Must be trivially copyable: TensorPipe copies buffers byte by byte.
struct GpuBuffer {
  void* host = nullptr; // unreadable in ShapeOnly
  int device = 0;

  tensorpipe::Device getDevice() const { return {tensorpipe::kCudaDeviceType, device}; }
};

bool on_host(const tensorpipe::Buffer& buffer) {
  return buffer.device().type == tensorpipe::kCpuDeviceType;
}

tensorpipe::CpuBuffer host_buffer(const tensorpipe::Buffer& buffer) {
  if (on_host(buffer)) {
    return buffer.unwrap<tensorpipe::CpuBuffer>();
  }
  return {buffer.unwrap<GpuBuffer>().host};
}

class NoValues : public tensorpipe::BaseError {
 public:
  std::string what() const override {
    return "anyrig: RPC moves a tensor of a virtual GPU to the CPU, but in shape-only mode "
           "the tensor has no values. Rehearse without --shape-only, or map it to a GPU in "
           "device_maps.";
  }
};

class GpuChannel : public tensorpipe::channel::Channel {
 public:
  explicit GpuChannel(std::shared_ptr<Channel> basic) : basic_(std::move(basic)) {}

  void send(tensorpipe::Buffer buffer, size_t length, ChannelCallback callback) override {
    if (!shape_only()) {
      basic_->send(host_buffer(buffer), length, std::move(callback));
      return;
    }
    auto marker = std::make_shared<char>(0); // stands for the tensor; kept until it is sent
    basic_->send(
        tensorpipe::CpuBuffer{marker.get()}, 1,
        [marker, callback = std::move(callback)](const tensorpipe::Error& error) {
          callback(error);
        });
  }

  void recv(tensorpipe::Buffer buffer, size_t length, ChannelCallback callback) override {
    if (!shape_only()) {
      basic_->recv(host_buffer(buffer), length, std::move(callback));
      return;
    }
    auto marker = std::make_shared<char>(0);
    const bool needs_values = on_host(buffer) && length > 0;
    basic_->recv(
        tensorpipe::CpuBuffer{marker.get()}, 1,
        [marker, needs_values, callback = std::move(callback)](const tensorpipe::Error& error) {
          if (needs_values && !error) {
            callback(
                tensorpipe::Error(
                    std::make_shared<NoValues>(), "extras/rpc/tensorpipe.cpp", __LINE__));
          } else {
            callback(error);
          }
        });
  }

  void setId(std::string id) override { basic_->setId(std::move(id)); }
  void close() override { basic_->close(); }

 private:
  std::shared_ptr<Channel> basic_;
};

class GpuChannels : public tensorpipe::channel::Context {
 public:
  GpuChannels() : basic_(tensorpipe::channel::basic::create()) {
    // Two ends can communicate if their descriptors are equal. Between two CPUs TensorPipe prefers
    // one of its own channels, which are faster.
    const std::string mode = shape_only() ? "anyrig:shape-only" : "anyrig:compute";
    devices_[{tensorpipe::kCpuDeviceType, 0}] = mode;
    for (int device = 0; device < device_count(); ++device) {
      devices_[{tensorpipe::kCudaDeviceType, device}] = mode;
    }
  }

  bool isViable() const override { return basic_->isViable(); }
  size_t numConnectionsNeeded() const override { return basic_->numConnectionsNeeded(); }
  const std::unordered_map<tensorpipe::Device, std::string>& deviceDescriptors() const override {
    return devices_;
  }
  bool canCommunicateWithRemote(const std::string& local, const std::string& remote)
      const override {
    return local == remote;
  }
  std::shared_ptr<tensorpipe::channel::Channel> createChannel(
      std::vector<std::shared_ptr<tensorpipe::transport::Connection>> connections,
      tensorpipe::channel::Endpoint endpoint) override {
    return std::make_shared<GpuChannel>(basic_->createChannel(std::move(connections), endpoint));
  }
  void setId(std::string id) override { basic_->setId(std::move(id)); }
  void close() override { basic_->close(); }
  void join() override { basic_->join(); }

 private:
  std::shared_ptr<tensorpipe::channel::Context> basic_;
  std::unordered_map<tensorpipe::Device, std::string> devices_;
};

// Follows TensorpipeCudaConverter of torch/csrc/distributed/rpc/tensorpipe_cuda.cpp.
class GpuConverter : public rpc::TensorpipeDeviceTypeConverter {
 public:
  std::optional<std::vector<char>> prepareTensorForSending(
      const c10::Storage& storage,
      const std::vector<c10::Stream>& streams,
      tensorpipe::Message& message) const override {
    // The agent keeps the tensor until it is sent, and frees it in a thread of its own.
    record_stream(storage.data_ptr(), rpc::getStreamForDevice(streams, storage.device()));
    tensorpipe::Message::Tensor tensor;
    tensor.buffer = GpuBuffer{const_cast<void*>(storage.data()), storage.device().index()};
    tensor.length = storage.nbytes();
    message.tensors.push_back(std::move(tensor));
    return std::nullopt;
  }

  at::DataPtr allocateTensorForReceiving(
      c10::DeviceIndex device,
      size_t length,
      const std::vector<c10::Stream>& streams,
      tensorpipe::Allocation& allocation) const override {
    const c10::StreamGuard guard(
        rpc::getStreamForDevice(streams, c10::Device(kDeviceType, device)));
    auto data = allocate(length, device);
    tensorpipe::Allocation::Tensor tensor;
    tensor.buffer = GpuBuffer{data.get(), device};
    allocation.tensors.push_back(std::move(tensor));
    return data;
  }
};

} // namespace

void install_tensorpipe() {
  static const GpuConverter converter;
  const rpc::TensorpipeDeviceTypeConverterRegistrar registrar(kDeviceType, &converter);
  rpc::TensorPipeChannelRegistry()->Register("anyrig_gpus", [] {
    return std::make_unique<rpc::ChannelRegistration>(
        rpc::ChannelRegistration{std::make_shared<GpuChannels>(), rpc::kCudaBasicChannelPriority});
  });
}

} // namespace anyrig::virtual_gpu

#else

namespace anyrig::virtual_gpu {

void install_tensorpipe() {}

} // namespace anyrig::virtual_gpu

#endif
