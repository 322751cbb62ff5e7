# Makes kernel_sources.cc, the text of every header that a kernel includes, for the compiler at run time
# (cuda/runtime/kernel_sources.h). CMakeLists.txt includes this file, for the command that makes it; the command
# runs it as a script, with SOURCES, the folder custom_op, and OUTPUT.

if(NOT CMAKE_SCRIPT_MODE_FILE)
  set(kernel_sources "${CMAKE_CURRENT_BINARY_DIR}/kernel_sources.cc")
  set(script "${CMAKE_CURRENT_LIST_FILE}")
  file(GLOB_RECURSE kernel_headers CONFIGURE_DEPENDS custom_op/cuda/*.cuh custom_op/cuda/*.h custom_op/conv/*.h
    custom_op/convswap/*.h)
  add_custom_command(OUTPUT "${kernel_sources}"
    COMMAND "${CMAKE_COMMAND}" "-DSOURCES=${CMAKE_CURRENT_SOURCE_DIR}/custom_op" "-DOUTPUT=${kernel_sources}" -P
      "${script}"
    DEPENDS "${script}" ${kernel_headers}
    COMMENT "Gathering the sources of the kernels" VERBATIM)
  return()
endif()

# A script has no policies of its own, and CMake before 4 then knows no IN_LIST.
cmake_minimum_required(VERSION 3.25)

# What is included is read in turn. What a user's own kernel includes is in `convswap`.
file(GLOB_RECURSE wanted RELATIVE "${SOURCES}" "${SOURCES}/cuda/*.cuh" "${SOURCES}/convswap/*.h")
set(found)
set(entries "")
set(all "")
while(wanted)
  list(POP_FRONT wanted name)
  if(name IN_LIST found)
    continue()
  endif()
  list(APPEND found "${name}")
  file(READ "${SOURCES}/${name}" text)
  string(APPEND entries "    {\"${name}\", R\"convswap(${text})convswap\"},\n")
  string(APPEND all "${name}\n${text}")
  file(STRINGS "${SOURCES}/${name}" includes REGEX "^#include \"")
  foreach(include IN LISTS includes)
    string(REGEX REPLACE "^#include \"([^\"]*)\".*" "\\1" include "${include}")
    list(APPEND wanted "${include}")
  endforeach()
endwhile()
string(SHA256 hash "${all}")
string(SUBSTRING "${hash}" 0 16 hash)
file(WRITE "${OUTPUT}" "// Made by KernelSources.cmake.
#include \"cuda/runtime/kernel_sources.h\"

namespace convswap {

const KernelSource kKernelSources[] = {
${entries}};
const std::size_t kKernelSourceCount = sizeof kKernelSources / sizeof *kKernelSources;
const char kKernelSourcesHash[] = \"${hash}\";

}  // namespace convswap
")
