# Compiles the kernel instances: an object library for each family of kernels, whose names are kernel_libraries,
# with a source file for each format of the data, so that all cores compile. A family's instances.cuh lists what
# is in each. Every family is compiled for the architectures for which it has code and for no other; what has
# none in a build is not there, and the library says so (cuda/host/limits.h).

set(kernel_libraries)
set(tensor_core_formats ScaledFloat16Pairs TwoScaledFloat16 Float16Pairs Bfloat16Pairs)
set(any_architecture ".")
set(from_ampere_on "^([89]|[1-9][0-9])[0-9]")  # compute capability 8.0
set(hopper_alone "^90a-real$")

# `architectures`: a regular expression of those that there is code for; then the sources.
function(add_kernel_library family architectures)
  set(own ${CMAKE_CUDA_ARCHITECTURES})
  list(FILTER own INCLUDE REGEX "${architectures}")
  if(NOT own)
    return()
  endif()
  add_library(kernels_${family} OBJECT ${ARGN})
  target_include_directories(kernels_${family} PRIVATE custom_op)
  # One file holds a kernel's many instances; every core takes some of them.
  target_compile_options(kernels_${family} PRIVATE -split-compile=0)
  set_target_properties(kernels_${family} PROPERTIES CUDA_ARCHITECTURES "${own}" CUDA_STANDARD 20
    CUDA_STANDARD_REQUIRED ON)
  set(kernel_libraries ${kernel_libraries} kernels_${family} PARENT_SCOPE)
endfunction()

# Makes a source file that has `kernels`, C++ for a list of them, of `header`.
function(write_kernel_source source header kernels)
  file(CONFIGURE OUTPUT "${source}" @ONLY CONTENT [[
// Made by KernelInstances.cmake.
#include "cuda/host/compiled_kernels.h"
#include "cuda/@header@"

namespace convswap {
static const CompiledKernels kernels(@kernels@);
}
]])
endfunction()

function(add_kernel_family family architectures)
  foreach(format IN LISTS ARGN)
    set(source "${CMAKE_CURRENT_BINARY_DIR}/kernel_instances/${family}_${format}.cu")
    write_kernel_source("${source}" ${family}/instances.cuh "${family}::kernels_for<${format}>(\"${format}\")")
    list(APPEND sources "${source}")
  endforeach()
  add_kernel_library(${family} "${architectures}" ${sources})
  set(kernel_libraries ${kernel_libraries} PARENT_SCOPE)
endfunction()

add_kernel_family(few_channels "${from_ampere_on}" ${tensor_core_formats})
add_kernel_family(toeplitz "${hopper_alone}" ${tensor_core_formats})
add_kernel_family(implicit_gemm "${hopper_alone}" ${tensor_core_formats})
add_kernel_family(tiled "${any_architecture}" float Float16 BFloat16)
add_kernel_family(naive "${any_architecture}" float double Float16 BFloat16)
add_kernel_family(epilogue "${any_architecture}" float double Float16 BFloat16)

# The one rung of the ladder that not every architecture has code for.
set(rung "${CMAKE_CURRENT_BINARY_DIR}/kernel_instances/ladder_14_tensor_cores.cu")
write_kernel_source("${rung}" ladder/14_tensor_cores.cuh
  "{CompiledKernel(\"ladder::tensor_cores\", ladder::tensor_cores)}")
add_kernel_library(ladder_14_tensor_cores "${from_ampere_on}" "${rung}")
