#ifdef USE_C10D_GLOO

#include "extras/symmetric/peers.h"

#include "collectives/gil.h"
#include "device/device.h"
#include "extras/symmetric/signals.h"
#include "memory/memory.h"

#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>
#include <c10/util/env.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>

namespace anyrig::virtual_gpu {
namespace {

constexpr std::chrono::milliseconds kDefaultTimeout{10 * 60 * 1000};

bool is_set(const char* name) {
  return c10::utils::check_env(name) == true;
}

// An exchange through the store of a group. Each rank counts its exchanges in the store, so that
// every exchange has its own keys.
class StoreExchange {
 public:
  StoreExchange(c10::intrusive_ptr<c10d::Store> store, int rank, int size)
      : store_(std::move(store)), rank_(rank), size_(size) {
    round_ = store_->add("symmetric_memory/rounds/" + std::to_string(rank_), 1);
  }

  std::vector<Member> gather(const Member& own) {
    std::vector<uint8_t> bytes(sizeof(Member));
    std::memcpy(bytes.data(), &own, sizeof(Member));
    store_->set(key("member", rank_), bytes);
    std::vector<Member> members(size_);
    for (int rank = 0; rank < size_; ++rank) {
      const auto bytes_of_rank = store_->get(key("member", rank));
      TORCH_CHECK(
          bytes_of_rank.size() == sizeof(Member), "rank ", rank,
          " runs a different version of anyrig");
      std::memcpy(&members[rank], bytes_of_rank.data(), sizeof(Member));
    }
    return members;
  }

  void barrier() {
    store_->set(key("done", rank_), std::vector<uint8_t>{1});
    for (int rank = 0; rank < size_; ++rank) {
      store_->wait({key("done", rank)});
    }
  }

 private:
  std::string key(const char* what, int rank) const {
    return c10::str("symmetric_memory/", round_, '/', what, '/', rank);
  }

  c10::intrusive_ptr<c10d::Store> store_;
  int rank_;
  int size_;
  int64_t round_;
};

Member member_of(const SharedPiece& piece) {
  const DeviceFacts& facts = devices()[piece.device()];
  return {
      getpid(),
      piece.file(),
      piece.device(),
      facts.node,
      facts.position,
      device_has_multicast(piece.device()),
      piece.sizes().buffer_bytes,
      piece.sizes().signal_bytes};
}

// From validate_rendezvous_requests in CUDASymmetricMemory.cu.
void check_members(const std::vector<Member>& members) {
  std::set<std::pair<int64_t, int64_t>> gpus;
  for (const auto& member : members) {
    gpus.insert({member.node, member.device});
  }
  TORCH_CHECK(
      gpus.size() == members.size() || is_set("TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"),
      "CUDASymmetricMemoryAllocator::rendezvous: detected allocations from overlapping devices "
      "from different ranks.");
  for (size_t rank = 1; rank < members.size(); ++rank) {
    const Member& member = members[rank];
    TORCH_CHECK(
        member.buffer_bytes == members[0].buffer_bytes &&
            member.signal_bytes == members[0].signal_bytes,
        "CUDASymmetricMemoryAllocator::rendezvous: sizes differ: rank 0 has a buffer of ",
        members[0].buffer_bytes, " bytes and a signal pad of ", members[0].signal_bytes, ", rank ",
        rank, " one of ", member.buffer_bytes, " and one of ", member.signal_bytes);
    TORCH_CHECK(
        member.node == members[0].node,
        "CUDASymmetricMemoryAllocator::rendezvous: rank 0 is on node ", members[0].node,
        " and rank ", rank, " on node ", member.node,
        ", and no link of the rig lets the GPUs of two nodes access each other's memory; use a "
        "group of ranks on one node");
  }
}

std::chrono::milliseconds timeout_of(const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  try {
    return group->getBackend(kDeviceType)->getBackendOptions()->timeout;
  } catch (const c10::Error&) {
    return kDefaultTimeout; // a backend without options
  }
}

void release_peers(void* context) {
  delete static_cast<std::shared_ptr<Peers>*>(context);
}

} // namespace

bool device_has_multicast(c10::DeviceIndex device) {
  const DeviceFacts& facts = devices()[device];
  return facts.capability_major >= 9 && facts.gpu.link_bytes_per_second > 0 &&
      !is_set("TORCH_SYMM_MEM_DISABLE_MULTICAST");
}

std::shared_ptr<Peers> Peers::rendezvous(
    std::shared_ptr<SharedPiece> own,
    const std::string& name) {
  const auto group = c10d::resolve_process_group(name);
  std::shared_ptr<Peers> peers(new Peers());
  peers->rank_ = group->getRank();
  peers->group_timeout_ = timeout_of(group);
  StoreExchange exchange(group->getStore(), group->getRank(), group->getSize());
  const WithoutGil without_gil;
  const auto members = exchange.gather(member_of(*own));
  check_members(members);
  bool has_multicast = !is_set("TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES");
  for (size_t rank = 0; rank < members.size(); ++rank) {
    const Member& member = members[rank];
    peers->pieces_.push_back(
        static_cast<int>(rank) == peers->rank_
            ? own
            : std::make_shared<SharedPiece>(
                  own->sizes(), own->device(), member.process, static_cast<int>(member.file)));
    peers->processes_.push_back(member.process);
    peers->places_.push_back({member.position});
    has_multicast = has_multicast && member.has_multicast != 0;
  }
  exchange.barrier(); // a rank must not close its file before all ranks have opened it
  if (has_multicast) {
    peers->multicast_ = reserve_addresses(own->sizes().buffer_bytes);
  }
  peers->allocate_pointers();
  return peers;
}

Peers::~Peers() {
  if (multicast_ != nullptr) {
    free_addresses(multicast_, pieces_[rank_]->sizes().buffer_bytes);
  }
}

void Peers::allocate_pointers() {
  const auto array = [this](auto address_of) {
    // Never freed, as in CUDASymmetricMemory.
    auto* pointers = new c10::DataPtr(allocate(sizeof(void*) * pieces_.size(), device()));
    if (!shape_only()) {
      for (int rank = 0; rank < size(); ++rank) {
        static_cast<void**>(pointers->get())[rank] = address_of(piece(rank));
      }
    }
    return pointers->get();
  };
  buffer_pointers_ = array([](const SharedPiece& piece) { return piece.buffer(); });
  signal_pad_pointers_ =
      array([](const SharedPiece& piece) -> void* { return piece.signal_pad(); });
}

SignalCall Peers::describe_signal(const char* what, int peer, int channel, size_t timeout_ms)
    const {
  const bool has_timeout = timeout_ms > 0;
  return {
      what,
      rank_,
      peer,
      channel,
      processes_[peer],
      has_timeout ? std::chrono::milliseconds(timeout_ms) : group_timeout_,
      has_timeout};
}

double Peers::put_signal(int peer, int channel, size_t timeout_ms, double now) const {
  const size_t word = static_cast<size_t>(size()) * channel + rank_;
  const SharedPiece& peer_piece = piece(peer);
  send_signal(
      peer_piece.signal_pad() + word, peer_piece.sent_time(word), now,
      describe_signal("put_signal", peer, channel, timeout_ms));
  return now;
}

double Peers::wait_signal(int peer, int channel, size_t timeout_ms, double now) const {
  const size_t word = static_cast<size_t>(size()) * channel + peer;
  const SharedPiece& own = piece(rank_);
  const double sent = receive_signal(
      own.signal_pad() + word, own.sent_time(word),
      describe_signal("wait_signal", peer, channel, timeout_ms));
  return std::max(now, sent);
}

double Peers::barrier(const char* what, int channel, size_t timeout_ms, double now) const {
  const size_t first = static_cast<size_t>(size()) * channel;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank_) {
      send_signal(
          piece(peer).signal_pad() + first + rank_, piece(peer).sent_time(first + rank_), now,
          describe_signal(what, peer, channel, timeout_ms));
    }
  }
  double latest = now;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank_) {
      const SharedPiece& own = piece(rank_);
      latest = std::max(
          latest,
          receive_signal(
              own.signal_pad() + first + peer, own.sent_time(first + peer),
              describe_signal(what, peer, channel, timeout_ms)));
    }
  }
  return latest;
}

at::Tensor signal_pad_tensor(const std::shared_ptr<Peers>& peers) {
  const auto device = c10::Device(kDeviceType, peers->device());
  const SharedPiece& own = peers->piece(peers->rank());
  return at::for_blob(own.signal_pad(), {static_cast<int64_t>(own.sizes().signal_bytes)})
      .context(new std::shared_ptr<Peers>(peers), &release_peers)
      .options(at::TensorOptions().dtype(at::kByte).device(device))
      .target_device(device)
      .make_tensor();
}

std::shared_ptr<Peers> peers_of_signal_pad(const at::Tensor& tensor) {
  const auto& data = tensor.storage().data_ptr();
  return data.get_deleter() == &release_peers
      ? *static_cast<std::shared_ptr<Peers>*>(data.get_context())
      : nullptr;
}

} // namespace anyrig::virtual_gpu

#endif // USE_C10D_GLOO
