#pragma once

#include <string>
#include <vector>

namespace convswap {

// A shared library that is opened while the program runs. It stays open: what came of it may live as long as
// the process.
class SharedLibrary {
 public:
  SharedLibrary() = default;

  // By a path, or by a name that the loader looks for; where it cannot be opened, is_open() is false and
  // error() has the loader's words.
  static SharedLibrary open(const std::string& path);

  // One of that name that the process has loaded already, if there is one.
  static SharedLibrary loaded(const std::string& name);

  bool is_open() const { return handle_ != nullptr; }
  const std::string& error() const { return error_; }

  // Null where the library has no such function.
  void* find(const char* function) const;

  // The file that `function`, one of the library's, was loaded from; empty where the loader does not tell.
  static std::string path_of(const void* function);

 private:
  void* handle_ = nullptr;
  std::string error_;
};

// The folders of Python packages that something of this process was loaded from, this library among them:
// where NVIDIA's packages lie beside ONNX Runtime's.
std::vector<std::string> package_folders();

}  // namespace convswap
