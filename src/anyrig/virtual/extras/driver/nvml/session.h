// The open library: which rig it answers for, and which of its cards a caller means.
#pragma once

#include "rig.h"

#include <utility>

namespace anyrig::nvml {

/// Null before `nvmlInit` and after `nvmlShutdown`.
const Rig* open_rig();

/// Calls `answer(rig, card)` for the card of a handle; else says why that cannot be.
template <class Answer>
int with_card(const void* handle, Answer&& answer) {
  const Rig* rig = open_rig();
  if (rig == nullptr) return kUninitialized;
  for (const Card& card : rig->cards)
    if (&card == handle) return std::forward<Answer>(answer)(*rig, card);
  return kInvalidArgument;
}

}  // namespace anyrig::nvml
