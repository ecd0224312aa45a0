#ifdef USE_C10D_GLOO

#include "collectives/failure.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

namespace anyrig::virtual_gpu {
namespace {

std::string rank_list(const Membership& group, const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    text += i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(ranks[i]);
    const auto rank = static_cast<size_t>(ranks[i]);
    if (rank < group.global_ranks.size() && group.global_ranks[rank] != rank) {
      text += c10::str(" (global rank ", group.global_ranks[rank], ")");
    }
  }
  return text;
}

std::string describe(const CollectiveCall& call) {
  return c10::str(
      "[Rank ", call.group.rank, " of group ", call.group.name, "] WorkNCCL(SeqNum=", call.sequence,
      ", OpType=", c10d::opTypeToString(call.op), ", NumelIn=", call.input_numel,
      ", NumelOut=", call.output_numel, ", Timeout(ms)=", call.limit.count(), ")");
}

} // namespace

void raise_failure(const CollectiveCall& call, const std::string& reason) {
  C10_THROW_ERROR(DistBackendError, c10::str(describe(call), " failed: ", reason));
}

void raise_failure(const CollectiveCall& call, const TransportError& error) {
  const auto peers = rank_list(call.group, error.peers);
  switch (error.reason) {
    case TransportError::Reason::TimeLimit:
      C10_THROW_ERROR(
          DistBackendError,
          c10::str(
              describe(call), " timed out: ", peers, " did not take part within ",
              call.limit.count(), " ms. Either ", error.peers.size() == 1 ? "it is" : "they are",
              " still busy (raise the timeout of init_process_group), or took another code path"));
    case TransportError::Reason::Closed:
      raise_failure(call, "the process group was closed or aborted during this call");
    case TransportError::Reason::Lost:
      break;
  }
  raise_failure(
      call,
      c10::str(
          "the connection to ", peers,
          " is lost: that process ended or stopped waiting; its own "
          "output says why (",
          error.gloo_text, ")"));
}

} // namespace anyrig::virtual_gpu

#endif // USE_C10D_GLOO
