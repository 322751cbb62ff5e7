// The CPU's algorithm: float32 accumulators in the processor's widest vectors. The vectorised dimension
// depends on the problem:
//
//   row_lanes.cc        columns of a row, for filters of few channels
//   channel_lanes.cc    channels, for depthwise filters on small images
//   position_lanes.cc   positions of an image, for all others

#include "cpu/direct.h"

#include <algorithm>
#include <string>

#include "conv/error.h"
#include "cpu/direct_plans.h"
#include "plan/user_cache.h"

namespace convswap {
namespace {

// Bounds the image buffer, which each thread keeps for the next run.
constexpr int64_t kMaxImageElements = 64 << 20;

constexpr const char* kMaxVariable = "CONVSWAP_MAX_INSTRUCTION_SET";

struct InstructionSet {
  std::string_view name;
  bool available;
  const PositionLanesKernels& position_lanes;
  const RowLanesKernels& row_lanes;
  const ChannelLanesKernels& channel_lanes;
};

std::vector<InstructionSet> compiled_instruction_sets() {
  return {
      {"avx512", __builtin_cpu_supports("avx512f") != 0, position_lanes_kernels_avx512(),
       row_lanes_kernels_avx512(), channel_lanes_kernels_avx512()},
      {"avx2", __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"), position_lanes_kernels_avx2(),
       row_lanes_kernels_avx2(), channel_lanes_kernels_avx2()},
      {"baseline", true, position_lanes_kernels_baseline(), row_lanes_kernels_baseline(),
       channel_lanes_kernels_baseline()},
  };
}

// The instruction sets up to $CONVSWAP_MAX_INSTRUCTION_SET. Tests set it to cover other processors.
std::vector<InstructionSet> allowed_instruction_sets() {
  const std::vector<InstructionSet> all = compiled_instruction_sets();
  const std::string name = environment(kMaxVariable);
  if (name.empty()) return all;
  const auto best = std::ranges::find_if(all, [&](const InstructionSet& set) { return set.name == name; });
  if (best != all.end()) return {best, all.end()};
  std::vector<std::string> known;
  for (const InstructionSet& set : all) known.emplace_back(set.name);
  throw InvalidArgument(std::string(kMaxVariable) + ": " +
                        unknown_name_message("instruction set", name, known));
}

const std::vector<InstructionSet>& instruction_sets() {
  static const std::vector<InstructionSet> sets = allowed_instruction_sets();
  return sets;
}

class Direct final : public Algorithm {
 public:
  std::string_view name() const override { return "direct"; }
  DeviceKind device_kind() const override { return DeviceKind::cpu; }

  Offer offer(const ConvProblem& problem, const Device&) const override {
    if (problem.type == ElementType::float64) {
      return Offer::refusal("it computes in float32 and the data are float64");
    }
    if (min_image_elements(problem) > kMaxImageElements) {
      return Offer::refusal(
          "the part of the image that one row of results needs, with its channels and dilation, exceeds " +
          std::to_string(kMaxImageElements * 4 >> 20) + " MiB");
    }
    return {
        {}, std::nullopt, [problem] { return make_direct_plan(problem, direct_instruction_sets().front()); }};
  }
};

}  // namespace

std::vector<std::string_view> direct_instruction_sets() {
  std::vector<std::string_view> names;
  for (const InstructionSet& set : instruction_sets()) {
    if (set.available) names.push_back(set.name);
  }
  return names;
}

std::unique_ptr<Plan> make_direct_plan(const ConvProblem& problem, std::string_view instruction_set) {
  for (const InstructionSet& set : instruction_sets()) {
    if (!set.available || set.name != instruction_set) continue;
    if (suits_channel_lanes(problem, set.channel_lanes)) {
      return make_channel_lanes_plan(problem, set.channel_lanes, set.name);
    }
    if (suits_row_lanes(problem, set.row_lanes.lanes)) {
      return make_row_lanes_plan(problem, set.row_lanes, set.name);
    }
    return make_position_lanes_plan(problem, set.position_lanes, set.row_lanes, set.name);
  }
  std::vector<std::string> known;
  for (const std::string_view name : direct_instruction_sets()) known.emplace_back(name);
  throw InvalidArgument(unknown_name_message("instruction set", instruction_set, known));
}

const Algorithm& cpu_direct() {
  static const Direct algorithm;
  return algorithm;
}

}  // namespace convswap
