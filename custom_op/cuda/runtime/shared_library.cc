#include "cuda/runtime/shared_library.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <string_view>
#include <utility>

namespace convswap {

SharedLibrary SharedLibrary::open(const std::string& path) {
  SharedLibrary library;
  library.handle_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library.handle_ == nullptr) {
    const char* message = dlerror();
    library.error_ = message == nullptr ? "the loader gives no reason" : message;
  }
  return library;
}

SharedLibrary SharedLibrary::loaded(const std::string& name) {
  SharedLibrary library;
  library.handle_ = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  return library;
}

void* SharedLibrary::find(const char* function) const { return dlsym(handle_, function); }

std::string SharedLibrary::path_of(const void* function) {
  Dl_info facts{};
  return dladdr(function, &facts) == 0 || facts.dli_fname == nullptr ? "" : facts.dli_fname;
}

std::vector<std::string> package_folders() {
  std::vector<std::string> folders;
  const auto add_package_folder = [](dl_phdr_info* info, size_t, void* data) {
    auto& found = *static_cast<std::vector<std::string>*>(data);
    const std::string_view path = info->dlpi_name == nullptr ? "" : info->dlpi_name;
    for (const std::string_view name : {"/site-packages/", "/dist-packages/"}) {
      const size_t at = path.rfind(name);
      if (at == std::string_view::npos) continue;
      std::string folder(path.substr(0, at + name.size() - 1));
      if (std::find(found.begin(), found.end(), folder) == found.end()) found.push_back(std::move(folder));
    }
    return 0;
  };
  dl_iterate_phdr(add_package_folder, &folders);
  return folders;
}

}  // namespace convswap
