# Finds cuda.h, which the build alone needs, and makes the target cuda_headers.
#
# Any from CUDA 12 on will do, so the first of these wins: the folder CONVSWAP_CUDA_INCLUDE_DIR (CMake or
# environment), a CUDA toolkit's, that of NVIDIA's packages beside the Python that builds, and last a wheel on PyPI.

include(${CMAKE_CURRENT_LIST_DIR}/FetchFromWheel.cmake)

set(wheel_requirement "nvidia-cuda-runtime==13.0.96")
set(wheel_sha256 7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548)

set(CONVSWAP_CUDA_INCLUDE_DIR "" CACHE PATH "The folder of cuda.h")
if(NOT CONVSWAP_CUDA_INCLUDE_DIR)
  # Not kept in the cache, so that a mistake in it can be mended.
  set(CONVSWAP_CUDA_INCLUDE_DIR "$ENV{CONVSWAP_CUDA_INCLUDE_DIR}")
endif()
# One place for every build of this checkout, so that it is fetched once.
set(fetched "${CMAKE_CURRENT_LIST_DIR}/../build/cuda-headers")

# Sets `result` to whether the folder has a cuda.h that is new enough.
function(has_cuda_header folder result)
  set(${result} FALSE PARENT_SCOPE)
  if(EXISTS "${folder}/cuda.h")
    file(STRINGS "${folder}/cuda.h" version REGEX "^#define CUDA_VERSION ")
    string(REGEX REPLACE "[^0-9]" "" version "${version}")
    if(version GREATER_EQUAL 12000)
      set(${result} TRUE PARENT_SCOPE)
    endif()
  endif()
endfunction()

# Of NVIDIA's packages for CUDA 13 and 12, below a folder of Python packages.
function(package_header_folders packages result)
  file(GLOB folders "${packages}/nvidia/cu1[2-9]/include" "${packages}/nvidia/cuda_runtime/include")
  set(${result} "${folders}" PARENT_SCOPE)
endfunction()

# In functions, since pybind11 looks for Python in its own way later.
function(packages_beside_python result)
  find_package(Python3 COMPONENTS Interpreter QUIET)
  if(Python3_FOUND)
    package_header_folders("${Python3_SITELIB}" folders)
    set(${result} "${folders}" PARENT_SCOPE)
  endif()
endfunction()

set(cuda_include_dir "")
if(CONVSWAP_CUDA_INCLUDE_DIR)
  has_cuda_header("${CONVSWAP_CUDA_INCLUDE_DIR}" is_good)
  if(NOT is_good)
    message(FATAL_ERROR "CONVSWAP_CUDA_INCLUDE_DIR is ${CONVSWAP_CUDA_INCLUDE_DIR}, which has no cuda.h of CUDA 12 "
      "or newer")
  endif()
  set(cuda_include_dir "${CONVSWAP_CUDA_INCLUDE_DIR}")
else()
  set(folders)
  foreach(toolkit IN ITEMS "$ENV{CUDA_PATH}" "$ENV{CUDA_HOME}" /usr/local/cuda)
    if(toolkit)
      list(APPEND folders "${toolkit}/include")
    endif()
  endforeach()
  set(own)
  packages_beside_python(own)
  list(APPEND folders ${own})
  package_header_folders("${fetched}" kept)
  foreach(folder IN LISTS folders kept)
    has_cuda_header("${folder}" is_good)
    if(is_good AND NOT cuda_include_dir)
      set(cuda_include_dir "${folder}")
    endif()
  endforeach()
  if(NOT cuda_include_dir)
    fetch_from_wheel("${fetched}" "${wheel_requirement}" ${wheel_sha256} "*/cuda.h"
      "set CONVSWAP_CUDA_INCLUDE_DIR to a folder that holds cuda.h")
    package_header_folders("${fetched}" kept)
    foreach(folder IN LISTS kept)
      set(cuda_include_dir "${folder}")
    endforeach()
  endif()
endif()
if(NOT cuda_include_dir)
  message(FATAL_ERROR "cuda.h was found neither on this system nor on the network; set CONVSWAP_CUDA_INCLUDE_DIR to "
    "the folder that holds it")
endif()
message(STATUS "CUDA headers: ${cuda_include_dir}")

# By itself: what else lies beside it is not ours to take.
set(alone "${CMAKE_CURRENT_BINARY_DIR}/cuda_header")
file(COPY "${cuda_include_dir}/cuda.h" DESTINATION "${alone}")
add_library(cuda_headers INTERFACE)
target_include_directories(cuda_headers SYSTEM INTERFACE "${alone}")
