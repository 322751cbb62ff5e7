#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "cuda/runtime/pack.h"

namespace convswap {

// Where kernels come from, as a session says: first its pack, then what lies ready beside the library, then
// the store and the compiler, if it lets them.
struct KernelOrigin {
  std::shared_ptr<const Pack> pack;  // may be null
  bool compiles = true;
  // What is in the files of plan/catalog.h's session_files, by their entries, as far as there are any.
  std::map<std::string, std::shared_ptr<const void>, std::less<>> files = {};
};

// What says so, the same for the same: `pack`, a file or empty, and `files`, paths by the entries of
// session_files, read anew where they have changed. It lives as long as the process. Null where nothing is
// said. Throws InvalidArgument as Pack::read and SessionFile::read do, and where a file cannot be read.
const KernelOrigin* kernel_origin(const std::string& pack, bool compiles,
                                  const std::map<std::string, std::string>& files = {});

// The pack beside the library, ready_made.pack; null where there is none, or where it is of another version.
const Pack* ready_made_kernels();

inline constexpr char kReadyMadeName[] = "ready_made.pack";

}  // namespace convswap
