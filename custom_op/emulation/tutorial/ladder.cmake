# Generates rungs.inc, the list of rungs with kernels (CONVSWAP_RUNG(02_global_adds) ...), and rung_kernels.h, their
# kernels.
file(GLOB rung_kernels CONFIGURE_DEPENDS "${custom_op}/cuda/tutorial/ladder/[0-9][0-9]_*.cuh")
set(rung_hosts "${custom_op}/cpu/tutorial/ladder/problem.cc"
  "${custom_op}/cuda/tutorial/ladder/rung.cc")
foreach(kernel IN LISTS rung_kernels)
  cmake_path(GET kernel STEM name)
  list(APPEND rung_hosts "${custom_op}/cuda/tutorial/ladder/${name}.cc")
  string(APPEND named "CONVSWAP_RUNG(${name})\n")
  string(APPEND included "#include \"cuda/tutorial/ladder/${name}.cuh\"\n")
endforeach()
file(CONFIGURE OUTPUT rungs/rungs.inc CONTENT "${named}")
file(CONFIGURE OUTPUT rungs/rung_kernels.h CONTENT "${included}")
add_executable(ladder EXCLUDE_FROM_ALL tutorial/ladder.cc ${rung_hosts} ${epilogue_stage})
set_target_properties(ladder PROPERTIES UNITY_BUILD OFF)  # rungs define the same names
target_include_directories(ladder PRIVATE "${CMAKE_CURRENT_BINARY_DIR}/rungs")
target_link_libraries(ladder PRIVATE common problems)
