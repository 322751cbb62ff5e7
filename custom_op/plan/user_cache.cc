#include "plan/user_cache.h"

#include <pwd.h>
#include <unistd.h>

#include <cstdlib>

namespace convswap {
namespace {

// Returns "" without a home folder.
std::string home_folder() {
  if (std::string home = environment("HOME"); !home.empty()) return home;
  passwd entry{};
  passwd* found = nullptr;
  std::string strings(16384, '\0');
  getpwuid_r(getuid(), &entry, strings.data(), strings.size(), &found);
  return found == nullptr ? "" : entry.pw_dir;
}

}  // namespace

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string user_cache_folder() {
  std::string cache = environment("XDG_CACHE_HOME");
  // The XDG Base Directory Specification ignores relative paths.
  if (cache.empty() || cache.front() != '/') {
    const std::string home = home_folder();
    if (home.empty()) return {};
    cache = home + "/.cache";
  }
  return cache + "/convswap";
}

}  // namespace convswap
