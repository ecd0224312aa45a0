// Where the ranks of a collective are, and how long the collective takes between these places.
#pragma once

#include "time/cost/collective_cost.h"

#include <c10/core/Device.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>

namespace anyrig::virtual_gpu {

// The location of a rank: the position of its device in the whole rig. Ranks exchange Places as raw
// bytes. Several ranks may share a device.
struct Place {
  int64_t position = 0;
};

// Returns the place of a rank of this process that uses `device`.
Place place_of(c10::DeviceIndex device);

// Returns the name in torch.distributed: "all_reduce", "broadcast", ...
const char* name_of(CollectiveKind kind);

// Returns the seconds from the time at which all ranks have joined until the collective is done on
// all ranks. For a message, `ranks` holds its two ends, or only the end that is known.
double collective_seconds(CollectiveKind kind, double bytes, c10::ArrayRef<Place> ranks);

// Returns the number of nodes on which `ranks` are.
int32_t count_nodes(c10::ArrayRef<Place> ranks);

} // namespace anyrig::virtual_gpu
