#include "session.h"

#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>

// The library of NVIDIA's driver, libnvidia-ml.so.1, for the GPUs of a virtual rig. Of its some 400
// functions those are here that programs ask; the others are absent, as in an older driver.

namespace anyrig::nvml {
namespace {

std::mutex opening;
int users = 0;
std::string told;  // the rig of this process, where its environment does not name it
std::atomic<const Rig*> current{nullptr};

int open_library() {
  std::lock_guard<std::mutex> lock(opening);
  if (users > 0) {
    ++users;
    return kSuccess;
  }
  // Both: who takes itself out of a rehearsal unsets the first.
  const char* inherited = std::getenv("ANYRIG_REHEARSAL");
  const char* facts = inherited == nullptr ? nullptr : std::getenv("ANYRIG_DRIVER");
  const std::string text = !told.empty() ? told : facts != nullptr ? facts : "";
  if (text.empty()) return kLibraryNotFound;
  auto rig = std::make_unique<Rig>();
  try {
    if (!read_rig(text, std::getenv("GROUP_RANK"), *rig)) return kUnknown;
  } catch (const std::logic_error&) {
    return kUnknown;
  }
  // Never freed: a caller may hold handles beyond its nvmlShutdown. They are few.
  current = rig.release();
  users = 1;
  return kSuccess;
}

const char* words_of(int result) {
  switch (result) {
    case kSuccess:
      return "The operation was successful";
    case kUninitialized:
      return "Uninitialized";
    case kInvalidArgument:
      return "Invalid Argument";
    case kNotSupported:
      return "Not Supported";
    case 4:
      return "Insufficient Permissions";
    case 5:
      return "Already Initialized";
    case kNotFound:
      return "Not Found";
    case kInsufficientSize:
      return "Insufficient Size";
    case 8:
      return "Insufficient External Power";
    case 9:
      return "Driver Not Loaded";
    case 10:
      return "Timeout";
    case 11:
      return "Interrupt Request Issue";
    case kLibraryNotFound:
      return "NVML Shared Library Not Found";
    case 13:
      return "Function Not Found";
    case 14:
      return "Corrupted infoROM";
    case 15:
      return "GPU is lost";
    case 16:
      return "GPU requires reset";
    case 17:
      return "GPU access blocked by the operating system";
    case 18:
      return "Driver/library version mismatch";
    case 19:
      return "In use by another client";
    case 20:
      return "Insufficient Memory";
    case 21:
      return "No data";
    case kVersionMismatch:
      return "Argument version mismatch";
    default:
      return "Unknown Error";
  }
}

}  // namespace

const Rig* open_rig() {
  return current;
}

}  // namespace anyrig::nvml

using namespace anyrig::nvml;

/// Sets the rig of this process if its environment does not name one; anyrig calls this
///     (library.py).
extern "C" __attribute__((visibility("default"))) void anyrig_use_rig(const char* facts) {
  std::lock_guard<std::mutex> lock(opening);
  told = facts;
}

NVML_FUNCTION nvmlInit() {
  return open_library();
}
NVML_FUNCTION nvmlInit_v2() {
  return open_library();
}
NVML_FUNCTION nvmlInitWithFlags(unsigned) {
  return open_library();
}

NVML_FUNCTION nvmlShutdown() {
  std::lock_guard<std::mutex> lock(opening);
  if (users == 0) return kUninitialized;
  if (--users == 0) current = nullptr;
  return kSuccess;
}

extern "C" __attribute__((visibility("default"))) const char* nvmlErrorString(int result) {
  return words_of(result);
}

NVML_FUNCTION nvmlSystemGetDriverVersion(char* out, unsigned size) {
  const Rig* rig = open_rig();
  return rig == nullptr ? kUninitialized : write_text(rig->driver_version.c_str(), out, size);
}

NVML_FUNCTION nvmlSystemGetNVMLVersion(char* out, unsigned size) {
  const Rig* rig = open_rig();
  if (rig == nullptr) return kUninitialized;
  const std::string version = std::to_string(rig->cuda_version / 1000) + "." + rig->driver_version;
  return write_text(version.c_str(), out, size);
}

NVML_FUNCTION nvmlSystemGetCudaDriverVersion(int* out) {
  const Rig* rig = open_rig();
  return rig == nullptr ? kUninitialized : give(rig->cuda_version, out);
}
NVML_FUNCTION nvmlSystemGetCudaDriverVersion_v2(int* out) {
  return nvmlSystemGetCudaDriverVersion(out);
}

NVML_FUNCTION nvmlSystemGetProcessName(unsigned pid, char* out, unsigned size) {
  const std::string path = "/proc/" + std::to_string(pid) + "/cmdline";
  FILE* file = std::fopen(path.c_str(), "r");
  if (file == nullptr) return kNotFound;
  char words[4096];
  words[std::fread(words, 1, sizeof words - 1, file)] = '\0';  // its arguments end with zeros
  std::fclose(file);
  return write_text(words, out, size);
}

NVML_FUNCTION nvmlDeviceGetCount_v2(unsigned* out) {
  const Rig* rig = open_rig();
  return rig == nullptr ? kUninitialized : give(static_cast<unsigned>(rig->gpus.size()), out);
}
NVML_FUNCTION nvmlDeviceGetCount(unsigned* out) {
  return nvmlDeviceGetCount_v2(out);
}
