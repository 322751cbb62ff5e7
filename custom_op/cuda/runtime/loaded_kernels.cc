#include "cuda/runtime/loaded_kernels.h"

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "cuda/host/launch.h"
#include "cuda/runtime/driver.h"
#include "cuda/runtime/kernel_origin.h"
#include "cuda/runtime/kernel_sources.h"
#include "cuda/runtime/kernel_store.h"
#include "plan/algorithm.h"

namespace convswap {
namespace {

// A kernel loaded into the driver, for all cards of one compute capability.
struct LoadedKernel {
  std::mutex mutex;  // held while the kernel is compiled and loaded; others wait
  CUlibrary library = nullptr;
  CUkernel kernel = nullptr;
  std::string variable;
  std::string error;                    // the compiler's message
  std::map<int, CUfunction> functions;  // by device index
};

// The entry for an instance, and for a user's `program` if there is one; created if necessary. Entries are
// never destroyed: kernels may still be launched while the process ends.
LoadedKernel& loaded_kernel(const std::string& instance, int compute_capability,
                            const std::string& program = {}) {
  static std::mutex mutex;
  static auto& kernels =
      *new std::map<std::tuple<std::string, std::string, int>, std::unique_ptr<LoadedKernel>>;
  const std::lock_guard<std::mutex> lock(mutex);
  std::unique_ptr<LoadedKernel>& found = kernels[{instance, program, compute_capability}];
  if (!found) found = std::make_unique<LoadedKernel>();
  return *found;
}

// The kernel in the session's pack or the ready-made pack; null if neither has it.
const KernelCode* packed_kernel(const KernelRequest& request, const KernelOrigin* origin) {
  // Packs may have a cubin, which only cards of its own generation run.
  if (request.is_portable) return nullptr;
  for (const Pack* pack : {origin == nullptr ? nullptr : origin->pack.get(), ready_made_kernels()}) {
    if (pack == nullptr) continue;
    if (const KernelCode* code = pack->find(request.kernel, request.compute_capability)) return code;
  }
  return nullptr;
}

// Throws std::runtime_error if the session forbids compilation.
void check_may_compile(const KernelRequest& request, const KernelOrigin* origin) {
  if (origin == nullptr || origin->compiles) return;
  const std::string capability =
      std::to_string(request.compute_capability / 10) + "." + std::to_string(request.compute_capability % 10);
  const std::string missing = origin->pack == nullptr
                                  ? "it has no pack (convswap.pack) with "
                                  : "its pack '" + origin->pack->path() + "' does not have ";
  throw std::runtime_error("the session compiles nothing (convswap.compile=never), and " + missing +
                           request.kernel + " for compute capability " + capability +
                           ": make one with convswap warm MODEL --compute-capability " + capability +
                           " -o FILE.pack");
}

// False while another thread compiles or loads the kernel.
bool is_loaded(const std::string& instance, const Device& device) {
  LoadedKernel& loaded = loaded_kernel(instance, device.compute_capability);
  const std::unique_lock<std::mutex> lock(loaded.mutex, std::try_to_lock);
  return lock && loaded.kernel != nullptr;
}

void load(LoadedKernel& loaded, const KernelCode& code) {
  CUlibrary library = nullptr;
  CUkernel kernel = nullptr;
  CONVSWAP_CHECK_DRIVER(
      driver().cuLibraryLoadData(&library, code.binary.data(), nullptr, nullptr, 0, nullptr, nullptr, 0));
  if (const CUresult failed = driver().cuLibraryGetKernel(&kernel, library, code.symbol.c_str());
      failed != CUDA_SUCCESS) {
    static_cast<void>(driver().cuLibraryUnload(library));
    check_driver(failed, "cuLibraryGetKernel");
  }
  loaded.library = library, loaded.kernel = kernel, loaded.variable = code.variable_symbol;
}

// Tries to load the code. A driver refuses code of a newer compiler than it knows, for example from a pack.
bool try_load(LoadedKernel& loaded, const KernelCode& code) {
  try {
    load(loaded, code);
    return true;
  } catch (const std::runtime_error&) {
    return false;
  }
}

// Checks that host and device agree on the size of the kernel's parameter.
void check_parameter(const LoadedKernel& loaded, const std::string& instance, std::size_t argument_bytes) {
  if (driver().kernel_get_parameter == nullptr) return;
  size_t offset = 0, bytes = 0;
  CONVSWAP_CHECK_DRIVER(driver().kernel_get_parameter(loaded.kernel, 0, &offset, &bytes));
  if (bytes == argument_bytes) return;
  throw std::logic_error(instance + " takes " + std::to_string(bytes) + " bytes, and is given " +
                         std::to_string(argument_bytes));
}

// The readable part of the file's name in the store.
std::string store_name(const KernelRequest& request) {
  const std::string kind = request.is_portable ? "compute_" : "sm_";
  return kind + std::to_string(request.compute_capability) + " " + request.kernel;
}

// Compiles at most once: a failed compilation would fail again, so its error is kept.
KernelCode compile_once(LoadedKernel& loaded, const KernelRequest& request) {
  if (!loaded.error.empty()) throw std::runtime_error(loaded.error);
  try {
    return compiled_kernel(request);
  } catch (const std::runtime_error& error) {
    loaded.error = error.what();
    throw;
  }
}

// Loads the kernel if necessary and returns its function for the device, which must be current. The caller
// holds `loaded.mutex`.
CUfunction function_for(LoadedKernel& loaded, const KernelRequest& request, const Device& device) {
  if (const auto found = loaded.functions.find(device.index); found != loaded.functions.end())
    return found->second;
  const RelaxedCaptureMode relaxed;
  if (loaded.kernel == nullptr) {
    const KernelCode* const code = packed_kernel(request, device.kernels);
    const bool may_compile = device.kernels == nullptr || device.kernels->compiles;
    if (code != nullptr && !may_compile) {
      load(loaded, *code);
    } else if (code == nullptr || !try_load(loaded, *code)) {
      check_may_compile(request, device.kernels);
      load(loaded, compile_once(loaded, request));
    }
  }
  // Makes the driver load the function now instead of at the first launch, which may happen during graph
  // capture.
  CUfunction function = nullptr;
  CONVSWAP_CHECK_DRIVER(driver().cuKernelGetFunction(&function, loaded.kernel));
  loaded.functions[device.index] = function;
  return function;
}

}  // namespace

KernelRequest request_for(const std::string& instance, int compute_capability) {
  const KernelFamily& family = family_of(instance);
  return {family.header, instance, family.variable, compute_capability};
}

KernelRequest request_for(const std::string& instance, const Device& device) {
  KernelRequest request = request_for(instance, device.compute_capability);
  request.is_portable = device.is_restricted;
  return request;
}

std::string key_of(const KernelRequest& request, const Compiler& compiler) {
  std::string key =
      std::string(kKernelSourcesHash) + " NVRTC " + compiler.version_text() + ' ' + compiler.identity() + ' ';
  for (const std::string& option : compiler.options(request)) key += option + ' ';
  key += request.header + ' ' + request.kernel;
  std::string program = request.program;
  std::ranges::replace(program, '\n', '\1');
  return program.empty() ? key : key + ' ' + program;
}

KernelCode compiled_kernel(const KernelRequest& request) {
  std::string why;
  const Compiler* const compiler = find_compiler(&why);
  if (compiler == nullptr) throw std::runtime_error(why);
  StoredKernel stored(key_of(request, *compiler), store_name(request));
  if (std::optional<KernelCode> code = stored.read()) return *std::move(code);
  KernelCode code = compiler->compile(request);
  stored.write(code);
  return code;
}

std::string why_no_kernels(const Device& device, const Offer& offer) {
  // If the session forbids compilation, its plans do not fall back to a slower algorithm. They fail with an
  // error that names the kernel that the pack lacks.
  if (device.kernels != nullptr && !device.kernels->compiles) return {};
  std::string why;
  if (find_compiler(&why) != nullptr) return {};
  const bool has_pack = device.kernels != nullptr && device.kernels->pack != nullptr;
  if (!has_pack && ready_made_kernels() == nullptr) return {};
  for (const std::string& instance : offer.kernels()) {
    const KernelRequest request = request_for(instance, device);
    if (is_loaded(instance, device) || packed_kernel(request, device.kernels) != nullptr) continue;
    return "its kernel " + instance + " is not among the ready-made kernels, and " + why;
  }
  return {};
}

std::string compilation_notice(const Device& device, const Offer& offer) {
  if (offer.kernels == nullptr || (device.kernels != nullptr && !device.kernels->compiles)) return {};
  const Compiler* const compiler = find_compiler();
  if (compiler == nullptr) return {};
  std::string names;
  for (const std::string& instance : offer.kernels()) {
    const KernelRequest request = request_for(instance, device);
    if (is_loaded(instance, device) || packed_kernel(request, device.kernels) != nullptr) continue;
    if (!StoredKernel::exists(key_of(request, *compiler), store_name(request))) {
      names += (names.empty() ? "" : " and ") + instance;
    }
  }
  if (names.empty()) return {};
  const KernelStoreFacts store = kernel_store_facts();
  return "kernels are compiled for " + device.name + " by NVRTC " + compiler->version_text() +
         ", which takes seconds the first time, now " + names + "; " +
         (store.unused.empty() ? "they are kept in " + store.folder : "they are not kept: " + store.unused);
}

const void* find_kernel(const KernelRequest& request, const Device& device, std::size_t argument_bytes) {
  const DeviceGuard guard(device.index);  // first, since it throws in a forked process
  LoadedKernel& loaded = loaded_kernel(request.kernel, device.compute_capability, request.program);
  const std::lock_guard<std::mutex> lock(loaded.mutex);
  const CUfunction function = function_for(loaded, request, device);
  check_parameter(loaded, request.kernel, argument_bytes);
  return function;
}

const void* find_kernel(const std::string& instance, const Device& device, std::size_t argument_bytes) {
  return find_kernel(request_for(instance, device), device, argument_bytes);
}

void* find_variable(const std::string& instance, const Device& device) {
  const DeviceGuard guard(device.index);
  LoadedKernel& loaded = loaded_kernel(instance, device.compute_capability);
  const std::lock_guard<std::mutex> lock(loaded.mutex);
  const RelaxedCaptureMode relaxed;
  function_for(loaded, request_for(instance, device), device);
  CUdeviceptr address = 0;
  size_t bytes = 0;
  CONVSWAP_CHECK_DRIVER(
      driver().cuLibraryGetGlobal(&address, &bytes, loaded.library, loaded.variable.c_str()));
  return reinterpret_cast<void*>(address);
}

}  // namespace convswap
