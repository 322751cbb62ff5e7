#pragma once

#include <memory>
#include <string>

#include "cuda/runtime/pack.h"

namespace convswap {

// Where kernels come from, as a session says: first its pack, then what lies ready beside the library, then
// the store and the compiler, if it lets them.
struct KernelOrigin {
  std::shared_ptr<const Pack> pack;  // may be null
  bool compiles = true;
};

// What says so, the same for the same: `pack`, a file, or nothing where it is empty, read anew where it has
// changed. It lives as long as the process. Null where nothing is said. Throws InvalidArgument as Pack::read
// does.
const KernelOrigin* kernel_origin(const std::string& pack, bool compiles);

// The pack beside the library, ready_made.pack; null where there is none, or where it is of another version.
const Pack* ready_made_kernels();

inline constexpr char kReadyMadeName[] = "ready_made.pack";

}  // namespace convswap
