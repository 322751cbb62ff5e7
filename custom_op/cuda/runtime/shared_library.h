#pragma once

#include <string>
#include <vector>

namespace convswap {

// A shared library opened at run time. It is never closed: functions and objects from it may be used until
// the process ends.
class SharedLibrary {
 public:
  SharedLibrary() = default;

  // Opens a path, or a name by the loader's search. On failure is_open() is false and error() is the loader's
  // message.
  static SharedLibrary open(const std::string& path);

  // The library of that name if the process has already loaded it.
  static SharedLibrary loaded(const std::string& name);

  bool is_open() const { return handle_ != nullptr; }
  const std::string& error() const { return error_; }

  // Null if the library has no such function.
  void* find(const char* function) const;

  // The file that `function` was loaded from; empty if the loader does not know.
  static std::string path_of(const void* function);

 private:
  void* handle_ = nullptr;
  std::string error_;
};

// The folders of Python packages from which this process has loaded libraries, this library among them:
// NVIDIA's packages are installed beside ONNX Runtime's.
std::vector<std::string> package_folders();

}  // namespace convswap
