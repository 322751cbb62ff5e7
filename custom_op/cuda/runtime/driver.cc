#include "cuda/runtime/driver.h"

#include <pthread.h>

#include <atomic>
#include <stdexcept>

#include "cuda/runtime/shared_library.h"

namespace convswap {
namespace {

constexpr int kMinVersion = 12000;

struct DriverSearchResult {
  Driver driver;
  bool is_found = false;
  std::string why_not;
};

// True in a process that was forked from the one that initialised the driver.
std::atomic<bool> is_forked{false};

// cuGetProcAddress_v2 of CUDA 12.0, independent of the version of the headers.
using GetProcAddress = CUresult (*)(const char* name, void** function, int version, cuuint64_t flags,
                                    CUdriverProcAddressQueryResult* found);

DriverSearchResult search_for_driver() {
  DriverSearchResult search;
  const SharedLibrary library = SharedLibrary::open("libcuda.so.1");
  if (!library.is_open()) {
    search.why_not =
        "there is no NVIDIA driver for CUDA 12 or newer: libcuda.so.1 cannot be loaded: " + library.error();
    return search;
  }
  const auto get = reinterpret_cast<GetProcAddress>(library.find("cuGetProcAddress_v2"));
  const auto too_old = [&](const char* missing) {
    search.why_not = std::string("the NVIDIA driver is older than CUDA 12 (it has no ") + missing +
                     "); install a newer one";
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
#define CONVSWAP_FIND(name)                                                        \
  driver.name = reinterpret_cast<decltype(driver.name)>(find(#name, kMinVersion)); \
  if (driver.name == nullptr) return too_old(#name);
  CONVSWAP_DRIVER_FUNCTIONS(CONVSWAP_FIND)
#undef CONVSWAP_FIND
  driver.kernel_get_parameter =
      reinterpret_cast<decltype(driver.kernel_get_parameter)>(find("cuKernelGetParamInfo", 12040));
  int cards = 0;
  if (const CUresult failed = driver.cuInit(0); failed != CUDA_SUCCESS) {
    const char* text = nullptr;
    driver.cuGetErrorString(failed, &text);
    search.why_not =
        std::string("the NVIDIA driver does not start: ") + (text == nullptr ? "no reason given" : text);
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
  static const DriverSearchResult& search = *new DriverSearchResult(search_for_driver());
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
  const char* text = nullptr;
  driver().cuGetErrorString(result, &text);
  throw std::runtime_error(std::string(expression) + ": " +
                           (text == nullptr ? "error " + std::to_string(result) : std::string(text)));
}

RelaxedCaptureMode::RelaxedCaptureMode() {
  CONVSWAP_CHECK_DRIVER(driver().cuThreadExchangeStreamCaptureMode(&previous_mode_));
}

RelaxedCaptureMode::~RelaxedCaptureMode() {
  // The exchange succeeded in the constructor, so a failure here is not expected, and a destructor could not
  // report it.
  static_cast<void>(driver().cuThreadExchangeStreamCaptureMode(&previous_mode_));
}

}  // namespace convswap
