# Compiles the kernel instances: an object library for each family of kernels, whose names are kernel_libraries,
# with source files for each format of the data, so that all cores compile. A family's instances.cuh lists what is
# in each. Every family is compiled for the architectures for which it has code and for no other; what has
# none in a build is not there, and the library says so (cuda/host/limits.h).

include(KernelFamilies)
set(kernel_libraries)

# `architectures`: a regular expression of those that there is code for; then the sources.
function(add_kernel_library name architectures)
  set(own ${CMAKE_CUDA_ARCHITECTURES})
  list(FILTER own INCLUDE REGEX "${architectures}")
  if(NOT own)
    return()
  endif()
  add_library(kernels_${name} OBJECT ${ARGN})
  target_include_directories(kernels_${name} PRIVATE custom_op)
  # One file holds a kernel's many instances; every core takes some of them.
  target_compile_options(kernels_${name} PRIVATE -split-compile=0)
  set_target_properties(kernels_${name} PROPERTIES CUDA_ARCHITECTURES "${own}" CUDA_STANDARD 20
    CUDA_STANDARD_REQUIRED ON)
  set(kernel_libraries ${kernel_libraries} kernels_${name} PARENT_SCOPE)
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

foreach(family IN LISTS kernel_families)
  set(sources)
  parts_of(${family} parts count)
  foreach(format IN LISTS formats_of_${family})
    foreach(part IN LISTS parts)
      set(source "${CMAKE_CURRENT_BINARY_DIR}/kernel_instances/${family}_${format}_${part}.cu")
      write_kernel_source("${source}" ${family}/instances.cuh
        "${family}::kernels_for<${format}, ${part}, ${count}>(\"${format}\")")
      list(APPEND sources "${source}")
    endforeach()
  endforeach()
  add_kernel_library(${family} "${architectures_of_${family}}" ${sources})
endforeach()

# The one rung of the ladder that not every architecture has code for.
set(rung "${CMAKE_CURRENT_BINARY_DIR}/kernel_instances/ladder_14_tensor_cores.cu")
write_kernel_source("${rung}" ladder/14_tensor_cores.cuh
  "{CompiledKernel(\"ladder::tensor_cores\", ladder::tensor_cores)}")
add_kernel_library(ladder_14_tensor_cores "${from_ampere_on}" "${rung}")
