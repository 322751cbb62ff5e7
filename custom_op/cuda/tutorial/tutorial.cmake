# What the build does for the ladder and the lab.

# A rung is there to be read alone, and has the names that the others have.
file(GLOB rung_sources CONFIGURE_DEPENDS custom_op/cuda/tutorial/ladder/*.cc custom_op/cpu/tutorial/ladder/*.cc)
set_source_files_properties(${rung_sources} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
if(SKBUILD)
  # `convswap ladder` shows what the heads of these files say.
  foreach(device cpu cuda)
    install(DIRECTORY custom_op/${device}/tutorial/ladder DESTINATION convswap/rungs/${device}/tutorial
      FILES_MATCHING PATTERN "[0-9][0-9]_*")
  endforeach()
  # What `convswap lab` needs where there is no card, and what a user's kernel includes, for editors too.
  install(FILES custom_op/emulation/cuda_emulation.h DESTINATION convswap/emulation)
  install(FILES custom_op/convswap/lab.h DESTINATION convswap/include/convswap)
endif()
