#!/bin/sh
# Runs the tests of the compiled code under AddressSanitizer and UndefinedBehaviorSanitizer, on the CPU.
#
#   sanitize.sh build   compiles what changed into build/sanitized, without CUDA kernels
#   sanitize.sh test    runs the tests with that build, then checks sessions for leaked memory
#
# The Makefile passes PYTHON and PYTHON_ENV, and explains them.
set -u
cd "$(dirname "$0")/.." || exit 1
folder=$PWD/build/sanitized
log=$folder/build.log
sanitizers="address;undefined;float-cast-overflow;float-divide-by-zero"
mkdir -p "$folder"
python=.venv/bin/python
[ "${PYTHON_ENV:-venv}" = system ] && python=$PYTHON

fail() {
  echo "convswap: $*" >&2
  exit 1
}

. tools/building.sh

build() {
  # CMake caches compiler and paths, so a change of either needs an empty build folder.
  choices="$python ${CXX:-g++}"
  [ "$choices" = "$(cat "$folder/choices" 2>"$log")" ] || rm -rf "$folder/objects"
  echo "$choices" >"$folder/choices"
  echo "Building convswap with sanitizers"
  # Needs g++ with libasan and libubsan. Reports need line numbers, which a release build strips. Most of the time is
  # compile time, so only loops that request optimization have it.
  install_checkout --upgrade --target "$folder/package" \
    --config-settings build-dir="$folder/objects" \
    --config-settings cmake.build-type=RelWithDebInfo \
    --config-settings "cmake.define.CMAKE_CXX_FLAGS_RELWITHDEBINFO=-O0 -g1" \
    --config-settings "cmake.define.CONVSWAP_SANITIZE=$sanitizers"
}

# Runs pytest in a Python with the sanitizers loaded. Arguments: a name for their files, options of AddressSanitizer,
# then arguments for pytest.
run_tests() {
  name=$1
  asan_options=$2
  shift 2
  # The sanitizers must be loaded first, and libstdc++ with them, because they replace its throw.
  preload=$(ldd "$folder/package/convswap/libconvswap.so" |
    awk '/libasan|libubsan|libstdc\+\+/ { printf "%s:", $3 }')
  # Reports go to files. UndefinedBehaviorSanitizer always writes to standard error, so pytest must not capture it: the
  # output of a test that ends the process would be lost. Python's allocator would hide the ends of objects. Only the
  # plugin that these tests need is loaded: with a call stack for each allocation, imports are slower than many tests.
  PYTHONPATH=$folder/package CONVSWAP_SANITIZED=$folder/package PYTHONMALLOC=malloc LD_PRELOAD=$preload \
    PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 \
    ASAN_OPTIONS=log_path=$folder/report.$name:$asan_options LSAN_OPTIONS=exitcode=0 \
    UBSAN_OPTIONS=print_stacktrace=1 \
    "$python" -m pytest --quiet -r fE --capture=sys -p no:cacheprovider -p pytest_timeout "$@" 2>"$folder/errors.$name"
}

# Argument: the name of a run.
check_reports() {
  reports=$(sed -n '/: runtime error: /,$p' "$folder/errors.$1" && cat "$folder/report.$1".* 2>"$log")
  [ -z "$reports" ] && return
  echo "$reports" >&2
  fail "the sanitizers reported the errors above"
}

# Arguments: the name and the exit status of a run of pytest.
check_result() {
  check_reports "$1"
  [ "$2" -eq 0 ] || fail "tests failed with the sanitizers, which reported nothing; see also $folder/errors.$1"
}

# Argument: the name of a run. Python and the programs of tests leave memory to the end of the process, so only
# allocations of our code count. The definition of our module does not count: Python keeps its names, from 3.12 on
# beyond the end of the interpreter.
check_leaks() {
  leaks=$(cat "$folder/report.$1".* 2>"$log" |
    awk -v RS= -v ORS='\n\n' '/(custom_op|python\/bindings)\// && !/ pybind11_(init|exec)__native /')
  [ -z "$leaks" ] && return
  echo "$leaks" >&2
  fail "memory leaks; the allocations are listed above"
}

# Each run is mostly single-threaded, so the run of sessions and the run of all other tests are parallel.
test() {
  rm -f "$folder"/report.* "$folder"/errors.*
  # Fewer draws and repetitions, because the sanitizers check lines and not outputs.
  export CONVSWAP_TEST_SHARE=0.3
  # test_sanitized.py checks that this build is tested. Tests of sessions with other opsets, types and shapes, of
  # threads, tune and compare reach no more lines of the compiled code, by gcov. The deselected test holds for release
  # builds only.
  run_tests parts detect_leaks=0 -m 'not slow' tests/programs/test_sanitized.py tests/programs/test_library.py \
    tests/op/test_conv_cpu.py tests/op/test_direct_paths.py tests/op/test_element_types.py \
    tests/op/test_extreme_problems.py tests/tutorial/test_ladder_kernels.py tests/op/test_native_epilogue.py \
    'tests/op/test_property.py::test_every_algorithm_is_the_convolution_within_its_rounding[0-cpu]' \
    tests/session/test_fused_conv.py tests/session/test_override.py tests/session/test_plan_cache.py \
    tests/session/test_tuning_table.py tests/session/test_mul.py tests/session/test_layer_norm.py \
    tests/unit/test_conv_shapes.py tests/unit/test_explain.py \
    --deselect tests/programs/test_library.py::test_library_needs_nothing_but_the_system \
    >"$folder/parts.log" &
  parts=$!

  # The slow unwinder, because the fast one needs frame pointers, which ONNX Runtime lacks.
  run_tests sessions detect_leaks=1:fast_unwind_on_malloc=0:malloc_context_size=16 \
    tests/session/test_op_session.py
  sessions_status=$?
  wait "$parts"
  parts_status=$?
  cat "$folder/parts.log"
  check_result parts "$parts_status"
  check_leaks sessions
  [ "$sessions_status" -eq 0 ] || check_result sessions "$sessions_status"
  rm -f "$folder"/report.*
  echo "The sanitizers found nothing"
}

case $1 in
  build) build ;;
  test) test ;;
esac
