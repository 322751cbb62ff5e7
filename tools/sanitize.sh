#!/bin/sh
# Runs the tests of the compiled code under AddressSanitizer and UndefinedBehaviorSanitizer, on the CPU.
#
#   sanitize.sh build   compiles what changed into build/sanitized, without CUDA kernels
#   sanitize.sh test    runs the tests with that build, then looks for memory that sessions do not give back
#
# The Makefile passes PYTHON and PYTHON_ENV, and says what they mean.
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
  # CMake keeps the compiler and the paths that it found first.
  choices="$python ${CXX:-g++}"
  [ "$choices" = "$(cat "$folder/choices" 2>"$log")" ] || rm -rf "$folder/objects"
  echo "$choices" >"$folder/choices"
  echo "Building convswap with sanitizers"
  # It takes g++ with its libasan and libubsan. With line numbers, which a release build strips, for reports, and
  # without optimization but of the loops that ask for it, since most of the time goes by compiling.
  install_checkout --upgrade --target "$folder/package" \
    --config-settings build-dir="$folder/objects" \
    --config-settings cmake.build-type=RelWithDebInfo \
    --config-settings "cmake.define.CMAKE_CXX_FLAGS_RELWITHDEBINFO=-O0 -g1" \
    --config-settings "cmake.define.CONVSWAP_SANITIZE=$sanitizers"
}

# Runs pytest in a Python that has the sanitizers. Takes a name for what they write, options of AddressSanitizer,
# then pytest's arguments.
run_tests() {
  name=$1
  asan_options=$2
  shift 2
  # The sanitizers must come first in a process. libstdc++ with them: they replace its throw.
  preload=$(ldd "$folder/package/convswap/libconvswap.so" |
    awk '/libasan|libubsan|libstdc\+\+/ { printf "%s:", $3 }')
  # Reports go to files, and pytest leaves standard error alone, where UndefinedBehaviorSanitizer writes
  # whatever it is told: pytest would swallow what a test that ends the process has printed. Python's own
  # allocator would hide where an object ends. Of pytest's plugins the one that these tests need: the imports of
  # the others take longer than many tests where each allocation looks for its callers.
  PYTHONPATH=$folder/package CONVSWAP_SANITIZED=$folder/package PYTHONMALLOC=malloc LD_PRELOAD=$preload \
    PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 \
    ASAN_OPTIONS=log_path=$folder/report.$name:$asan_options LSAN_OPTIONS=exitcode=0 \
    UBSAN_OPTIONS=print_stacktrace=1 \
    "$python" -m pytest --quiet -r fE --capture=sys -p no:cacheprovider -p pytest_timeout "$@" 2>"$folder/errors.$name"
}

# Takes the name of a run.
check_reports() {
  reports=$(sed -n '/: runtime error: /,$p' "$folder/errors.$1" && cat "$folder/report.$1".* 2>"$log")
  [ -z "$reports" ] && return
  echo "$reports" >&2
  fail "the sanitizers found what is above"
}

# Takes the name and the exit status of a run of pytest.
check_result() {
  check_reports "$1"
  [ "$2" -eq 0 ] || fail "tests failed with the sanitizers, which reported nothing; see also $folder/errors.$1"
}

# Takes the name of a run. Python and the programs that tests call give memory back by ending: only what our own
# code took counts, and not what it took to define our module, since Python keeps the names there, from 3.12 on
# beyond its end.
check_leaks() {
  leaks=$(cat "$folder/report.$1".* 2>"$log" |
    awk -v RS= -v ORS='\n\n' '/(custom_op|python\/bindings)\// && !/ pybind11_(init|exec)__native /')
  [ -z "$leaks" ] && return
  echo "$leaks" >&2
  fail "memory is not given back: above is where it was taken"
}

# The runs are of one thread each, mostly: sessions go side by side with everything else.
test() {
  rm -f "$folder"/report.* "$folder"/errors.*
  # Of draws and repetitions of the same a share: the sanitizers look at each line, not at results.
  export CONVSWAP_TEST_SHARE=0.3
  # The first looks whether it is this build that is tested. With the others and those below, sessions of other
  # opsets, types and shapes, threads, tune and compare reach no further line of the compiled code, as gcov counts
  # them. What a sanitized library needs from the system is not what a release needs.
  run_tests parts detect_leaks=0 -m 'not slow' tests/programs/test_sanitized.py tests/programs/test_library.py \
    tests/op/test_conv_cpu.py tests/op/test_direct_paths.py tests/op/test_element_types.py \
    tests/op/test_extreme_problems.py tests/tutorial/test_ladder_kernels.py tests/op/test_native_epilogue.py \
    'tests/op/test_property.py::test_every_algorithm_is_the_convolution_within_its_rounding[0-cpu]' \
    tests/session/test_fused_conv.py tests/session/test_override.py tests/session/test_plan_cache.py \
    tests/session/test_tuning_table.py tests/unit/test_conv_shapes.py tests/unit/test_explain.py \
    --deselect tests/programs/test_library.py::test_library_needs_nothing_but_the_system \
    >"$folder/parts.log" &
  parts=$!

  # The slow way of finding callers, because ONNX Runtime, which calls us and which we call, has no frame
  # pointers for the fast one.
  run_tests sessions detect_leaks=1:fast_unwind_on_malloc=0:malloc_context_size=16 \
    tests/session/test_op_session.py
  of_sessions=$?
  wait "$parts"
  of_parts=$?
  cat "$folder/parts.log"
  check_result parts "$of_parts"
  check_leaks sessions
  [ "$of_sessions" -eq 0 ] || check_result sessions "$of_sessions"
  rm -f "$folder"/report.*
  echo "The sanitizers found nothing"
}

case $1 in
  build) build ;;
  test) test ;;
esac
