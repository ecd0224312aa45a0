// A driver library that is not there: libnvidia-ml.so.1 with the answers that a scenario gives.
//
// The real package nvidia-ml-py loads it in place of NVIDIA's. Build with
//     g++ -shared -fPIC -std=c++17 -o libnvidia-ml.so.1 nvml_stand_in.cpp
// and set NVML_STAND_IN to the scenario, which every opening reads anew: one thing a line, words
// separated by spaces, "_" for a space inside a value.
//
//     driver init=0 log=/path          init: what nvmlInit returns; log: a line for each opening
//     GPU uuid=GPU-1 bus=00000000:3B:00.0 name=NVIDIA_H200 total=.. free=.. used=..
//          utilization=35 temperature=40 major=9 minor=0 generation=5 width=16 mig=0
//     GPU error=15                    every question, the handle's too, gets this code
//     GPU uuid=GPU-2 .. fails=15      there, but what can change gets this code
//     mig uuid=MIG-1 name=.. total=..  an instance of the GPU above it
//     process pid=7 used=1024 list=compute|graphics    of the GPU or instance above it
//     nvlink to=00000000:86:00.0 version=6 mbps=26562  of the GPU above; to=switch for NVSwitch
//
// A key that is left out is "not supported". The codes are those of nvmlReturn_t in nvml.h.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

namespace {

constexpr int kSuccess = 0, kUninitialized = 1, kInvalidArgument = 2, kNotSupported = 3,
              kNotFound = 6, kInsufficientSize = 7, kDriverNotLoaded = 9;

using Values = std::map<std::string, std::string>;

struct Gpu {
  Values values;
  Gpu* whole = nullptr;  // of an instance
  std::vector<Values> processes, nvlinks;
  std::vector<Gpu*> instances;

  int code(const char* key) const {
    auto found = values.find(key);
    return found == values.end() ? kSuccess : std::stoi(found->second);
  }
};

struct Process {  // nvmlProcessInfo_v2_t
  unsigned pid;
  unsigned long long used;
  unsigned gpu_instance, compute_instance;
};

struct Pci {  // nvmlPciInfo_t
  char bus_id_legacy[16];
  unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
};

struct Field {  // nvmlFieldValue_t
  unsigned field, scope;
  long long timestamp, latency;
  unsigned type, result;
  unsigned long long value;
};

int users = 0;
Values driver;
std::vector<std::unique_ptr<Gpu>> owned;
std::vector<Gpu*> gpus;

void note(const char* what) {
  if (driver.count("log")) std::ofstream(driver["log"], std::ios::app) << what << "\n";
}

void read_scenario() {
  owned.clear(), gpus.clear(), driver.clear();
  std::ifstream file(std::getenv("NVML_STAND_IN") ? std::getenv("NVML_STAND_IN") : "");
  if (!file) driver["init"] = std::to_string(kDriverNotLoaded);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string kind, word;
    words >> kind;
    Values values;
    while (words >> word) {
      auto equals = word.find('=');
      auto value = word.substr(equals + 1);
      for (char& c : value)
        if (c == '_' && word.compare(0, 5, "name=") == 0) c = ' ';
      values[word.substr(0, equals)] = value;
    }
    if (kind == "driver") driver = values;
    if (kind == "gpu" || kind == "mig") {
      owned.push_back(std::make_unique<Gpu>());
      Gpu* gpu = owned.back().get();
      gpu->values = values;
      if (kind == "mig") {
        gpu->whole = gpus.back();
        gpus.back()->instances.push_back(gpu);
      } else {
        gpus.push_back(gpu);
      }
    }
    if (kind == "process") owned.back()->processes.push_back(values);
    if (kind == "nvlink") gpus.back()->nvlinks.push_back(values);
  }
}

// What stands in the way of a question to this GPU: closed, broken, or nothing.
int trouble(Gpu* gpu, bool changing = false) {
  if (users == 0) return kUninitialized;
  if (int code = gpu->code("error")) return code;
  return changing ? gpu->code("fails") : kSuccess;
}

int number(Gpu* gpu, const char* key, bool changing, unsigned long long* answer) {
  if (int code = trouble(gpu, changing)) return code;
  auto found = gpu->values.find(key);
  if (found == gpu->values.end()) return kNotSupported;
  *answer = std::stoull(found->second);
  return kSuccess;
}

int small(Gpu* gpu, const char* key, bool changing, unsigned* answer) {
  unsigned long long wide = 0;
  int code = number(gpu, key, changing, &wide);
  if (code == kSuccess) *answer = static_cast<unsigned>(wide);
  return code;
}

int text(Gpu* gpu, const char* key, char* answer, unsigned length) {
  if (int code = trouble(gpu)) return code;
  auto found = gpu->values.find(key);
  if (found == gpu->values.end()) return kNotSupported;
  std::snprintf(answer, length, "%s", found->second.c_str());
  return kSuccess;
}

int running(Gpu* gpu, const char* list, unsigned* count, Process* out) {
  if (int code = trouble(gpu, true)) return code;
  if (gpu->code("processes")) return gpu->code("processes");
  std::vector<Process> found;
  for (auto& values : gpu->processes)
    if (values["list"] == list)
      found.push_back(
          {static_cast<unsigned>(std::stoul(values["pid"])),
           values.count("used") ? std::stoull(values["used"]) : UINT64_MAX, 0, 0});
  bool fits = out != nullptr && *count >= found.size();
  *count = found.size();
  if (found.empty()) return kSuccess;
  if (!fits) return kInsufficientSize;
  std::memcpy(out, found.data(), found.size() * sizeof(Process));
  return kSuccess;
}

int nvlink(Gpu* gpu, unsigned index, Values** answer) {
  if (int code = trouble(gpu)) return code;
  if (index >= gpu->nvlinks.size()) return kInvalidArgument;
  *answer = &gpu->nvlinks[index];
  return kSuccess;
}

}  // namespace

extern "C" {

int nvmlInitWithFlags(unsigned) {
  if (users == 0) read_scenario();
  int code = driver.count("init") ? std::stoi(driver["init"]) : kSuccess;
  if (code != kSuccess) return code;
  ++users;
  note("open");
  return kSuccess;
}

int nvmlShutdown() {
  if (users == 0) return kUninitialized;
  --users;
  note("close");
  return kSuccess;
}

const char* nvmlErrorString(int) {
  return "an error of the stand-in";
}

int nvmlDeviceGetCount_v2(unsigned* count) {
  if (users == 0) return kUninitialized;
  *count = gpus.size();
  return kSuccess;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Gpu** handle) {
  if (users == 0) return kUninitialized;
  if (index >= gpus.size()) return kInvalidArgument;
  note("handle");
  *handle = gpus[index];
  return trouble(gpus[index]);
}

int nvmlDeviceGetUUID(Gpu* gpu, char* out, unsigned length) {
  return text(gpu, "uuid", out, length);
}

int nvmlDeviceGetName(Gpu* gpu, char* out, unsigned length) {
  return text(gpu, "name", out, length);
}

int nvmlDeviceGetPciInfo_v3(Gpu* gpu, Pci* pci) {
  *pci = Pci{};
  return text(gpu, "bus", pci->bus_id, sizeof pci->bus_id);
}

int nvmlDeviceGetMemoryInfo(Gpu* gpu, unsigned long long* total_free_used) {
  const char* keys[] = {"total", "free", "used"};
  for (int i = 0; i < 3; ++i)
    if (int code = number(gpu, keys[i], true, &total_free_used[i])) return code;
  return kSuccess;
}

int nvmlDeviceGetMemoryInfo_v2(Gpu* gpu, unsigned long long* version_total_reserved_free_used) {
  unsigned long long* out = version_total_reserved_free_used;
  out[2] = 0;
  if (int code = number(gpu, "total", true, &out[1])) return code;
  if (int code = number(gpu, "free", true, &out[3])) return code;
  return number(gpu, "used", true, &out[4]);
}

int nvmlDeviceGetCudaComputeCapability(Gpu* gpu, unsigned* major, unsigned* minor) {
  if (int code = small(gpu, "major", false, major)) return code;
  return small(gpu, "minor", false, minor);
}

int nvmlDeviceGetUtilizationRates(Gpu* gpu, unsigned* gpu_and_memory) {
  gpu_and_memory[1] = 0;
  return small(gpu, "utilization", true, &gpu_and_memory[0]);
}

int nvmlDeviceGetTemperature(Gpu* gpu, unsigned, unsigned* celsius) {
  return small(gpu, "temperature", true, celsius);
}

int nvmlDeviceGetMaxPcieLinkGeneration(Gpu* gpu, unsigned* generation) {
  return small(gpu, "generation", false, generation);
}

int nvmlDeviceGetCurrPcieLinkWidth(Gpu* gpu, unsigned* width) {
  return small(gpu, "width", false, width);
}

int nvmlDeviceGetComputeRunningProcesses_v3(Gpu* gpu, unsigned* count, Process* out) {
  return running(gpu, "compute", count, out);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(Gpu* gpu, unsigned* count, Process* out) {
  return running(gpu, "graphics", count, out);
}

int nvmlDeviceGetMigMode(Gpu* gpu, unsigned* current, unsigned* pending) {
  int code = small(gpu, "mig", false, current);
  *pending = *current;
  return code;
}

int nvmlDeviceGetMaxMigDeviceCount(Gpu* gpu, unsigned* count) {
  *count = 7;
  return trouble(gpu);
}

int nvmlDeviceGetMigDeviceHandleByIndex(Gpu* gpu, unsigned index, Gpu** instance) {
  if (int code = trouble(gpu)) return code;
  if (index >= gpu->instances.size()) return kNotFound;
  *instance = gpu->instances[index];
  return kSuccess;
}

int nvmlDeviceGetNvLinkState(Gpu* gpu, unsigned index, unsigned* active) {
  Values* found;
  if (int code = nvlink(gpu, index, &found)) return code;
  *active = (*found)["to"] != "nothing";
  return kSuccess;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(Gpu* gpu, unsigned index, unsigned* type) {
  Values* found;
  if (int code = nvlink(gpu, index, &found)) return code;
  *type = (*found)["to"] == "switch" ? 2 : 0;
  return kSuccess;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(Gpu* gpu, unsigned index, Pci* pci) {
  Values* found;
  if (int code = nvlink(gpu, index, &found)) return code;
  *pci = Pci{};
  std::snprintf(pci->bus_id, sizeof pci->bus_id, "%s", (*found)["to"].c_str());
  return kSuccess;
}

int nvmlDeviceGetNvLinkVersion(Gpu* gpu, unsigned index, unsigned* version) {
  Values* found;
  if (int code = nvlink(gpu, index, &found)) return code;
  if (!found->count("version")) return kNotSupported;
  *version = std::stoul((*found)["version"]);
  return kSuccess;
}

int nvmlDeviceGetFieldValues(Gpu* gpu, int count, Field* fields) {
  if (int code = trouble(gpu)) return code;
  for (int i = 0; i < count; ++i) {
    fields[i].result = kNotSupported;
    if (fields[i].field == 90 && !gpu->nvlinks.empty() && gpu->nvlinks[0].count("mbps")) {
      fields[i].result = kSuccess;
      fields[i].value = std::stoull(gpu->nvlinks[0]["mbps"]);
    }
  }
  return kSuccess;
}

}  // extern "C"
