# Build rules of the ladder and the lab.

# Each rung is written to be read alone, so rungs define the same names.
file(GLOB rung_sources CONFIGURE_DEPENDS custom_op/cuda/tutorial/ladder/*.cc custom_op/cpu/tutorial/ladder/*.cc)
set_source_files_properties(${rung_sources} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
if(SKBUILD)
  # `convswap ladder` shows the heads of these files.
  foreach(device cpu cuda)
    install(DIRECTORY custom_op/${device}/tutorial/ladder DESTINATION convswap/rungs/${device}/tutorial
      FILES_MATCHING PATTERN "[0-9][0-9]_*")
  endforeach()
  # For `convswap lab` without a card; and the header that users' kernels include, for editors too.
  install(FILES custom_op/emulation/cuda_emulation.h DESTINATION convswap/emulation)
  install(FILES custom_op/convswap/lab.h DESTINATION convswap/include/convswap)
endif()
