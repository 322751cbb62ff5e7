#!/bin/sh
# Installs a wheel or a source distribution into a new virtual environment, and runs it without a compiler on the path:
#
#   sh tools/check_wheel.sh dist/convswap-0.1.0-cp312-cp312-manylinux_2_28_x86_64.whl [python3.12]
#
# pip fetches the packages that it needs. A source distribution is built first, which takes g++ and make.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${2:-python3}" -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet "$(realpath "$1")[cpu]"
cd "$folder"
clean() { env -i HOME="$folder" PATH="$folder/env/bin" "$@"; }
clean convswap --version
clean convswap doctor
clean convswap compare ece408-2019sp --data synthetic --images 16 --device cpu
clean convswap export ece408-2020 -o model.onnx
clean convswap swap model.onnx -o swapped.onnx --fuse
clean python -c "
import convswap, onnxruntime
options = onnxruntime.SessionOptions()
convswap.register(options)
onnxruntime.InferenceSession('swapped.onnx', options, providers=['CPUExecutionProvider'])
"
