#pragma once

// NVIDIA's driver API, opened when a card is first needed. The library does not link CUDA and loads without
// it.

#include <cuda.h>

#include <string>

namespace convswap {

// Driver functions of CUDA 12.0, which every newer driver has.
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
  FUNCTION(cuMemsetD8Async)                             \
  FUNCTION(cuTensorMapEncodeTiled)

struct Driver {
#define CONVSWAP_MEMBER(name) decltype(&::name) name = nullptr;
  CONVSWAP_DRIVER_FUNCTIONS(CONVSWAP_MEMBER)
#undef CONVSWAP_MEMBER

  // cuKernelGetParamInfo of CUDA 12.4; null if the driver is older.
  CUresult (*kernel_get_parameter)(CUkernel, size_t, size_t* offset, size_t* bytes) = nullptr;

  int version = 0;  // the newest CUDA that the driver supports, 13000 for 13.0
};

// Null if there is no driver or no card, if the driver is older than CUDA 12, and in a process forked from
// one that has used the driver. `why`, if given, then gets the reason in one line.
const Driver* find_driver(std::string* why = nullptr);

// The driver. Throws std::runtime_error with the reason of find_driver if there is none.
const Driver& driver();

// Throws std::runtime_error with the failing expression and the driver's error text.
void check_driver(CUresult result, const char* expression);

#define CONVSWAP_CHECK_DRIVER(expression) ::convswap::check_driver((expression), #expression)

// Sets this thread's capture mode to relaxed, so that the thread may allocate and load modules while another
// thread captures a CUDA graph. ONNX Runtime captures in a mode that forbids both in all threads. The calls
// made here are not part of any graph.
class RelaxedCaptureMode {
 public:
  RelaxedCaptureMode();
  ~RelaxedCaptureMode();
  RelaxedCaptureMode(const RelaxedCaptureMode&) = delete;
  RelaxedCaptureMode& operator=(const RelaxedCaptureMode&) = delete;

 private:
  CUstreamCaptureMode previous_mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

}  // namespace convswap
