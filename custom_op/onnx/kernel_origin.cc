#include "onnx/kernel_origin.h"

#include <string>

#include "onnx/entries.h"

namespace convswap {
namespace {

constexpr char kPackEntry[] = "convswap.pack";
constexpr char kCompileEntry[] = "convswap.compile";
constexpr char kLabEntry[] = "convswap.lab";

}  // namespace

const KernelOrigin* kernel_origin_of(const OrtApi& api, const OrtSessionOptions* options) {
  const std::string compile = entry(api, options, kCompileEntry).value_or("auto");
  if (compile != "auto" && compile != "never") throw unknown_value(kCompileEntry, compile, "auto or never");
  return kernel_origin(entry(api, options, kPackEntry).value_or(""), compile == "auto",
                       entry(api, options, kLabEntry).value_or(""));
}

}  // namespace convswap
