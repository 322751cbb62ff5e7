#pragma once

// NVIDIA's driver, opened when a card is first asked for: the library links nothing of CUDA, and loads where
// there is none of it.

#include <cuda.h>

#include <string>

namespace convswap {

// Its functions as CUDA 12.0 has them, which every driver since then knows.
#define CONVSWAP_DRIVER_FUNCTIONS(FUNCTION)             \
  FUNCTION(cuInit)                                      \
  FUNCTION(cuDriverGetVersion)                          \
  FUNCTION(cuGetErrorString)                            \
  FUNCTION(cuDeviceGetCount)                            \
  FUNCTION(cuDeviceGet)                                 \
  FUNCTION(cuDeviceGetName)                             \
  FUNCTION(cuDeviceGetAttribute)                        \
  FUNCTION(cuDevicePrimaryCtxRetain)                    \
  FUNCTION(cuCtxGetCurrent)                             \
  FUNCTION(cuCtxSetCurrent)                             \
  FUNCTION(cuCtxSynchronize)                            \
  FUNCTION(cuLibraryLoadData)                           \
  FUNCTION(cuLibraryUnload)                             \
  FUNCTION(cuLibraryGetKernel)                          \
  FUNCTION(cuLibraryGetGlobal)                          \
  FUNCTION(cuKernelGetFunction)                         \
  FUNCTION(cuFuncGetAttribute)                          \
  FUNCTION(cuFuncSetAttribute)                          \
  FUNCTION(cuOccupancyMaxActiveBlocksPerMultiprocessor) \
  FUNCTION(cuLaunchKernelEx)                            \
  FUNCTION(cuLaunchHostFunc)                            \
  FUNCTION(cuThreadExchangeStreamCaptureMode)           \
  FUNCTION(cuStreamCreate)                              \
  FUNCTION(cuStreamDestroy)                             \
  FUNCTION(cuStreamSynchronize)                         \
  FUNCTION(cuStreamIsCapturing)                         \
  FUNCTION(cuStreamWaitEvent)                           \
  FUNCTION(cuEventCreate)                               \
  FUNCTION(cuEventDestroy)                              \
  FUNCTION(cuEventRecord)                               \
  FUNCTION(cuEventSynchronize)                          \
  FUNCTION(cuEventElapsedTime)                          \
  FUNCTION(cuMemAlloc)                                  \
  FUNCTION(cuMemFree)                                   \
  FUNCTION(cuMemcpyHtoD)                                \
  FUNCTION(cuMemcpyDtoH)                                \
  FUNCTION(cuMemcpyDtoDAsync)                           \
  FUNCTION(cuMemsetD8)                                  \
  FUNCTION(cuMemsetD8Async)

struct Driver {
#define CONVSWAP_MEMBER(name) decltype(&::name) name = nullptr;
  CONVSWAP_DRIVER_FUNCTIONS(CONVSWAP_MEMBER)
#undef CONVSWAP_MEMBER

  // Of CUDA 12.4; null where the driver is older.
  CUresult (*kernel_get_parameter)(CUkernel, size_t, size_t* offset, size_t* bytes) = nullptr;

  int version = 0;  // the newest CUDA that it takes, 13000 for 13.0
};

// Null where there is no driver or no card, where the driver is older than CUDA 12, and in a process that was
// forked from one that has used it; `why`, if given, is then told in one line.
const Driver* find_driver(std::string* why = nullptr);

// Throws std::runtime_error with that line.
const Driver& driver();

// Throws std::runtime_error with the failing expression and the driver's own words.
void check_driver(CUresult result, const char* expression);

#define CONVSWAP_CHECK_DRIVER(expression) ::convswap::check_driver((expression), #expression)

// Lets the thread allocate and load while another thread captures a CUDA graph, which ONNX Runtime does such
// that neither were allowed anywhere: what is done here is no part of any graph.
class OutsideOfCaptures {
 public:
  OutsideOfCaptures();
  ~OutsideOfCaptures();
  OutsideOfCaptures(const OutsideOfCaptures&) = delete;
  OutsideOfCaptures& operator=(const OutsideOfCaptures&) = delete;

 private:
  CUstreamCaptureMode former_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

}  // namespace convswap
