# Decides whether the CUDA kernels are built, and for which cards.
#
# CONVSWAP_CUDA: ON, OFF, or AUTO (build them where nvcc is). Afterwards it is TRUE or FALSE, and
# CONVSWAP_NO_CUDA_REASON says in one line why not and what to do.
# CONVSWAP_CUDA_ARCHITECTURES: compute capabilities without the dot ("90", "80;90"), else the environment variable
# of that name; by default those of this machine's cards alone ("90-real", as CMake calls it: without the portable
# form, which newer cards compile for themselves), and with no card every one from 75 to 120.

set(CONVSWAP_CUDA AUTO CACHE STRING "Build the CUDA kernels: ON, OFF or AUTO")
set(CONVSWAP_CUDA_ARCHITECTURES "" CACHE STRING "Cards to build for")
set(CONVSWAP_NO_CUDA_REASON "")

function(cards_of_this_machine result)
  execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
    OUTPUT_VARIABLE answer RESULT_VARIABLE failed ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(failed)
    set(answer "")
  endif()
  string(REGEX REPLACE "[. ]" "" answer "${answer}")
  string(REPLACE "\n" ";" answer "${answer}")
  list(REMOVE_DUPLICATES answer)
  set(${result} "${answer}" PARENT_SCOPE)
endfunction()

if(CONVSWAP_CUDA)
  if(NOT CMAKE_CUDA_COMPILER)
    # An earlier configuration that found none would keep this one from looking.
    unset(CMAKE_CUDA_COMPILER CACHE)
  endif()
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    if(NOT CONVSWAP_CUDA_ARCHITECTURES)
      # Not kept in the cache, so that the next build may ask for others.
      set(CONVSWAP_CUDA_ARCHITECTURES "$ENV{CONVSWAP_CUDA_ARCHITECTURES}")
    endif()
    if(NOT CONVSWAP_CUDA_ARCHITECTURES)
      cards_of_this_machine(CONVSWAP_CUDA_ARCHITECTURES)
      # The portable form takes a third of the time.
      list(TRANSFORM CONVSWAP_CUDA_ARCHITECTURES APPEND "-real")
    endif()
    if(NOT CONVSWAP_CUDA_ARCHITECTURES)
      set(CONVSWAP_CUDA_ARCHITECTURES 75 80 86 89 90 100 120)
    endif()
    foreach(architecture IN LISTS CONVSWAP_CUDA_ARCHITECTURES)
      if(NOT architecture MATCHES "^[0-9][0-9]+(-real)?$")
        message(FATAL_ERROR "CONVSWAP_CUDA_ARCHITECTURES has ${architecture}; expected compute capabilities without "
          "the dot, like 90, or 90-real for that card alone")
      endif()
    endforeach()
    # Code for Hopper alone may use the instructions that only Hopper has; newer cards take what is portable.
    list(TRANSFORM CONVSWAP_CUDA_ARCHITECTURES REPLACE "^90$" "90a-real;90-virtual"
      OUTPUT_VARIABLE CMAKE_CUDA_ARCHITECTURES)
    list(TRANSFORM CMAKE_CUDA_ARCHITECTURES REPLACE "^90-real$" "90a-real")
    enable_language(CUDA)
    find_package(CUDAToolkit REQUIRED)
    message(STATUS "CUDA kernels: nvcc ${CMAKE_CUDA_COMPILER_VERSION}, cards ${CMAKE_CUDA_ARCHITECTURES}")
    set(CONVSWAP_CUDA TRUE)
  elseif(CONVSWAP_CUDA STREQUAL "AUTO")
    set(CONVSWAP_NO_CUDA_REASON "built without CUDA kernels: nvcc was not found when convswap was built; \
run make NVCC=pypi (NVIDIA's compiler from PyPI), or install the CUDA toolkit and build again")
    message(WARNING "convswap is ${CONVSWAP_NO_CUDA_REASON}")
    set(CONVSWAP_CUDA FALSE)
  else()
    message(FATAL_ERROR "CONVSWAP_CUDA is ${CONVSWAP_CUDA} and nvcc was not found; install the CUDA toolkit "
      "or set CUDACXX to the path of nvcc")
  endif()
else()
  set(CONVSWAP_NO_CUDA_REASON "built without CUDA kernels: CONVSWAP_CUDA was OFF")
endif()
