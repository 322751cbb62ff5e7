#pragma once

#include <string>

namespace convswap {

// convswap's folder among the user's caches: in $XDG_CACHE_HOME, else in ~/.cache. Empty where there is no
// home folder. It need not be there yet.
std::string user_cache_folder();

// The value of a variable of the environment; empty where it is not set.
std::string environment(const char* name);

}  // namespace convswap
