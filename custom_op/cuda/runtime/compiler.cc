#include "cuda/runtime/compiler.h"

#include <dirent.h>
#include <link.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <utility>

#include "cuda/runtime/driver.h"
#include "cuda/runtime/kernel_sources.h"
#include "cuda/runtime/shared_library.h"
#include "plan/background.h"

namespace convswap {
namespace {

// NVRTC's functions, as every version since CUDA 12.0 has them. They return 0 on success.
using Program = void*;
#define CONVSWAP_NVRTC_FUNCTIONS(FUNCTION)                                                     \
  FUNCTION(Version, (int* major, int* minor))                                                  \
  FUNCTION(GetNumSupportedArchs, (int* count))                                                 \
  FUNCTION(GetSupportedArchs, (int* architectures))                                            \
  FUNCTION(CreateProgram, (Program * program, const char* text, const char* name, int headers, \
                           const char* const* texts, const char* const* names))                \
  FUNCTION(DestroyProgram, (Program * program))                                                \
  FUNCTION(AddNameExpression, (Program program, const char* expression))                       \
  FUNCTION(CompileProgram, (Program program, int options, const char* const* texts))           \
  FUNCTION(GetProgramLogSize, (Program program, size_t* bytes))                                \
  FUNCTION(GetProgramLog, (Program program, char* log))                                        \
  FUNCTION(GetLoweredName, (Program program, const char* expression, const char** name))       \
  FUNCTION(GetCUBINSize, (Program program, size_t* bytes))                                     \
  FUNCTION(GetCUBIN, (Program program, char* binary))                                          \
  FUNCTION(GetPTXSize, (Program program, size_t* bytes))                                       \
  FUNCTION(GetPTX, (Program program, char* text))

struct Functions {
#define CONVSWAP_MEMBER(name, parameters) int(*name) parameters = nullptr;
  CONVSWAP_NVRTC_FUNCTIONS(CONVSWAP_MEMBER)
#undef CONVSWAP_MEMBER
};

constexpr int kOldestMajor = 12, kNewestMajor = 13;
// NVRTC has its own compilation cache since this version.
constexpr int kFirstVersionWithCache = 12090;

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

// The build ID of a loaded library in hexadecimal digits; the file's size and modification time if it has
// none.
std::string identity_of(const std::string& path) {
  struct Query {
    std::string path, build_id;
  } query{path, {}};
  const auto read_build_id = [](dl_phdr_info* info, size_t, void* data) {
    Query& query = *static_cast<Query*>(data);
    if (info->dlpi_name == nullptr || query.path != info->dlpi_name) return 0;
    for (int i = 0; i < info->dlpi_phnum; ++i) {
      const ElfW(Phdr) & header = info->dlpi_phdr[i];
      if (header.p_type != PT_NOTE) continue;
      const char* at = reinterpret_cast<const char*>(info->dlpi_addr + header.p_vaddr);
      const char* const end = at + header.p_memsz;
      while (at + sizeof(ElfW(Nhdr)) <= end) {
        ElfW(Nhdr) note;
        std::memcpy(&note, at, sizeof note);
        const char* const name = at + sizeof note;
        const auto* const bytes = reinterpret_cast<const unsigned char*>(name + (note.n_namesz + 3) / 4 * 4);
        if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && std::memcmp(name, "GNU", 4) == 0) {
          char digits[3];
          for (unsigned j = 0; j < std::min(note.n_descsz, 8u); ++j) {
            std::snprintf(digits, sizeof digits, "%02x", bytes[j]);
            query.build_id += digits;
          }
          return 1;
        }
        at = reinterpret_cast<const char*>(bytes) + (note.n_descsz + 3) / 4 * 4;
      }
    }
    return 1;
  };
  dl_iterate_phdr(read_build_id, &query);
  struct stat facts{};
  if (query.build_id.empty() && stat(path.c_str(), &facts) == 0) {
    char digits[40];
    std::snprintf(digits, sizeof digits, "%llx%llx", static_cast<unsigned long long>(facts.st_size),
                  static_cast<unsigned long long>(facts.st_mtim.tv_sec));
    query.build_id = digits;
  }
  return query.build_id;
}

// Loads libnvrtc-builtins, which libnvrtc from a Python package does not find by itself.
void load_builtins(const std::string& folder) {
  DIR* const directory = opendir(folder.c_str());
  if (directory == nullptr) return;
  while (const dirent* entry = readdir(directory)) {
    const std::string name = entry->d_name;
    if (name.starts_with("libnvrtc-builtins.so."))
      static_cast<void>(SharedLibrary::open(folder + "/" + name));
  }
  closedir(directory);
}

class Nvrtc final : public Compiler {
 public:
  // Null if the library is not NVRTC, or if its CUDA version is older than kOldestMajor or newer than
  // `newest_major`.
  static std::unique_ptr<Nvrtc> make(const SharedLibrary& library, int newest_major) {
    auto nvrtc = std::make_unique<Nvrtc>();
    Functions& functions = nvrtc->functions_;
#define CONVSWAP_FIND(name, parameters)                                                     \
  functions.name = reinterpret_cast<decltype(functions.name)>(library.find("nvrtc" #name)); \
  if (functions.name == nullptr) return nullptr;
    CONVSWAP_NVRTC_FUNCTIONS(CONVSWAP_FIND)
#undef CONVSWAP_FIND
    int major = 0, minor = 0, count = 0;
    if (functions.Version(&major, &minor) != 0 || major < kOldestMajor || major > newest_major)
      return nullptr;
    nvrtc->version_ = major * 1000 + minor * 10;
    if (functions.GetNumSupportedArchs(&count) != 0 || count <= 0) return nullptr;
    nvrtc->capabilities_.resize(static_cast<size_t>(count));
    if (functions.GetSupportedArchs(nvrtc->capabilities_.data()) != 0) return nullptr;
    nvrtc->path_ = SharedLibrary::path_of(reinterpret_cast<const void*>(functions.Version));
    nvrtc->identity_ = identity_of(nvrtc->path_);
    load_builtins(folder_of(nvrtc->path_));
    return nvrtc;
  }

  int version() const override { return version_; }
  const std::string& path() const override { return path_; }
  const std::string& identity() const override { return identity_; }
  const std::vector<int>& compute_capabilities() const override { return capabilities_; }

  std::vector<std::string> options(const KernelRequest& request) const override {
    std::vector<std::string> options = {"--gpu-architecture=" + architecture(request), "--std=c++20",
                                        "-default-device"};
    // With line information, profilers and compute-sanitizer show source lines.
    if (const char* value = std::getenv("CONVSWAP_LINE_INFO"); value != nullptr && *value != '\0') {
      options.emplace_back("-lineinfo");
    }
    return options;
  }

  KernelCode compile(const KernelRequest& request) const override {
    const TaskGuard guard;
    std::vector<const char*> texts, names;
    for (std::size_t i = 0; i < kKernelSourceCount; ++i) {
      texts.push_back(kKernelSources[i].text);
      names.push_back(kKernelSources[i].name);
    }
    const bool is_library_kernel = request.program.empty();
    const std::string text = is_library_kernel
                                 ? "#include \"" + request.header + "\"\nusing namespace convswap;\n"
                                 : request.program;
    Program program = nullptr;
    check(functions_.CreateProgram(&program, text.c_str(),
                                   is_library_kernel ? "kernel.cu" : request.header.c_str(),
                                   static_cast<int>(texts.size()), texts.data(), names.data()),
          request, "cannot create a program");
    const auto destroy = [this](void* pointer) {
      Program owned = pointer;
      functions_.DestroyProgram(&owned);
    };
    const std::unique_ptr<void, decltype(destroy)> owner(program, destroy);
    const std::string variable = request.variable.empty() ? "" : "&" + request.variable;
    check(functions_.AddNameExpression(program, request.kernel.c_str()), request, "there is no such kernel");
    if (!variable.empty()) {
      check(functions_.AddNameExpression(program, variable.c_str()), request, "there is no such variable");
    }
    std::vector<std::string> option_texts = options(request);
    if (version_ >= kFirstVersionWithCache) option_texts.emplace_back("--no-cache");
    std::vector<const char*> option_pointers;
    for (const std::string& option : option_texts) option_pointers.push_back(option.c_str());
    const int result =
        functions_.CompileProgram(program, static_cast<int>(option_pointers.size()), option_pointers.data());
    if (result != 0) check(result, request, log_of(program));
    KernelCode code;
    code.symbol = symbol_of(program, request, request.kernel);
    if (!variable.empty()) code.variable_symbol = symbol_of(program, request, variable);
    size_t bytes = 0;
    const bool is_portable = request.is_portable || !supports(request.compute_capability);
    check(is_portable ? functions_.GetPTXSize(program, &bytes) : functions_.GetCUBINSize(program, &bytes),
          request, "no code was generated");
    code.binary.resize(bytes);
    check(is_portable ? functions_.GetPTX(program, code.binary.data())
                      : functions_.GetCUBIN(program, code.binary.data()),
          request, "no code was generated");
    return code;
  }

 private:
  bool supports(int capability) const {
    return std::find(capabilities_.begin(), capabilities_.end(), capability) != capabilities_.end();
  }

  // Code for compute capability 9.0 is compiled as sm_90a, for instructions that only Hopper has. A card
  // newer than the compiler gets PTX of the newest architecture that the compiler knows, which the driver
  // compiles.
  std::string architecture(const KernelRequest& request) const {
    const int capability = request.compute_capability;
    if (supports(capability) && request.is_portable) return "compute_" + std::to_string(capability);
    if (supports(capability)) return "sm_" + std::to_string(capability) + (capability == 90 ? "a" : "");
    int older = capabilities_.front();
    for (const int candidate : capabilities_) {
      if (candidate < capability) older = candidate;
    }
    return "compute_" + std::to_string(older);
  }

  void check(int result, const KernelRequest& request, const std::string& reason) const {
    if (result == 0) return;
    throw std::runtime_error("NVRTC " + version_text() + " (" + path_ + ") cannot compile " + request.kernel +
                             " for compute capability " + std::to_string(request.compute_capability / 10) +
                             "." + std::to_string(request.compute_capability % 10) + ": " + reason +
                             " (result " + std::to_string(result) + ")");
  }

  std::string log_of(Program program) const {
    size_t bytes = 0;
    if (functions_.GetProgramLogSize(program, &bytes) != 0 || bytes <= 1) return "it gives no reason";
    std::string log(bytes, '\0');
    if (functions_.GetProgramLog(program, log.data()) != 0) return "it gives no reason";
    log.resize(std::strlen(log.c_str()));
    return log;
  }

  std::string symbol_of(Program program, const KernelRequest& request, const std::string& expression) const {
    const char* symbol = nullptr;
    check(functions_.GetLoweredName(program, expression.c_str(), &symbol), request,
          "no symbol has this name");
    return symbol;
  }

  Functions functions_;
  int version_ = 0;
  std::string path_, identity_;
  std::vector<int> capabilities_;
};

// File names to try for a major version of NVRTC, in order.
std::vector<std::string> candidates(int major) {
  const std::string name = "libnvrtc.so." + std::to_string(major);
  std::vector<std::string> paths;
  for (const std::string& folder : package_folders()) {
    paths.push_back(folder + "/nvidia/cu" + std::to_string(major) + "/lib/" + name);
    paths.push_back(folder + "/nvidia/cuda_nvrtc/lib/" + name);
  }
  paths.push_back(name);
  for (const char* variable : {"CUDA_PATH", "CUDA_HOME"}) {
    if (const char* toolkit = std::getenv(variable)) paths.push_back(std::string(toolkit) + "/lib64/" + name);
  }
  paths.push_back("/usr/local/cuda/lib64/" + name);
  return paths;
}

struct CompilerSearchResult {
  std::unique_ptr<Nvrtc> compiler;
  std::string why_not;
};

CompilerSearchResult search_for_compiler() {
  const Driver* const driver = find_driver();
  const int newest_major = driver == nullptr ? kNewestMajor : std::min(kNewestMajor, driver->version / 1000);
  if (const char* named = std::getenv("CONVSWAP_NVRTC"); named != nullptr && *named != '\0') {
    const SharedLibrary library = SharedLibrary::open(named);
    std::unique_ptr<Nvrtc> compiler = library.is_open() ? Nvrtc::make(library, newest_major) : nullptr;
    if (compiler) return {std::move(compiler), {}};
    return {nullptr, "CONVSWAP_NVRTC is " + std::string(named) + ", which is not NVRTC of CUDA 12 to " +
                         std::to_string(newest_major) + (library.is_open() ? "" : ": " + library.error())};
  }
  for (int major = newest_major; major >= kOldestMajor; --major) {
    const SharedLibrary loaded = SharedLibrary::loaded("libnvrtc.so." + std::to_string(major));
    if (loaded.is_open()) {
      if (std::unique_ptr<Nvrtc> compiler = Nvrtc::make(loaded, newest_major))
        return {std::move(compiler), {}};
    }
    for (const std::string& path : candidates(major)) {
      const SharedLibrary library = SharedLibrary::open(path);
      if (!library.is_open()) continue;
      if (std::unique_ptr<Nvrtc> compiler = Nvrtc::make(library, newest_major))
        return {std::move(compiler), {}};
    }
  }
  return {nullptr,
          "NVIDIA's run-time compiler NVRTC was not found, which compiles the kernels: install it with "
          "pip install nvidia-cuda-nvrtc" +
              std::string(newest_major < 13 ? "-cu12" : "") + ", or name its file in CONVSWAP_NVRTC"};
}

}  // namespace

std::string Compiler::version_text() const {
  return std::to_string(version() / 1000) + "." + std::to_string(version() % 1000 / 10);
}

const Compiler* find_compiler(std::string* why) {
  // Never destroyed, since threads may still compile while the process ends.
  static const CompilerSearchResult& search = *new CompilerSearchResult(search_for_compiler());
  if (why != nullptr) *why = search.why_not;
  return search.compiler.get();
}

}  // namespace convswap
