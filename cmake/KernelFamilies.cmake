# The families of kernels, their formats of the data, in how many files the kernels of one are compiled (1 where
# it is not said), and the architectures that they have code for, as a regular expression: for what compiles them
# for cards, and for the emulation of tests/emulation.

set(kernel_families few_channels toeplitz implicit_gemm tiled naive epilogue)

set(any_architecture ".")
set(from_ampere_on "^([89]|[1-9][0-9])[0-9]")  # compute capability 8.0
set(hopper_alone "^90a-real$")
set(tensor_core_formats ScaledFloat16Pairs TwoScaledFloat16 Float16Pairs Bfloat16Pairs)

set(formats_of_few_channels ${tensor_core_formats})
set(parts_of_few_channels 2)
set(architectures_of_few_channels "${from_ampere_on}")
set(formats_of_toeplitz ${tensor_core_formats})
set(parts_of_toeplitz 2)
set(architectures_of_toeplitz "${hopper_alone}")
set(formats_of_implicit_gemm ${tensor_core_formats})
set(architectures_of_implicit_gemm "${hopper_alone}")
set(formats_of_tiled float Float16 BFloat16)
set(architectures_of_tiled "${any_architecture}")
set(formats_of_naive float double Float16 BFloat16)
set(architectures_of_naive "${any_architecture}")
set(formats_of_epilogue float double Float16 BFloat16)
set(architectures_of_epilogue "${any_architecture}")

# Sets `result` to the numbers of a family's parts, from 0 on, and `count` to how many they are.
function(parts_of family result count)
  set(parts 1)
  if(DEFINED parts_of_${family})
    set(parts ${parts_of_${family}})
  endif()
  math(EXPR last "${parts} - 1")
  set(numbers)
  foreach(number RANGE ${last})
    list(APPEND numbers ${number})
  endforeach()
  set(${result} "${numbers}" PARENT_SCOPE)
  set(${count} ${parts} PARENT_SCOPE)
endfunction()
