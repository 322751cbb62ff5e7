#pragma once

#include <string>

namespace convswap {

// convswap's folder in the user's cache folder, $XDG_CACHE_HOME or ~/.cache; it may not exist yet. Empty
// without a home folder.
std::string user_cache_folder();

// The value of an environment variable; empty if it is not set.
std::string environment(const char* name);

}  // namespace convswap
