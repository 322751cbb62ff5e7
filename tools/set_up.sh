#!/bin/sh
# Set-up steps of the Makefile. Each failure is one line that says what to do.
#
#   set_up.sh packages   makes .venv and installs the packages to build, run and test convswap
#   set_up.sh lint       installs linters, formatters and type checker into .venv
#   set_up.sh docs       installs MkDocs and its plugins into .venv
#   set_up.sh build      compiles changed files and installs convswap
#   set_up.sh dev        does the same, and links the installed Python files to the checkout
#   set_up.sh oldest     makes .venv-oldest, for the test with the oldest ONNX Runtime
#   set_up.sh torch      installs PyTorch, Ray and Triton's client into .venv, for the tests marked extended
#
# The Makefile passes PYTHON and PYTHON_ENV, and explains them.
set -u
cd "$(dirname "$0")/.." || exit 1
mkdir -p build
# Steps may run in parallel, so each has separate files.
log=build/set_up.$1.log
list=build/requirements.$1.txt

fail() {
  echo "convswap: $*" >&2
  exit 1
}

. tools/building.sh

# Prints the newest CUDA version of the driver, such as 13.0; nothing without a card.
cuda_of_driver() {
  nvidia-smi -L 2>/dev/null | grep -q '^GPU ' || return 0
  nvidia-smi | sed -n 's/.*CUDA[A-Z ]* Version *: *\([0-9]*\.[0-9]*\).*/\1/p' | head -n 1
}

check_python() {
  command -v "$PYTHON" >"$log" || fail "$PYTHON was not found; install Python 3.11 or newer and its venv module"
  "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || fail "$("$PYTHON" --version) is too old;" \
    "install Python 3.11 or newer, and name it if it is not python3, as in: make PYTHON=python3.12"
}

check_compiler() {
  compiler=${CXX:-g++}
  command -v "$compiler" >"$log" || fail "$compiler was not found; install g++ 11 or newer"
  case $("$compiler" --version | head -n 1) in
    *g++*) ;;
    # Other compilers number their versions differently; CMake checks that they support C++20.
    *) return ;;
  esac
  version=$("$compiler" -dumpversion)
  [ "${version%%.*}" -ge 11 ] || fail "$compiler is version $version; install g++ 11 or newer, and name it if" \
    "it is not g++, as in: make CXX=g++-12"
}

make_environment() {
  [ -x "$1/bin/pip" ] && return
  "$PYTHON" -c 'import ensurepip, venv' 2>"$log" || fail "$PYTHON cannot make a virtual environment;" \
    "install its venv module (Debian: apt install python3-venv)"
  "$PYTHON" -m venv "$1" >"$log" 2>&1 || fail "$PYTHON cannot make $1: $(tail -n 1 "$log")"
}

# Prints requirements of pyproject.toml, one a line. Arguments: build, run, or names of extras.
requirements() {
  "$python" - "$@" <<'END'
import sys
import tomllib

with open("pyproject.toml", "rb") as file:
    metadata = tomllib.load(file)
lists = metadata["project"]["optional-dependencies"]
lists |= {"build": metadata["build-system"]["requires"], "run": metadata["project"]["dependencies"]}
print("\n".join(requirement for name in sys.argv[1:] for requirement in lists[name]))
END
}

# Installs the requirements on standard input. Arguments: a description of the packages, then options for pip.
install() {
  description=$1
  shift
  cat >"$list"
  "$python" -m pip install --quiet --retries 2 "$@" --requirement "$list" >"$log" 2>&1 ||
    fail "pip could not install $description; is the network there? pip says: $(grep -i '^error' "$log" | tail -n 1)"
}

install_packages() {
  check_python
  check_compiler
  make_environment .venv
  cuda=$(cuda_of_driver)
  case $cuda in
    "") extra=cpu other=onnxruntime-gpu ;;
    12.*) extra=cuda12 other=onnxruntime ;;
    *) extra=cuda other=onnxruntime ;;
  esac
  # Both packages contain the same module: the second would overwrite only parts of the first.
  "$python" -m pip uninstall --quiet --yes "$other" >"$log" 2>&1
  echo "Installing packages into .venv${cuda:+, CUDA libraries of about 2 GB among them}"
  { requirements build run test "$extra" && printf 'cmake>=3.26\nninja\n'; } | install "convswap's packages"
}

check_packages() {
  check_python
  check_compiler
  for module in numpy onnx onnx_ir onnxscript onnxruntime rich scikit_build_core pybind11; do
    "$python" -c "import $module" 2>"$log" || fail "$python cannot import $module; install it there," \
      "or leave out PYTHON_ENV=system to have everything installed into .venv"
  done
}

# Argument: ON to compile each file separately, else OFF.
build() {
  # CMake caches compiler and paths, so a change of either needs an empty build folder.
  choices="$python ${CXX:-}"
  [ "$choices" = "$(cat build/choices 2>"$log")" ] || rm -rf build/cp3*
  echo "$choices" >build/choices
  echo "Building convswap"
  install_checkout --force-reinstall --config-settings "cmake.define.CONVSWAP_FILES_ALONE=$1"
  # Compile kernels for the cards of this machine, so that no session waits for them. Status 1: no compiler.
  "$python" -m convswap.planning.ready_made || [ $? -eq 1 ]
}

# Makes edits of Python files take effect without a build.
link_sources() {
  "$python" tools/link_sources.py 2>"$log" ||
    fail "the installed files cannot be replaced by links: $(tail -n 1 "$log")"
  echo "Python is read from this checkout; make clean ends that"
}

install_oldest() {
  if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 13))'; then
    echo "onnxruntime 1.17.3 has no package for $("$python" --version): the test with it will be skipped"
    return
  fi
  make_environment .venv-oldest
  python=.venv-oldest/bin/python
  echo "Installing the oldest ONNX Runtime into .venv-oldest, for a test"
  printf 'onnxruntime==1.17.3\nnumpy<2\npytest>=8\n' | install "the oldest ONNX Runtime"
  # 1.16.3 is too old, and a test checks that it is refused. It has no packages for Python after 3.11.
  "$python" -c 'import sys; sys.exit(sys.version_info >= (3, 12))' || return 0
  echo 'onnxruntime==1.16.3' | install "an ONNX Runtime that is too old" --no-deps --upgrade --target \
    .venv-oldest/too-old
}

# With PyTorch's CPU index configured, pip takes the CPU build, a tenth of the size.
install_torch() {
  echo "Installing PyTorch, Ray and Triton's client into .venv, for their tests"
  echo 'torch==2.13.0' | install "PyTorch" && echo 'ray[serve]==2.60.0' | install "Ray" &&
    # Tests read only its schema of configurations, which needs no other package.
    echo 'tritonclient==2.73.0' | install "Triton's client" --no-deps
}

python=.venv/bin/python
[ "$PYTHON_ENV" = system ] && python=$PYTHON
case $1-$PYTHON_ENV in
  packages-system) check_packages ;;
  packages-*) install_packages ;;
  lint-system) fail "make lint installs the checkers into .venv; leave out PYTHON_ENV=system" ;;
  docs-system) fail "make docs installs MkDocs into .venv; leave out PYTHON_ENV=system" ;;
  lint-*) requirements lint | install "the checkers" ;;
  docs-*) requirements docs | install "MkDocs" ;;
  build-*) build OFF ;;
  dev-*) build ON && link_sources ;;
  oldest-system | torch-system) ;;
  oldest-*) install_oldest ;;
  torch-*) install_torch ;;
esac
