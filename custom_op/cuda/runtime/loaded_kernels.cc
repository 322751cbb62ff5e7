#include "cuda/runtime/loaded_kernels.h"

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <utility>

#include "cuda/host/launch.h"
#include "cuda/runtime/driver.h"
#include "cuda/runtime/kernel_sources.h"
#include "cuda/runtime/kernel_store.h"

namespace convswap {
namespace {

// A kernel as the driver has it, for all cards of a compute capability.
struct LoadedKernel {
  std::mutex mutex;  // held while it is compiled and loaded: whoever else wants it waits
  CUlibrary library = nullptr;
  CUkernel kernel = nullptr;
  std::string variable;
  std::string error;                     // what will fail again
  std::map<int, CUfunction> of_devices;  // by their indices
};

// The one of that name, loaded or not. None is ever destroyed: launches may be under way while the process
// ends.
LoadedKernel& loaded_kernel(const std::string& instance, int compute_capability) {
  static std::mutex mutex;
  static auto& kernels = *new std::map<std::pair<std::string, int>, std::unique_ptr<LoadedKernel>>;
  const std::lock_guard<std::mutex> lock(mutex);
  std::unique_ptr<LoadedKernel>& found = kernels[{instance, compute_capability}];
  if (!found) found = std::make_unique<LoadedKernel>();
  return *found;
}

void load(LoadedKernel& loaded, const KernelCode& code) {
  CONVSWAP_CHECK_DRIVER(driver().cuLibraryLoadData(&loaded.library, code.binary.data(), nullptr, nullptr, 0,
                                                   nullptr, nullptr, 0));
  CONVSWAP_CHECK_DRIVER(driver().cuLibraryGetKernel(&loaded.kernel, loaded.library, code.symbol.c_str()));
  loaded.variable = code.variable_symbol;
}

// What host and card take a kernel's parameter to be has to be the same, to the byte.
void check_parameter(const LoadedKernel& loaded, const std::string& instance, std::size_t argument_bytes) {
  if (driver().kernel_get_parameter == nullptr) return;
  size_t offset = 0, bytes = 0;
  CONVSWAP_CHECK_DRIVER(driver().kernel_get_parameter(loaded.kernel, 0, &offset, &bytes));
  if (bytes == argument_bytes) return;
  throw std::logic_error(instance + " takes " + std::to_string(bytes) + " bytes, and is given " +
                         std::to_string(argument_bytes));
}

// Has the kernel loaded, and its function on the device found, which is the current one; the caller holds its
// mutex.
CUfunction function_on(LoadedKernel& loaded, const std::string& instance, const Device& device) {
  if (const auto found = loaded.of_devices.find(device.index); found != loaded.of_devices.end())
    return found->second;
  if (!loaded.error.empty()) throw std::runtime_error(loaded.error);
  const OutsideOfCaptures outside;
  if (loaded.kernel == nullptr) {
    const KernelRequest request = request_for(instance, device.compute_capability);
    std::optional<KernelCode> code;
    try {
      code = kernel_code(request);
    } catch (const std::runtime_error& error) {
      loaded.error = error.what();
      throw;
    }
    load(loaded, *code);
  }
  // Which has the driver load it now, and not when it is first launched: that may be while a graph is
  // captured.
  CUfunction function = nullptr;
  CONVSWAP_CHECK_DRIVER(driver().cuKernelGetFunction(&function, loaded.kernel));
  loaded.of_devices[device.index] = function;
  return function;
}

}  // namespace

KernelRequest request_for(const std::string& instance, int compute_capability) {
  const KernelFamily& family = family_of(instance);
  return {family.header, instance, family.variable, compute_capability};
}

std::string key_of(const KernelRequest& request, const Compiler& compiler) {
  std::string key =
      std::string(kKernelSourcesHash) + " NVRTC " + compiler.version_text() + ' ' + compiler.identity() + ' ';
  for (const std::string& option : compiler.options(request)) key += option + ' ';
  return key + request.header + ' ' + request.kernel;
}

KernelCode kernel_code(const KernelRequest& request) {
  std::string why;
  const Compiler* const compiler = find_compiler(&why);
  if (compiler == nullptr) throw std::runtime_error(why);
  const StoredKernel stored(key_of(request, *compiler),
                            "sm_" + std::to_string(request.compute_capability) + " " + request.kernel);
  if (std::optional<KernelCode> kept = stored.read()) return *std::move(kept);
  KernelCode code = compiler->compile(request);
  stored.write(code);
  return code;
}

const void* find_kernel(const std::string& instance, const Device& device, std::size_t argument_bytes) {
  LoadedKernel& loaded = loaded_kernel(instance, device.compute_capability);
  const std::lock_guard<std::mutex> lock(loaded.mutex);
  const DeviceGuard guard(device.index);
  const CUfunction function = function_on(loaded, instance, device);
  check_parameter(loaded, instance, argument_bytes);
  return function;
}

void* find_variable(const std::string& instance, const Device& device) {
  LoadedKernel& loaded = loaded_kernel(instance, device.compute_capability);
  const std::lock_guard<std::mutex> lock(loaded.mutex);
  const DeviceGuard guard(device.index);
  function_on(loaded, instance, device);
  CUdeviceptr address = 0;
  size_t bytes = 0;
  CONVSWAP_CHECK_DRIVER(
      driver().cuLibraryGetGlobal(&address, &bytes, loaded.library, loaded.variable.c_str()));
  return reinterpret_cast<void*>(address);
}

}  // namespace convswap
