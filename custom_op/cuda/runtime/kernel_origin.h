#pragma once

#include <memory>
#include <string>

#include "cuda/runtime/pack.h"

namespace convswap {

namespace lab {
class Source;
}

// Where kernels come from, as a session says: first its pack, then what lies ready beside the library, then
// the store and the compiler, if it lets them.
struct KernelOrigin {
  std::shared_ptr<const Pack> pack;  // may be null
  bool compiles = true;
  std::shared_ptr<const lab::Source> lab = nullptr;  // what the algorithm `lab` computes with; may be null
};

// What says so, the same for the same: `pack` and `lab`, files, or nothing where they are empty, read anew
// where they have changed. It lives as long as the process. Null where nothing is said. Throws
// InvalidArgument as Pack::read and lab::Source::parse do, and where `lab` cannot be read.
const KernelOrigin* kernel_origin(const std::string& pack, bool compiles, const std::string& lab = {});

// The pack beside the library, ready_made.pack; null where there is none, or where it is of another version.
const Pack* ready_made_kernels();

inline constexpr char kReadyMadeName[] = "ready_made.pack";

}  // namespace convswap
