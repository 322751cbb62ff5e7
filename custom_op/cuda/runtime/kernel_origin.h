#pragma once

// Sources of kernels besides the kernel store and the compiler. Packs are files of kernels compiled ahead of
// time, also for cards that are absent. Session options choose among the sources.

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cuda/runtime/kernel_code.h"

namespace convswap {

class Pack {
 public:
  // Throws InvalidArgument if the file cannot be read, is not a pack, is damaged, or belongs to another
  // version of the library, whose kernels may take other arguments. `is_wanted`, if given, filters the
  // kernels that are not PTX by compute capability.
  static std::shared_ptr<const Pack> read(const std::string& path,
                                          const std::function<bool(int)>& is_wanted = nullptr);

  const std::string& path() const { return path_; }

  // Names and compute capabilities of the kernels that are not PTX.
  std::vector<std::pair<std::string, int>> contents() const;

  // Code that runs on the compute capability: compiled for it, else for an older one of the same generation,
  // else PTX for it or an older one. Null if there is none.
  const KernelCode* find(const std::string& kernel, int compute_capability) const;

 private:
  std::string path_;
  using Kernels = std::map<std::pair<std::string, int>, KernelCode>;
  Kernels kernels_, ptx_kernels_;
};

// Writes a pack atomically. Throws std::runtime_error if it cannot be written.
void write_pack(const std::string& path, const std::vector<std::pair<KernelRequest, KernelCode>>& kernels);

// A session's sources of kernels, in order: its pack, the ready-made pack beside the library, then the kernel
// store and the compiler if the session allows compilation.
struct KernelOrigin {
  std::shared_ptr<const Pack> pack;  // may be null
  bool compiles = true;
  // The parsed files of plan/catalog.h's session_files, by session entry.
  std::map<std::string, std::shared_ptr<const void>, std::less<>> files = {};
};

// The KernelOrigin for these session entries; equal arguments return the same object, which is never
// destroyed. `pack` and the values of `files` are paths, empty if not set; files are read again if they have
// changed. Null if nothing is set. Throws InvalidArgument as Pack::read and SessionFile::read do, and if a
// file cannot be read.
const KernelOrigin* kernel_origin(const std::string& pack, bool compiles,
                                  const std::map<std::string, std::string>& files = {});

// The pack ready_made.pack beside the library; null if there is none or it cannot be used.
const Pack* ready_made_kernels();

inline constexpr char kReadyMadeName[] = "ready_made.pack";

}  // namespace convswap
