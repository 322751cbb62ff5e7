#include "cuda/host/launch.h"

#include <atomic>
#include <stdexcept>
#include <utility>
#include <vector>

#include "cuda/runtime/driver.h"
#include "plan/device.h"

namespace convswap {
namespace {

// The context that all of a process share on a device, ONNX Runtime among them. It is kept from the first
// time on, and found again without a lock: every launch asks for it.
CUcontext context_of(int index) {
  driver();  // which tells a forked process what is wrong
  static auto& contexts = *new std::vector<std::atomic<CUcontext>>(cuda_device_count());
  std::atomic<CUcontext>& known = contexts.at(index);
  if (const CUcontext context = known; context != nullptr) return context;
  CUdevice device = 0;
  CUcontext context = nullptr;
  CONVSWAP_CHECK_DRIVER(driver().cuDeviceGet(&device, index));
  // Threads that come here at once get the same.
  CONVSWAP_CHECK_DRIVER(driver().cuDevicePrimaryCtxRetain(&context, device));
  return known = context;
}

CUfunction function_of(const void* kernel) { return static_cast<CUfunction>(const_cast<void*>(kernel)); }

int kernel_attribute(CUfunction_attribute which, const void* kernel) {
  int value = 0;
  CONVSWAP_CHECK_DRIVER(driver().cuFuncGetAttribute(&value, which, function_of(kernel)));
  return value;
}

}  // namespace

DeviceGuard::DeviceGuard(int device) {
  CUcontext former = nullptr;
  CONVSWAP_CHECK_DRIVER(driver().cuCtxGetCurrent(&former));
  const CUcontext own = context_of(device);
  if (former == own) return;
  CONVSWAP_CHECK_DRIVER(driver().cuCtxSetCurrent(own));
  former_ = former;
  changed_ = true;
}

DeviceGuard::~DeviceGuard() {
  // It was current a moment ago, so this cannot fail in a way that a destructor could report.
  if (changed_) static_cast<void>(driver().cuCtxSetCurrent(static_cast<CUcontext>(former_)));
}

void allow_shared_memory(const void* kernel, int bytes_per_block) {
  CONVSWAP_CHECK_DRIVER(driver().cuFuncSetAttribute(
      function_of(kernel), CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, bytes_per_block));
}

int resident_blocks(const Launch& launch) {
  int blocks = 0;
  CONVSWAP_CHECK_DRIVER(driver().cuOccupancyMaxActiveBlocksPerMultiprocessor(
      &blocks, function_of(launch.kernel), static_cast<int>(launch.block.count()), launch.shared_bytes));
  return blocks;
}

Start earliest_start(const void* kernel) {
  // What counts is the code: PTX for an older architecture runs on a newer card too, and does not wait.
  constexpr int kOldest = 90;
  return kernel_attribute(CU_FUNC_ATTRIBUTE_PTX_VERSION, kernel) >= kOldest ? Start::early : Start::in_turn;
}

void enqueue(const Launch& launch, void* stream, void** arguments) {
  CUlaunchAttribute early{};
  early.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  early.value.programmaticStreamSerializationAllowed = 1;
  CUlaunchConfig config{};
  config.gridDimX = launch.grid.x, config.gridDimY = launch.grid.y, config.gridDimZ = launch.grid.z;
  config.blockDimX = launch.block.x, config.blockDimY = launch.block.y, config.blockDimZ = launch.block.z;
  config.sharedMemBytes = static_cast<unsigned>(launch.shared_bytes);
  config.hStream = static_cast<CUstream>(stream);
  config.attrs = &early;
  config.numAttrs = launch.start == Start::early ? 1 : 0;
  CONVSWAP_CHECK_DRIVER(driver().cuLaunchKernelEx(&config, function_of(launch.kernel), arguments, nullptr));
}

KernelFacts kernel_facts(std::string name, const Launch& launch) {
  KernelFacts facts;
  facts.name = std::move(name);
  facts.registers = kernel_attribute(CU_FUNC_ATTRIBUTE_NUM_REGS, launch.kernel);
  facts.spilled_bytes = kernel_attribute(CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, launch.kernel);
  facts.shared_bytes = kernel_attribute(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, launch.kernel) +
                       static_cast<int64_t>(launch.shared_bytes);
  facts.threads = launch.block.count();
  facts.blocks = launch.grid.count();
  return facts;
}

}  // namespace convswap
