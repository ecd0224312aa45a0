// PyTorch's agent asks a registry who brings tensors of a kind of device into TensorPipe's messages,
// and another one which channels can carry them. In builds for CUDA these are CUDA's; here it is a
// channel that hands the host bytes of virtual devices to TensorPipe's `basic` one:
//
//   tensor of cuda:0 ── CardBuffer ──┐                                 ┌── CardBuffer ── cuda:1
//                                    ├─> CardChannel ─ basic channel ──┤
//   tensor of the CPU ── CpuBuffer ──┘                                 └── CpuBuffer ─── the CPU
//
// The agent's streams, device maps and futures are PyTorch's own and go their usual ways. The copies
// take no virtual time. In ShapeOnly no data moves, and a tensor that is to arrive on the CPU is an
// error there.

#include "rpc/tensorpipe.h"

#if __has_include(<tensorpipe/channel/basic/factory.h>) // a PyTorch that has TensorPipe

#include "device/device.h"
#include "memory/memory.h"
#include "rpc/tensorpipe_channel.h"

#ifndef USE_TENSORPIPE
#define USE_TENSORPIPE // PyTorch's headers hide the agent from who does not say so
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

// TensorPipe copies it bit by bit.
struct CardBuffer {
  void* host = nullptr; // in ShapeOnly not to be read
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
  return {buffer.unwrap<CardBuffer>().host};
}

class NoValues : public tensorpipe::BaseError {
 public:
  std::string what() const override {
    return "anyrig: a tensor of a virtual GPU arrives on the CPU by RPC, and in shape-only mode it "
           "has no values. Rehearse without --shape-only, or map it to a GPU in device_maps.";
  }
};

class CardChannel : public tensorpipe::channel::Channel {
 public:
  explicit CardChannel(std::shared_ptr<Channel> bytes) : bytes_(std::move(bytes)) {}

  void send(tensorpipe::Buffer buffer, size_t length, ChannelCallback callback) override {
    if (!shape_only()) {
      bytes_->send(host_buffer(buffer), length, std::move(callback));
      return;
    }
    auto sign = std::make_shared<char>(0); // that the tensor was sent; kept until it has left
    bytes_->send(
        tensorpipe::CpuBuffer{sign.get()}, 1,
        [sign, callback = std::move(callback)](const tensorpipe::Error& error) {
          callback(error);
        });
  }

  void recv(tensorpipe::Buffer buffer, size_t length, ChannelCallback callback) override {
    if (!shape_only()) {
      bytes_->recv(host_buffer(buffer), length, std::move(callback));
      return;
    }
    auto sign = std::make_shared<char>(0);
    const bool needs_values = on_host(buffer) && length > 0;
    bytes_->recv(
        tensorpipe::CpuBuffer{sign.get()}, 1,
        [sign, needs_values, callback = std::move(callback)](const tensorpipe::Error& error) {
          if (needs_values && !error) {
            callback(tensorpipe::Error(std::make_shared<NoValues>(), "rpc/tensorpipe.cpp", __LINE__));
          } else {
            callback(error);
          }
        });
  }

  void setId(std::string id) override { bytes_->setId(std::move(id)); }
  void close() override { bytes_->close(); }

 private:
  std::shared_ptr<Channel> bytes_;
};

class CardChannels : public tensorpipe::channel::Context {
 public:
  CardChannels() : bytes_(tensorpipe::channel::basic::create()) {
    // Two ends can talk when they say the same. A pair of CPUs has faster channels.
    const std::string mode = shape_only() ? "anyrig:shape-only" : "anyrig:compute";
    devices_[{tensorpipe::kCpuDeviceType, 0}] = mode;
    for (int device = 0; device < device_count(); ++device) {
      devices_[{tensorpipe::kCudaDeviceType, device}] = mode;
    }
  }

  bool isViable() const override { return bytes_->isViable(); }
  size_t numConnectionsNeeded() const override { return bytes_->numConnectionsNeeded(); }
  const std::unordered_map<tensorpipe::Device, std::string>& deviceDescriptors() const override {
    return devices_;
  }
  bool canCommunicateWithRemote(
      const std::string& local, const std::string& remote) const override {
    return local == remote;
  }
  std::shared_ptr<tensorpipe::channel::Channel> createChannel(
      std::vector<std::shared_ptr<tensorpipe::transport::Connection>> connections,
      tensorpipe::channel::Endpoint endpoint) override {
    return std::make_shared<CardChannel>(bytes_->createChannel(std::move(connections), endpoint));
  }
  void setId(std::string id) override { bytes_->setId(std::move(id)); }
  void close() override { bytes_->close(); }
  void join() override { bytes_->join(); }

 private:
  std::shared_ptr<tensorpipe::channel::Context> bytes_;
  std::unordered_map<tensorpipe::Device, std::string> devices_;
};

// Follows TensorpipeCudaConverter of torch/csrc/distributed/rpc/tensorpipe_cuda.cpp.
class CardConverter : public rpc::TensorpipeDeviceTypeConverter {
 public:
  std::optional<std::vector<char>> prepareTensorForSending(
      const c10::Storage& storage,
      const std::vector<c10::Stream>& streams,
      tensorpipe::Message& message) const override {
    // The agent keeps the tensor until it has left, and then frees it from a thread of its own.
    record_stream(storage.data_ptr(), rpc::getStreamForDevice(streams, storage.device()));
    tensorpipe::Message::Tensor tensor;
    tensor.buffer = CardBuffer{const_cast<void*>(storage.data()), storage.device().index()};
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
    tensor.buffer = CardBuffer{data.get(), device};
    allocation.tensors.push_back(std::move(tensor));
    return data;
  }
};

} // namespace

void install_tensorpipe() {
  static const CardConverter converter;
  const rpc::TensorpipeDeviceTypeConverterRegistrar registrar(kDeviceType, &converter);
  rpc::TensorPipeChannelRegistry()->Register("anyrig_cards", [] {
    return std::make_unique<rpc::ChannelRegistration>(rpc::ChannelRegistration{
        std::make_shared<CardChannels>(), rpc::kCudaBasicChannelPriority});
  });
}

} // namespace anyrig::virtual_gpu

#else

namespace anyrig::virtual_gpu {

void install_tensorpipe() {}

} // namespace anyrig::virtual_gpu

#endif
