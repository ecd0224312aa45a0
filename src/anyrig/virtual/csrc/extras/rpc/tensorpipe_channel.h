// The interface of TensorPipe's channels. PyTorch ships only the header of the channels' context.
// The methods and their order are those of tensorpipe/channel/channel.h, unchanged since 2021;
// tests/virtual/test_rpc.py would fail if they changed.
#pragma once

#include <tensorpipe/common/buffer.h>
#include <tensorpipe/common/error.h>

#include <functional>
#include <string>

namespace tensorpipe::channel {

class Channel {
 public:
  virtual void send(Buffer buffer, size_t length, std::function<void(const Error&)> callback) = 0;
  virtual void recv(Buffer buffer, size_t length, std::function<void(const Error&)> callback) = 0;
  virtual void setId(std::string id) = 0;
  virtual void close() = 0;
  virtual ~Channel() = default;
};

} // namespace tensorpipe::channel
