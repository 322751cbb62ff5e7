#pragma once

// Where kernels come from beside the store and the compiler: packs, files with kernels that were made ahead
// of time, for cards that need not be there, and what a session says.

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
  // Throws InvalidArgument where the file cannot be read, is no pack or is damaged, and where it is of
  // another version of the library, whose kernels may take other arguments.
  // `is_wanted`, if given, is asked of the compute capability of each kernel that is not portable; others are
  // left out.
  static std::shared_ptr<const Pack> read(const std::string& path,
                                          const std::function<bool(int)>& is_wanted = nullptr);

  const std::string& path() const { return path_; }

  // The kernels' names, each with the compute capability that it is for, without those that are portable.
  std::vector<std::pair<std::string, int>> contents() const;

  // The code that a card of the compute capability runs: its own, else that of an older card of its
  // generation, else what is portable (PTX) and older than it. Null where there is none.
  const KernelCode* find(const std::string& kernel, int compute_capability) const;

 private:
  std::string path_;
  using Kernels = std::map<std::pair<std::string, int>, KernelCode>;
  Kernels kernels_, portable_;
};

// Writes a pack, whole or not at all. Throws std::runtime_error where it cannot be written.
void write_pack(const std::string& path, const std::vector<std::pair<KernelRequest, KernelCode>>& kernels);

// Where kernels come from, as a session says: first its pack, then what lies ready beside the library, then
// the store and the compiler, if it lets them.
struct KernelOrigin {
  std::shared_ptr<const Pack> pack;  // may be null
  bool compiles = true;
  // What is in the files of plan/catalog.h's session_files, by their entries, as far as there are any.
  std::map<std::string, std::shared_ptr<const void>, std::less<>> files = {};
};

// What says so, the same for the same: `pack`, a file, and `files`, by the entries of session_files, each
// empty where there is none, read anew where they have changed. It lives as long as the process. Null where
// nothing is said. Throws InvalidArgument as Pack::read and SessionFile::read do, and where a file cannot be
// read.
const KernelOrigin* kernel_origin(const std::string& pack, bool compiles,
                                  const std::map<std::string, std::string>& files = {});

// The pack beside the library, ready_made.pack; null where there is none, or where it is of another version.
const Pack* ready_made_kernels();

inline constexpr char kReadyMadeName[] = "ready_made.pack";

}  // namespace convswap
