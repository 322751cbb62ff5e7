#pragma once

// NVIDIA's run-time compiler, NVRTC, opened when a kernel is first compiled.

#include <string>
#include <vector>

#include "cuda/runtime/kernel_code.h"

namespace convswap {

class Compiler {
 public:
  virtual ~Compiler() = default;

  // 13000 for CUDA 13.0; version_text() is "13.0".
  virtual int version() const = 0;
  std::string version_text() const;

  // The file that NVRTC was loaded from.
  virtual const std::string& path() const = 0;

  // Hexadecimal digits that differ between builds of NVRTC, even of the same version.
  virtual const std::string& identity() const = 0;

  // The compute capabilities that NVRTC generates code for, ascending.
  virtual const std::vector<int>& compute_capabilities() const = 0;

  // Throws std::runtime_error with NVRTC's log, which names file and line, if the sources do not compile.
  // Threads may compile concurrently.
  virtual KernelCode compile(const KernelRequest& request) const = 0;

  // NVRTC's command-line options. All are part of a kernel's key.
  virtual std::vector<std::string> options(const KernelRequest& request) const = 0;
};

// The newest NVRTC whose code the driver accepts, or the newest of all without a driver. Searched in this
// order: the file $CONVSWAP_NVRTC, a loaded library, NVIDIA's Python packages, the loader's path, the CUDA
// toolkit. Null if there is none; `why`, if given, then gets the reason in one line.
const Compiler* find_compiler(std::string* why = nullptr);

}  // namespace convswap
