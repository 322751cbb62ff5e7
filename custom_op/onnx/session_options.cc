#include "onnx/session_options.h"

#include <map>
#include <sstream>
#include <utility>
#include <vector>

#include "plan/catalog.h"

namespace convswap {
namespace {

constexpr char kPackEntry[] = "convswap.pack";
constexpr char kCompileEntry[] = "convswap.compile";
constexpr char kOverrideEntry[] = "convswap.override";
constexpr char kPrecisionEntry[] = "convswap.precision";
constexpr char kKernelsEntry[] = "convswap.kernels";
constexpr char kDisabledEntry[] = "optimization.disable_specified_optimizers";
// The first version of ONNX Runtime that can disable single optimisers.
constexpr uint32_t kDisablesOptimizersSince = 18;
// ONNX Runtime takes at most 1024 bytes, in newer versions more.
constexpr size_t kMaxNameBytes = 1000;

struct Recorder {
  bool on = false;
  std::vector<std::string> nodes;
};

thread_local Recorder recorder;

// Cuts a long name between two UTF-8 characters.
std::string shortened(const std::string& name) {
  if (name.size() <= kMaxNameBytes) return name;
  size_t end = kMaxNameBytes;
  while (end > 0 && (static_cast<unsigned char>(name[end]) & 0xC0) == 0x80) --end;
  return name.substr(0, end);
}

bool contains(const std::string& list, const std::string& name) {
  std::istringstream names(list);
  for (std::string each; std::getline(names, each, ';');) {
    if (each == name) return true;
  }
  return false;
}

// The error for an unknown value of an entry.
OnnxRuntimeError unknown_value(const char* key, const std::string& value, const char* expected) {
  return {ORT_INVALID_ARGUMENT,
          "session config entry " + std::string(key) + " is '" + value + "'; expected " + expected};
}

}  // namespace

bool has_entry(const OrtApi& api, const OrtSessionOptions* options, const char* key) {
  int present = 0;
  check(api, api.HasSessionConfigEntry(options, key, &present));
  return present != 0;
}

std::optional<std::string> entry(const OrtApi& api, const OrtSessionOptions* options, const char* key) {
  if (!has_entry(api, options, key)) return std::nullopt;
  size_t size = 0;
  check(api, api.GetSessionConfigEntry(options, key, nullptr, &size));
  std::string value(size, '\0');
  check(api, api.GetSessionConfigEntry(options, key, value.data(), &size));
  return std::string(value.c_str());
}

std::string kernel_origin_entries() {
  std::vector<std::string> entries{kPackEntry};
  std::string last = kCompileEntry;
  for (const SessionFile* file : session_files()) entries.push_back(std::exchange(last, file->entry));
  std::string text;
  for (const std::string& name : entries) text += (text.empty() ? "" : ", ") + name;
  return text + " or " + last;
}

const KernelOrigin* kernel_origin_of(const OrtApi& api, const OrtSessionOptions* options) {
  const std::string compile = entry(api, options, kCompileEntry).value_or("auto");
  if (compile != "auto" && compile != "never") throw unknown_value(kCompileEntry, compile, "auto or never");
  std::map<std::string, std::string> files;
  for (const SessionFile* file : session_files()) {
    const std::string key(file->entry);
    files.emplace(key, entry(api, options, key.c_str()).value_or(""));
  }
  return kernel_origin(entry(api, options, kPackEntry).value_or(""), compile == "auto", files);
}

bool override_requested(const OrtApi& api, const OrtSessionOptions* options) {
  const std::string value = entry(api, options, kOverrideEntry).value_or("0");
  if (value != "0" && value != "1") throw unknown_value(kOverrideEntry, value, "0 or 1");
  return value == "1";
}

Precision override_precision(const OrtApi& api, const OrtSessionOptions* options) {
  const std::string value = entry(api, options, kPrecisionEntry).value_or("tf32");
  if (value != "tf32" && value != "ieee") throw unknown_value(kPrecisionEntry, value, "tf32 or ieee");
  return parse_precision(value);
}

void disable_optimizers(const OrtApi& api, OrtSessionOptions* options,
                        std::initializer_list<const char*> names) {
  const std::string previous = entry(api, options, kDisabledEntry).value_or("");
  std::string disabled = previous;
  for (const char* name : names) {
    if (!contains(disabled, name)) disabled += (disabled.empty() ? "" : ";") + std::string(name);
  }
  if (disabled != previous) check(api, api.AddSessionConfigEntry(options, kDisabledEntry, disabled.c_str()));
}

void keep_conv_nodes(const OrtApiBase& base, const OrtApi& api, OrtSessionOptions* options) {
  if (base.GetApi(kDisablesOptimizersSince) == nullptr) {
    throw OnnxRuntimeError(
        ORT_NOT_IMPLEMENTED,
        "the override mode needs ONNX Runtime 1." + std::to_string(kDisablesOptimizersSince) +
            " or newer and this is " + base.GetVersionString() +
            ", whose optimizers would replace Conv nodes first: install a newer onnxruntime "
            "or onnxruntime-gpu, or swap the model instead");
  }
  // On the CPU provider these replace a Conv by another op: with an activation, with the addition behind a
  // Conv with bias, or in a blocked layout.
  disable_optimizers(
      api, options,
      {"ConvActivationFusion", "ConvAddActivationFusion", "NchwcTransformer", kWeightBiasQuantization});
}

void handle_kernel_recording(const OrtApi& api, OrtSessionOptions* options) {
  const std::optional<std::string> request = entry(api, options, kKernelsEntry);
  if (!request) return;
  if (*request != "record" && *request != "read") {
    throw unknown_value(kKernelsEntry, *request, "record or read");
  }
  const std::vector<std::string> nodes = std::move(recorder.nodes);
  recorder = {*request == "record", {}};
  if (recorder.on) return;
  const std::string prefix = std::string(kKernelsEntry) + ".";
  check(api,
        api.AddSessionConfigEntry(options, (prefix + "count").c_str(), std::to_string(nodes.size()).c_str()));
  for (size_t i = 0; i < nodes.size(); ++i) {
    check(api, api.AddSessionConfigEntry(options, (prefix + std::to_string(i)).c_str(), nodes[i].c_str()));
  }
}

void record_kernel(const std::string& node) {
  if (recorder.on) recorder.nodes.push_back(shortened(node));
}

}  // namespace convswap
