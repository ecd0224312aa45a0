#ifdef USE_C10D_GLOO

#include "collectives/profiler_title.h"

#include <c10/util/StringUtil.h>

namespace anyrig::virtual_gpu {
namespace {

const char* coalesced_title(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::AllReduce:
      return "nccl:allreduce_coalesced";
    case CollectiveKind::AllGather:
      return "nccl:all_gather_into_tensor_coalesced";
    case CollectiveKind::ReduceScatter:
      return "nccl:reduce_scatter_tensor_coalesced";
    default:
      return "nccl:coalesced";
  }
}

} // namespace

std::string profiler_title(c10d::OpType op, CollectiveKind kind, int rank, int peer) {
  switch (op) {
    case c10d::OpType::BROADCAST:
      return "nccl:broadcast";
    case c10d::OpType::ALLREDUCE:
      return "nccl:all_reduce";
    case c10d::OpType::REDUCE:
      return "nccl:reduce";
    case c10d::OpType::ALLGATHER:
      return "nccl:all_gather";
    case c10d::OpType::_ALLGATHER_BASE:
      return "nccl:_all_gather_base";
    case c10d::OpType::REDUCE_SCATTER:
      return "nccl:reduce_scatter";
    case c10d::OpType::_REDUCE_SCATTER_BASE:
      return "nccl:_reduce_scatter_base";
    case c10d::OpType::ALLTOALL:
    case c10d::OpType::ALLTOALL_BASE:
      return "nccl:all_to_all";
    case c10d::OpType::GATHER:
      return "nccl:gather";
    case c10d::OpType::SCATTER:
      return "nccl:scatter";
    case c10d::OpType::BARRIER:
      return "nccl:all_reduce_barrier";
    case c10d::OpType::SEND:
      return c10::str("nccl:send ", rank, "->", peer);
    case c10d::OpType::RECV:
      return c10::str("nccl:recv ", rank, "<-", peer);
    default:
      return coalesced_title(kind);
  }
}

} // namespace anyrig::virtual_gpu

#endif // USE_C10D_GLOO
