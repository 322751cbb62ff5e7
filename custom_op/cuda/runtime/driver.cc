#include "cuda/runtime/driver.h"

#include <pthread.h>

#include <atomic>
#include <stdexcept>

#include "cuda/runtime/shared_library.h"

namespace convswap {
namespace {

constexpr int kVersion = 12000;

struct FoundDriver {
  Driver driver;
  bool is_found = false;
  std::string why_not;
};

// Whether this process was forked from the one that has found the driver.
std::atomic<bool> is_forked{false};

// cuGetProcAddress as CUDA 12.0 has it, whatever the headers are.
using GetProcAddress = CUresult (*)(const char* name, void** function, int version, cuuint64_t flags,
                                    CUdriverProcAddressQueryResult* found);

FoundDriver look_for_driver() {
  FoundDriver search;
  const SharedLibrary library = SharedLibrary::open("libcuda.so.1");
  if (!library.is_open()) {
    search.why_not = "there is no NVIDIA driver that takes CUDA 12 or newer: libcuda.so.1 is not loaded: " +
                     library.error();
    return search;
  }
  const auto get = reinterpret_cast<GetProcAddress>(library.find("cuGetProcAddress_v2"));
  const auto too_old = [&](const char* what) {
    search.why_not =
        std::string("the NVIDIA driver is older than CUDA 12 (it has no ") + what + "); install a newer one";
    return search;
  };
  if (get == nullptr) return too_old("cuGetProcAddress_v2");
  const auto find = [&](const char* name, int version) {
    void* function = nullptr;
    CUdriverProcAddressQueryResult found{};
    return get(name, &function, version, CU_GET_PROC_ADDRESS_DEFAULT, &found) == CUDA_SUCCESS ? function
                                                                                              : nullptr;
  };
  Driver& driver = search.driver;
#define CONVSWAP_FIND(name)                                                     \
  driver.name = reinterpret_cast<decltype(driver.name)>(find(#name, kVersion)); \
  if (driver.name == nullptr) return too_old(#name);
  CONVSWAP_DRIVER_FUNCTIONS(CONVSWAP_FIND)
#undef CONVSWAP_FIND
  driver.kernel_get_parameter =
      reinterpret_cast<decltype(driver.kernel_get_parameter)>(find("cuKernelGetParamInfo", 12040));
  int cards = 0;
  if (const CUresult failed = driver.cuInit(0); failed != CUDA_SUCCESS) {
    const char* words = nullptr;
    driver.cuGetErrorString(failed, &words);
    search.why_not =
        std::string("the NVIDIA driver does not start: ") + (words == nullptr ? "no reason given" : words);
  } else if (driver.cuDeviceGetCount(&cards) != CUDA_SUCCESS || cards == 0) {
    search.why_not = "the NVIDIA driver sees no card in this process";
  } else {
    driver.cuDriverGetVersion(&driver.version);
    search.is_found = true;
    pthread_atfork(nullptr, nullptr, [] { is_forked = true; });
  }
  return search;
}

}  // namespace

const Driver* find_driver(std::string* why) {
  // Never destroyed: sessions may still run while the process ends.
  static const FoundDriver& search = *new FoundDriver(look_for_driver());
  if (search.is_found && !is_forked) return &search.driver;
  if (why != nullptr) {
    *why = search.is_found
               ? "this process was forked from one that has used the card, which CUDA does not allow: "
                 "start it anew (multiprocessing's method \"spawn\")"
               : search.why_not;
  }
  return nullptr;
}

const Driver& driver() {
  std::string why;
  const Driver* const found = find_driver(&why);
  if (found == nullptr) throw std::runtime_error(why);
  return *found;
}

void check_driver(CUresult result, const char* expression) {
  if (result == CUDA_SUCCESS) return;
  const char* words = nullptr;
  driver().cuGetErrorString(result, &words);
  throw std::runtime_error(std::string(expression) + ": " +
                           (words == nullptr ? "error " + std::to_string(result) : std::string(words)));
}

OutsideOfCaptures::OutsideOfCaptures() {
  CONVSWAP_CHECK_DRIVER(driver().cuThreadExchangeStreamCaptureMode(&former_));
}

OutsideOfCaptures::~OutsideOfCaptures() {
  // It worked a moment ago, so this cannot fail in a way that a destructor could report.
  static_cast<void>(driver().cuThreadExchangeStreamCaptureMode(&former_));
}

}  // namespace convswap
