# Finds onnxruntime_c_api.h and defines the target onnxruntime_headers.
#
# The onnxruntime wheels have no headers. Any headers of API version 17 or newer work, since the library requests
# version 17 by number. Searched in this order: the folder ONNXRUNTIME_INCLUDE_DIR (CMake or environment), the system
# (Debian: libonnxruntime-dev), the MIT-licensed headers in a pure-Python wheel on PyPI, which is available wherever
# pip works, and the official release archive.

include(${CMAKE_CURRENT_LIST_DIR}/FetchFromWheel.cmake)

set(header onnxruntime_c_api.h)
set(wheel_requirement "amd-quark==0.13")
set(wheel_sha256 3b3e58a4cbbcff20d27815b641aa4de4d698efde3c782306cb4a6a05bcf55c8c)
set(release https://github.com/microsoft/onnxruntime/releases/download/v1.17.0/onnxruntime-linux-x64-1.17.0.tgz)

set(ONNXRUNTIME_INCLUDE_DIR "" CACHE PATH "The folder of ${header}")
if(NOT ONNXRUNTIME_INCLUDE_DIR)
  # Not stored in CMake's cache, so that a wrong value can be corrected.
  set(ONNXRUNTIME_INCLUDE_DIR "$ENV{ONNXRUNTIME_INCLUDE_DIR}")
endif()
# One folder for all builds of this checkout, so that the headers are fetched once.
set(fetched "${CMAKE_CURRENT_LIST_DIR}/../build/onnxruntime-headers")

function(fetch_headers_from_release)
  file(DOWNLOAD "${release}" "${fetched}/release.tgz" STATUS status TIMEOUT 120)
  list(GET status 0 failed)
  if(NOT failed)
    file(ARCHIVE_EXTRACT INPUT "${fetched}/release.tgz" DESTINATION "${fetched}" PATTERNS "*/${header}")
  endif()
endfunction()

function(find_fetched_header result)
  file(GLOB_RECURSE found "${fetched}/*/${header}")
  if(found)
    list(GET found 0 first)
    cmake_path(GET first PARENT_PATH folder)
    set(${result} "${folder}" PARENT_SCOPE)
  endif()
endfunction()

if(ONNXRUNTIME_INCLUDE_DIR)
  if(NOT EXISTS "${ONNXRUNTIME_INCLUDE_DIR}/${header}")
    message(FATAL_ERROR "ONNXRUNTIME_INCLUDE_DIR is ${ONNXRUNTIME_INCLUDE_DIR}, which has no ${header}")
  endif()
  set(include_dir "${ONNXRUNTIME_INCLUDE_DIR}")
else()
  find_path(ONNXRUNTIME_SYSTEM_INCLUDE_DIR ${header} PATH_SUFFIXES onnxruntime onnxruntime/core/session)
  if(ONNXRUNTIME_SYSTEM_INCLUDE_DIR)
    set(include_dir "${ONNXRUNTIME_SYSTEM_INCLUDE_DIR}")
  else()
    find_fetched_header(include_dir)
    if(NOT include_dir)
      # Also fetches the headers of the C++ API, for programs that load the library.
      fetch_from_wheel("${fetched}" "${wheel_requirement}" ${wheel_sha256} "*/core/session/onnxruntime_*.h"
        "set ONNXRUNTIME_INCLUDE_DIR to a folder that holds ${header}")
      find_fetched_header(include_dir)
    endif()
    if(NOT include_dir)
      fetch_headers_from_release()
      find_fetched_header(include_dir)
    endif()
  endif()
endif()
if(NOT include_dir)
  message(FATAL_ERROR "${header} was found neither on this system nor on the network; install "
    "libonnxruntime-dev, or set ONNXRUNTIME_INCLUDE_DIR to the folder that holds it")
endif()
message(STATUS "ONNX Runtime headers: ${include_dir}")

add_library(onnxruntime_headers INTERFACE)
target_include_directories(onnxruntime_headers SYSTEM INTERFACE "${include_dir}")
