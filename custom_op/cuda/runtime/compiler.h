#pragma once

// NVIDIA's run-time compiler, NVRTC, opened when a kernel is first compiled.

#include <string>
#include <vector>

#include "cuda/runtime/kernel_code.h"

namespace convswap {

class Compiler {
 public:
  virtual ~Compiler() = default;

  // 13000 for CUDA 13.0, and in words: "13.0".
  virtual int version() const = 0;
  std::string version_text() const;

  // The file that it was loaded from.
  virtual const std::string& path() const = 0;

  // What tells it from every other, also of the same version: hexadecimal digits.
  virtual const std::string& identity() const = 0;

  // The compute capabilities that it has code for, in ascending order.
  virtual const std::vector<int>& compute_capabilities() const = 0;

  // Throws std::runtime_error with the compiler's own words, which have the file and the line, where it
  // refuses the sources. Several threads may compile at once.
  virtual KernelCode compile(const KernelRequest& request) const = 0;

  // What it is told beside the sources. All of it is part of a kernel's key.
  virtual std::vector<std::string> options(const KernelRequest& request) const = 0;
};

// The newest compiler that the driver takes code of, or without a card the newest at all: the file
// $CONVSWAP_NVRTC, one that the process has loaded, one of NVIDIA's Python packages, one that the loader
// finds, or one of the CUDA toolkit. Null where there is none; `why`, if given, says so in one line.
const Compiler* find_compiler(std::string* why = nullptr);

}  // namespace convswap
