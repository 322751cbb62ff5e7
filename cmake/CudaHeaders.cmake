# Finds cuda.h, which only the build needs, and defines the target cuda_headers.
#
# Any version from CUDA 12 on works. Searched in this order: the folder CONVSWAP_CUDA_INCLUDE_DIR (CMake or
# environment), a CUDA toolkit, NVIDIA's packages of the Python that builds, and a wheel on PyPI.

include(${CMAKE_CURRENT_LIST_DIR}/FetchFromWheel.cmake)

set(wheel_requirement "nvidia-cuda-runtime==13.0.96")
set(wheel_sha256 7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548)

set(CONVSWAP_CUDA_INCLUDE_DIR "" CACHE PATH "The folder of cuda.h")
if(NOT CONVSWAP_CUDA_INCLUDE_DIR)
  # Not stored in CMake's cache, so that a wrong value can be corrected.
  set(CONVSWAP_CUDA_INCLUDE_DIR "$ENV{CONVSWAP_CUDA_INCLUDE_DIR}")
endif()
# One folder for all builds of this checkout, so that the header is fetched once.
set(fetched "${CMAKE_CURRENT_LIST_DIR}/../build/cuda-headers")

# Sets `result` to TRUE if the folder has a cuda.h of CUDA 12 or newer, else to FALSE.
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

# Lists the include folders of NVIDIA's packages for CUDA 12 and newer in the folder `packages`.
function(package_header_folders packages result)
  file(GLOB folders "${packages}/nvidia/cu1[2-9]/include" "${packages}/nvidia/cuda_runtime/include")
  set(${result} "${folders}" PARENT_SCOPE)
endfunction()

# A function, so that its Python variables do not affect pybind11's search for Python later.
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
  set(packages)
  packages_beside_python(packages)
  list(APPEND folders ${packages})
  package_header_folders("${fetched}" fetched_folders)
  foreach(folder IN LISTS folders fetched_folders)
    has_cuda_header("${folder}" is_good)
    if(is_good AND NOT cuda_include_dir)
      set(cuda_include_dir "${folder}")
    endif()
  endforeach()
  if(NOT cuda_include_dir)
    fetch_from_wheel("${fetched}" "${wheel_requirement}" ${wheel_sha256} "*/cuda.h"
      "set CONVSWAP_CUDA_INCLUDE_DIR to a folder that holds cuda.h")
    package_header_folders("${fetched}" fetched_folders)
    foreach(folder IN LISTS fetched_folders)
      set(cuda_include_dir "${folder}")
    endforeach()
  endif()
endif()
if(NOT cuda_include_dir)
  message(FATAL_ERROR "cuda.h was found neither on this system nor on the network; set CONVSWAP_CUDA_INCLUDE_DIR to "
    "the folder that holds it")
endif()
message(STATUS "CUDA headers: ${cuda_include_dir}")

# Copies cuda.h to a folder of its own, so that no other header of its folder is found.
set(header_folder "${CMAKE_CURRENT_BINARY_DIR}/cuda_header")
file(COPY "${cuda_include_dir}/cuda.h" DESTINATION "${header_folder}")
add_library(cuda_headers INTERFACE)
target_include_directories(cuda_headers SYSTEM INTERFACE "${header_folder}")
