#!/bin/sh
# What the Makefile does before convswap can run; each failure is one line that says what to do.
#
#   set_up.sh packages   makes .venv and installs into it what convswap needs to be built, run and tested
#   set_up.sh lint       installs the checkers into .venv
#   set_up.sh build      compiles what changed and installs convswap
#
# The Makefile passes PYTHON, PYTHON_ENV (venv or system) and NVCC (auto, pypi, none or a path).
set -u
cd "$(dirname "$0")/.." || exit 1
log=build/set_up.log
mkdir -p build

fail() {
  echo "convswap: $*" >&2
  exit 1
}

# The driver's newest CUDA version, such as 13.0; nothing where there is no card.
cuda_of_driver() {
  nvidia-smi -L 2>/dev/null | grep -q '^GPU ' || return 0
  nvidia-smi | sed -n 's/.*CUDA[A-Z ]* Version *: *\([0-9]*\.[0-9]*\).*/\1/p' | head -n 1
}

check_python() {
  command -v "$PYTHON" >/dev/null || fail "$PYTHON was not found; install python3 (3.11 or newer) and python3-venv"
  "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || fail "$("$PYTHON" --version) is too old;" \
    "install Python 3.11 or newer, and name it if it is not python3: make PYTHON=python3.12"
}

check_compiler() {
  compiler=${CXX:-g++}
  command -v "$compiler" >/dev/null || fail "$compiler was not found; install g++ 11 or newer"
  major=$("$compiler" -dumpversion | cut -d. -f1)
  # Only g++ counts this way; another compiler that CXX names must show itself able.
  case $("$compiler" --version | head -n 1) in
    *g++*) [ "$major" -ge 11 ] || fail "g++ $major is too old; install g++ 11 or newer, or name one: make CXX=g++-12" ;;
  esac
}

# A list of pyproject.toml, such as build-system.requires, as arguments for pip.
requirements() {
  "$python" - "$@" <<'END'
import sys, tomllib

with open("pyproject.toml", "rb") as file:
    metadata = tomllib.load(file)
lists = metadata["project"]["optional-dependencies"]
lists |= {"build": metadata["build-system"]["requires"], "run": metadata["project"]["dependencies"]}
print("\n".join(requirement for name in sys.argv[1:] for requirement in lists[name]))
END
}

# Reads requirements, one a line; the arguments are options of pip.
install() {
  what=$1
  shift
  cat >build/requirements.txt
  "$python" -m pip install --quiet --disable-pip-version-check --retries 2 "$@" \
    --requirement build/requirements.txt >"$log" 2>&1 ||
    fail "pip could not install $what ($(grep ^ERROR "$log" | tail -n 1)); is there a network? The log is $log"
}

make_environment() {
  [ -x .venv/bin/python ] && return
  "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null || fail "$PYTHON cannot make virtual environments;" \
    "install python3-venv (Debian: apt install python3-venv)"
  "$PYTHON" -m venv .venv >"$log" 2>&1 || fail "$PYTHON -m venv .venv failed: $(tail -n 1 "$log")"
}

install_packages() {
  check_python
  check_compiler
  make_environment
  cuda=$(cuda_of_driver)
  case $cuda in
    "") onnxruntime=onnxruntime extra=cpu ;;
    # The last onnxruntime-gpu for CUDA 12, whose libraries have other names on PyPI.
    12.*) onnxruntime=onnxruntime-gpu extra=cuda12 ;;
    *) onnxruntime=onnxruntime-gpu extra=cuda ;;
  esac
  # Both packages hold the same module, and the one installed last would half replace the other.
  for other in onnxruntime onnxruntime-gpu; do
    [ $other = $onnxruntime ] || "$python" -m pip uninstall --quiet --yes $other >"$log" 2>&1
  done
  echo "Installing $onnxruntime and what else convswap needs into .venv${cuda:+ (CUDA's libraries are about 2 GB)}"
  { requirements build run test $extra && printf 'cmake>=3.25\nninja\n'; } | install "$onnxruntime and the rest"
}

check_packages() {
  for module in numpy onnx onnx_ir onnxscript onnxruntime rich scikit_build_core pybind11; do
    "$python" -c "import $module" 2>/dev/null || fail "PYTHON_ENV=system, and $python cannot import $module;" \
      "install it there, or leave PYTHON_ENV out to have everything put into .venv"
  done
}

# NVIDIA's compiler from PyPI, in a folder of its own: onnxruntime-gpu brings a newer runtime than nvcc may need.
install_nvcc() {
  cuda=$(cuda_of_driver)
  cuda=${cuda:-13.0}
  folder=$PWD/build/cuda-$cuda
  if ! [ -x "$folder/bin/nvcc" ]; then
    [ "${cuda%%.*}" -ge 13 ] || return
    echo "Installing NVIDIA's compiler for CUDA $cuda from PyPI"
    printf '%s\n' "nvidia-cuda-nvcc==$cuda.*" "nvidia-nvvm==$cuda.*" "nvidia-cuda-crt==$cuda.*" \
      "nvidia-cuda-runtime==$cuda.*" "nvidia-cuda-cccl==${cuda%%.*}.*" |
      install "NVIDIA's compiler" --no-deps --upgrade --target "$folder/packages"
    # The layout and names that nvcc and CMake look for.
    ln -sfn packages/nvidia/cu* "$folder"/
  fi
  export CUDACXX="$folder/bin/nvcc"
}
