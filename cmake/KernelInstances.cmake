# Makes the source files of the kernel instances, whose list is `kernel_instances`: one for each family of kernels
# and each format of the data, so that all cores compile. A family's instances.cuh lists what is in each.

set(tensor_core_formats ScaledFloat16Pairs TwoScaledFloat16 Float16Pairs Bfloat16Pairs)
set(kernel_instances)

function(add_kernel_instances family)
  foreach(format IN LISTS ARGN)
    set(source "${CMAKE_CURRENT_BINARY_DIR}/kernel_instances/${family}_${format}.cu")
    file(CONFIGURE OUTPUT "${source}" @ONLY CONTENT [[
// Made by KernelInstances.cmake.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include "cuda/@family@/instances.cuh"

static const convswap::CompiledKernels kernels([] {
  using namespace convswap;
  return @family@::kernels_for<@format@>("@format@");
}());
]])
    list(APPEND kernel_instances "${source}")
  endforeach()
  set(kernel_instances "${kernel_instances}" PARENT_SCOPE)
endfunction()

add_kernel_instances(few_channels ${tensor_core_formats})
add_kernel_instances(toeplitz ${tensor_core_formats})
add_kernel_instances(implicit_gemm ${tensor_core_formats})
add_kernel_instances(tiled float __half __nv_bfloat16)
add_kernel_instances(naive float double __half __nv_bfloat16)
add_kernel_instances(epilogue float double __half __nv_bfloat16)
