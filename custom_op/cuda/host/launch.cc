#include "cuda/host/launch.h"

#include <atomic>
#include <utility>
#include <vector>

#include "cuda/runtime/driver.h"
#include "plan/device.h"

namespace convswap {
namespace {

// The device's primary context, which the process shares with ONNX Runtime. It is retained once and then
// found without a lock, since every launch needs it.
CUcontext context_of(int index) {
  driver();  // throws if the process was forked
  static auto& contexts = *new std::vector<std::atomic<CUcontext>>(cuda_device_count());
  std::atomic<CUcontext>& cached = contexts.at(index);
  if (const CUcontext context = cached; context != nullptr) return context;
  CUdevice device = 0;
  CUcontext context = nullptr;
  CONVSWAP_CHECK_DRIVER(driver().cuDeviceGet(&device, index));
  // Concurrent first calls retain the same context.
  CONVSWAP_CHECK_DRIVER(driver().cuDevicePrimaryCtxRetain(&context, device));
  return cached = context;
}

CUfunction function_of(const void* kernel) { return static_cast<CUfunction>(const_cast<void*>(kernel)); }

int kernel_attribute(CUfunction_attribute attribute, const void* kernel) {
  int value = 0;
  CONVSWAP_CHECK_DRIVER(driver().cuFuncGetAttribute(&value, attribute, function_of(kernel)));
  return value;
}

}  // namespace

DeviceGuard::DeviceGuard(int device) {
  CUcontext previous = nullptr;
  CONVSWAP_CHECK_DRIVER(driver().cuCtxGetCurrent(&previous));
  const CUcontext wanted = context_of(device);
  if (previous == wanted) return;
  CONVSWAP_CHECK_DRIVER(driver().cuCtxSetCurrent(wanted));
  previous_ = previous;
  changed_ = true;
}

DeviceGuard::~DeviceGuard() {
  // The context was current before, so a failure here is not expected, and a destructor could not report it.
  if (changed_) static_cast<void>(driver().cuCtxSetCurrent(static_cast<CUcontext>(previous_)));
}

void allow_shared_memory(const void* kernel, int bytes_per_block) {
  CONVSWAP_CHECK_DRIVER(driver().cuFuncSetAttribute(
      function_of(kernel), CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, bytes_per_block));
}

int resident_blocks(const Launch& launch) {
  int blocks = 0;
  CONVSWAP_CHECK_DRIVER(driver().cuOccupancyMaxActiveBlocksPerMultiprocessor(
      &blocks, function_of(launch.kernel), static_cast<int>(launch.block.total()), launch.shared_bytes));
  return blocks;
}

Start earliest_start(const void* kernel) {
  // The code's architecture counts: PTX for an older architecture runs on a newer card too, but does not wait
  // (griddepcontrol_wait is empty there).
  constexpr int kOldest = 90;
  return kernel_attribute(CU_FUNC_ATTRIBUTE_PTX_VERSION, kernel) >= kOldest ? Start::early : Start::in_turn;
}

void enqueue(const Launch& launch, void* stream, void** arguments) {
  CUlaunchAttribute attributes[2] = {};
  unsigned count = 0;
  if (launch.start == Start::early) {
    CUlaunchAttribute& early = attributes[count++];
    early.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    early.value.programmaticStreamSerializationAllowed = 1;
  }
  if (launch.cluster_blocks > 1) {
    CUlaunchAttribute& cluster = attributes[count++];
    cluster.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    cluster.value.clusterDim.x = launch.cluster_blocks;
    cluster.value.clusterDim.y = cluster.value.clusterDim.z = 1;
  }
  CUlaunchConfig config{};
  config.gridDimX = launch.grid.x, config.gridDimY = launch.grid.y, config.gridDimZ = launch.grid.z;
  config.blockDimX = launch.block.x, config.blockDimY = launch.block.y, config.blockDimZ = launch.block.z;
  config.sharedMemBytes = static_cast<unsigned>(launch.shared_bytes);
  config.hStream = static_cast<CUstream>(stream);
  config.attrs = attributes;
  config.numAttrs = count;
  CONVSWAP_CHECK_DRIVER(driver().cuLaunchKernelEx(&config, function_of(launch.kernel), arguments, nullptr));
}

KernelFacts kernel_facts(std::string name, const Launch& launch) {
  KernelFacts facts;
  facts.name = std::move(name);
  facts.registers = kernel_attribute(CU_FUNC_ATTRIBUTE_NUM_REGS, launch.kernel);
  facts.spilled_bytes = kernel_attribute(CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, launch.kernel);
  facts.shared_bytes = kernel_attribute(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, launch.kernel) +
                       static_cast<int64_t>(launch.shared_bytes);
  facts.threads = launch.block.total();
  facts.blocks = launch.grid.total();
  return facts;
}

}  // namespace convswap
