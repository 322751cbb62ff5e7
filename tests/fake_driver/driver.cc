// A stand-in for the CUDA driver (libcuda.so.1), with the functions that the library calls. It lets tests run
// the host code of the library without a card. Memory is host memory. Kernels are loaded and launched but
// compute nothing. Misuse returns the real driver's error: a call without a context, a launch on another
// device than the function's, a double free. Environment variables, with defaults:
//
//   FAKE_CARDS            number of cards (1)
//   FAKE_CAPABILITY       compute capability of each card (90 for 9.0)
//   FAKE_DRIVER_VERSION   13000 for CUDA 13.0 (13000)
//   FAKE_MULTIPROCESSORS  multiprocessors of a card (132)
//   FAKE_REFUSES          number of loads that fail first, as if a newer compiler had made the code (0)
//   FAKE_PARAMETER_BYTES  size of kernel parameters (unset: no such function, as in drivers of CUDA 12.0)
//   FAKE_LOG              file that gets a line for each context, loaded kernel, launch and allocation (none)

#include <cuda.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>

namespace {

int number(const char* variable, int otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoi(text);
}

void log(const std::string& line) {
  const char* path = std::getenv("FAKE_LOG");
  if (path == nullptr) return;
  if (std::FILE* file = std::fopen(path, "a")) {
    std::fprintf(file, "%s\n", line.c_str());
    std::fclose(file);
  }
}

struct Context {
  int device;
};
struct Library {
  std::string kernel;
};
struct Function {
  std::string kernel;
  int device;
};

std::mutex mutex;
bool is_started = false;
Context contexts[8] = {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}};
std::set<CUdeviceptr> allocations;
thread_local Context* current = nullptr;
thread_local CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

int cards() { return number("FAKE_CARDS", 1); }

#define NEEDS_START \
  if (!is_started) return CUDA_ERROR_NOT_INITIALIZED;
#define NEEDS_CONTEXT \
  NEEDS_START         \
  if (current == nullptr) return CUDA_ERROR_INVALID_CONTEXT;

// Stand-in for functions that only need a context.
template <typename... Arguments>
CUresult does_nothing(Arguments...) {
  NEEDS_CONTEXT
  return CUDA_SUCCESS;
}

CUresult init(unsigned) {
  is_started = true;
  return cards() == 0 ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS;
}
CUresult driver_version(int* version) {
  *version = number("FAKE_DRIVER_VERSION", 13000);
  return CUDA_SUCCESS;
}
CUresult error_string(CUresult error, const char** words) {
  *words = error == CUDA_ERROR_INVALID_CONTEXT ? "invalid device context" : "an error of the fake driver";
  return CUDA_SUCCESS;
}
CUresult device_count(int* count) {
  NEEDS_START
  *count = cards();
  return CUDA_SUCCESS;
}
CUresult device_get(CUdevice* device, int index) {
  NEEDS_START
  if (index < 0 || index >= cards()) return CUDA_ERROR_INVALID_DEVICE;
  *device = index;
  return CUDA_SUCCESS;
}
CUresult device_name(char* name, int bytes, CUdevice device) {
  NEEDS_START
  std::snprintf(name, static_cast<size_t>(bytes), "Fake card %d", device);
  return CUDA_SUCCESS;
}
CUresult device_attribute(int* value, CUdevice_attribute which, CUdevice) {
  NEEDS_START
  const int capability = number("FAKE_CAPABILITY", 90);
  static const std::map<int, int> values = {
      {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, number("FAKE_MULTIPROCESSORS", 132)},
      {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 232448},
      {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 233472},
      {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 50 << 20},
  };
  const auto found = values.find(which);
  *value = which == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR   ? capability / 10
           : which == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR ? capability % 10
           : found == values.end()                                 ? 0
                                                                   : found->second;
  return CUDA_SUCCESS;
}
CUresult retain(CUcontext* context, CUdevice device) {
  NEEDS_START
  *context = reinterpret_cast<CUcontext>(&contexts[device]);
  log("context on " + std::to_string(device));
  return CUDA_SUCCESS;
}
CUresult get_current(CUcontext* context) {
  NEEDS_START
  *context = reinterpret_cast<CUcontext>(current);
  return CUDA_SUCCESS;
}
CUresult set_current(CUcontext context) {
  NEEDS_START
  current = reinterpret_cast<Context*>(context);
  return CUDA_SUCCESS;
}

CUresult load(CUlibrary* library, const void* code, CUjit_option*, void**, unsigned, CUlibraryOption*, void**,
              unsigned) {
  NEEDS_CONTEXT
  if (std::memcmp(code,
                  "\x7f"
                  "ELF",
                  4) != 0 &&
      std::strstr(static_cast<const char*>(code), ".version") == nullptr) {
    return CUDA_ERROR_INVALID_IMAGE;
  }
  if (capture_mode != CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  static int refused = 0;
  if (refused < number("FAKE_REFUSES", 0)) {
    ++refused;
    return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
  }
  *library = reinterpret_cast<CUlibrary>(new Library{});
  return CUDA_SUCCESS;
}
CUresult unload(CUlibrary library) {
  NEEDS_CONTEXT
  delete reinterpret_cast<Library*>(library);
  return CUDA_SUCCESS;
}
CUresult library_kernel(CUkernel* kernel, CUlibrary library, const char* name) {
  NEEDS_CONTEXT
  reinterpret_cast<Library*>(library)->kernel = name;
  *kernel = reinterpret_cast<CUkernel>(library);
  log(std::string("load ") + name);
  return CUDA_SUCCESS;
}
CUresult library_global(CUdeviceptr* address, size_t* bytes, CUlibrary, const char*) {
  NEEDS_CONTEXT
  static char constants[1 << 16];
  *address = reinterpret_cast<CUdeviceptr>(constants);
  *bytes = sizeof constants;
  return CUDA_SUCCESS;
}
CUresult kernel_function(CUfunction* function, CUkernel kernel) {
  NEEDS_CONTEXT
  *function =
      reinterpret_cast<CUfunction>(new Function{reinterpret_cast<Library*>(kernel)->kernel, current->device});
  return CUDA_SUCCESS;
}
// The size is $FAKE_PARAMETER_BYTES, because the stand-in does not read the code.
CUresult kernel_parameter(CUkernel, size_t, size_t* offset, size_t* bytes) {
  NEEDS_CONTEXT
  *offset = 0;
  *bytes = static_cast<size_t>(number("FAKE_PARAMETER_BYTES", 0));
  return CUDA_SUCCESS;
}
CUresult function_attribute(int* value, CUfunction_attribute which, CUfunction) {
  NEEDS_CONTEXT
  *value = which == CU_FUNC_ATTRIBUTE_PTX_VERSION ? number("FAKE_CAPABILITY", 90) : 32;
  return CUDA_SUCCESS;
}
CUresult occupancy(int* blocks, CUfunction, int, size_t) {
  NEEDS_CONTEXT
  *blocks = 1;
  return CUDA_SUCCESS;
}
CUresult launch(const CUlaunchConfig*, CUfunction function, void**, void**) {
  NEEDS_CONTEXT
  const Function& launched = *reinterpret_cast<Function*>(function);
  if (launched.device != current->device) return CUDA_ERROR_INVALID_HANDLE;
  log("launch " + launched.kernel + " on " + std::to_string(launched.device));
  return CUDA_SUCCESS;
}
CUresult launch_host(CUstream, CUhostFn function, void* data) {
  NEEDS_CONTEXT
  log("host function");
  function(data);
  return CUDA_SUCCESS;
}
CUresult exchange_capture_mode(CUstreamCaptureMode* mode) {
  NEEDS_CONTEXT
  const CUstreamCaptureMode former = capture_mode;
  capture_mode = *mode;
  *mode = former;
  return CUDA_SUCCESS;
}
CUresult is_capturing(CUstream, CUstreamCaptureStatus* status) {
  NEEDS_CONTEXT
  *status = CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}
CUresult stream_create(CUstream* stream, unsigned) {
  NEEDS_CONTEXT
  *stream = reinterpret_cast<CUstream>(new int);
  return CUDA_SUCCESS;
}
CUresult stream_destroy(CUstream stream) {
  NEEDS_CONTEXT
  delete reinterpret_cast<int*>(stream);
  return CUDA_SUCCESS;
}
CUresult event_create(CUevent* event, unsigned) {
  NEEDS_CONTEXT
  *event = reinterpret_cast<CUevent>(new int);
  return CUDA_SUCCESS;
}
CUresult event_destroy(CUevent event) {
  NEEDS_CONTEXT
  delete reinterpret_cast<int*>(event);
  return CUDA_SUCCESS;
}
CUresult event_elapsed(float* milliseconds, CUevent, CUevent) {
  NEEDS_CONTEXT
  *milliseconds = 1;
  return CUDA_SUCCESS;
}
CUresult allocate(CUdeviceptr* address, size_t bytes) {
  NEEDS_CONTEXT
  *address = reinterpret_cast<CUdeviceptr>(std::malloc(bytes));
  log("allocate " + std::to_string(bytes));
  const std::lock_guard<std::mutex> lock(mutex);
  allocations.insert(*address);
  return CUDA_SUCCESS;
}
CUresult release(CUdeviceptr address) {
  NEEDS_CONTEXT
  const std::lock_guard<std::mutex> lock(mutex);
  if (allocations.erase(address) == 0) return CUDA_ERROR_INVALID_VALUE;
  std::free(reinterpret_cast<void*>(address));
  return CUDA_SUCCESS;
}
CUresult copy_to(CUdeviceptr to, const void* from, size_t bytes) {
  NEEDS_CONTEXT
  std::memcpy(reinterpret_cast<void*>(to), from, bytes);
  return CUDA_SUCCESS;
}
CUresult copy_from(void* to, CUdeviceptr from, size_t bytes) {
  NEEDS_CONTEXT
  std::memcpy(to, reinterpret_cast<void*>(from), bytes);
  return CUDA_SUCCESS;
}
CUresult fill(CUdeviceptr to, unsigned char byte, size_t bytes) {
  NEEDS_CONTEXT
  std::memset(reinterpret_cast<void*>(to), byte, bytes);
  return CUDA_SUCCESS;
}
CUresult fill_on(CUdeviceptr to, unsigned char byte, size_t bytes, CUstream) { return fill(to, byte, bytes); }

const std::map<std::string, void*>& functions() {
  static const auto& all = *new std::map<std::string, void*>{
      {"cuInit", reinterpret_cast<void*>(init)},
      {"cuDriverGetVersion", reinterpret_cast<void*>(driver_version)},
      {"cuGetErrorString", reinterpret_cast<void*>(error_string)},
      {"cuDeviceGetCount", reinterpret_cast<void*>(device_count)},
      {"cuDeviceGet", reinterpret_cast<void*>(device_get)},
      {"cuDeviceGetName", reinterpret_cast<void*>(device_name)},
      {"cuDeviceGetAttribute", reinterpret_cast<void*>(device_attribute)},
      {"cuDevicePrimaryCtxRetain", reinterpret_cast<void*>(retain)},
      {"cuCtxGetCurrent", reinterpret_cast<void*>(get_current)},
      {"cuCtxSetCurrent", reinterpret_cast<void*>(set_current)},
      {"cuCtxSynchronize", reinterpret_cast<void*>(does_nothing<>)},
      {"cuLibraryLoadData", reinterpret_cast<void*>(load)},
      {"cuLibraryUnload", reinterpret_cast<void*>(unload)},
      {"cuLibraryGetKernel", reinterpret_cast<void*>(library_kernel)},
      {"cuLibraryGetGlobal", reinterpret_cast<void*>(library_global)},
      {"cuKernelGetFunction", reinterpret_cast<void*>(kernel_function)},
      {"cuKernelGetParamInfo", reinterpret_cast<void*>(kernel_parameter)},
      {"cuFuncGetAttribute", reinterpret_cast<void*>(function_attribute)},
      {"cuFuncSetAttribute", reinterpret_cast<void*>(does_nothing<CUfunction, CUfunction_attribute, int>)},
      {"cuOccupancyMaxActiveBlocksPerMultiprocessor", reinterpret_cast<void*>(occupancy)},
      {"cuLaunchKernelEx", reinterpret_cast<void*>(launch)},
      {"cuLaunchHostFunc", reinterpret_cast<void*>(launch_host)},
      {"cuThreadExchangeStreamCaptureMode", reinterpret_cast<void*>(exchange_capture_mode)},
      {"cuStreamIsCapturing", reinterpret_cast<void*>(is_capturing)},
      {"cuStreamCreate", reinterpret_cast<void*>(stream_create)},
      {"cuStreamDestroy", reinterpret_cast<void*>(stream_destroy)},
      {"cuStreamSynchronize", reinterpret_cast<void*>(does_nothing<CUstream>)},
      {"cuStreamWaitEvent", reinterpret_cast<void*>(does_nothing<CUstream, CUevent, unsigned>)},
      {"cuEventCreate", reinterpret_cast<void*>(event_create)},
      {"cuEventDestroy", reinterpret_cast<void*>(event_destroy)},
      {"cuEventRecord", reinterpret_cast<void*>(does_nothing<CUevent, CUstream>)},
      {"cuEventSynchronize", reinterpret_cast<void*>(does_nothing<CUevent>)},
      {"cuEventElapsedTime", reinterpret_cast<void*>(event_elapsed)},
      {"cuMemAlloc", reinterpret_cast<void*>(allocate)},
      {"cuMemFree", reinterpret_cast<void*>(release)},
      {"cuMemcpyHtoD", reinterpret_cast<void*>(copy_to)},
      {"cuMemcpyDtoH", reinterpret_cast<void*>(copy_from)},
      {"cuMemcpyDtoDAsync",
       reinterpret_cast<void*>(does_nothing<CUdeviceptr, CUdeviceptr, size_t, CUstream>)},
      {"cuMemsetD8", reinterpret_cast<void*>(fill)},
      {"cuMemsetD8Async", reinterpret_cast<void*>(fill_on)},
      {"cuTensorMapEncodeTiled",
       reinterpret_cast<void*>(
           does_nothing<CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                        const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                        CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill>)},
  };
  return all;
}

// Logs the number of leaked allocations at the end of the process.
struct LeakReport {
  ~LeakReport() {
    if (!allocations.empty()) log("left " + std::to_string(allocations.size()) + " allocations");
  }
} leak_report;

}  // namespace

extern "C" CUresult cuGetProcAddress_v2(const char* name, void** function, int, cuuint64_t,
                                        CUdriverProcAddressQueryResult*) {
  const bool is_missing =
      std::strcmp(name, "cuKernelGetParamInfo") == 0 && std::getenv("FAKE_PARAMETER_BYTES") == nullptr;
  const auto found = is_missing ? functions().end() : functions().find(name);
  *function = found == functions().end() ? nullptr : found->second;
  return *function == nullptr ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}
