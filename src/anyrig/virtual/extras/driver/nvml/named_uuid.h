// UUIDs that are made of a name (RFC 4122, version 5), as Python's uuid.uuid5 makes them. A rig of
// thousands of GPUs names each by kind and index; the UUIDs themselves would not fit into a
// variable of the environment.
#pragma once

#include <string>

namespace anyrig::nvml {

/// `space` are 32 hexadecimal digits.
std::string named_uuid(const std::string& space, const std::string& name);

}  // namespace anyrig::nvml
