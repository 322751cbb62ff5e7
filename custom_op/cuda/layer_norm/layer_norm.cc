// LayerNormalization over the last axis. The kernel is bound by memory: it reads x once and writes y once. A
// team of lanes of a warp normalises a row from registers, with the mean first and then the mean of the
// squared differences. Neighbouring lanes hold neighbouring vectors of 16 bytes. The blocks that the card
// holds at once go through the rows together, so that each thread loads scale and bias once.

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "conv/arithmetic.h"
#include "cuda/host/formats.h"
#include "cuda/host/kernel_plan.h"
#include "cuda/host/text.h"
#include "cuda/layer_norm/arguments.h"
#include "plan/op_stage.h"

namespace convswap {
namespace layer_norm {
namespace {

constexpr int kMaxTeam = 32;

std::string instance_of(std::string_view element, int vectors) {
  return instance_name("layer_norm::kernel", element, std::to_string(vectors));
}

// Float64 is rare: its elements are loaded one by one.
bool has_vectors(std::string_view element) { return element != element_name(ElementType::float64); }

std::vector<std::string> all_instances() {
  std::vector<std::string> names;
  for (const std::string_view element : kElements) {
    for (const int vectors : kInstances) {
      if (vectors == 0 || has_vectors(element)) names.push_back(instance_of(element, vectors));
    }
  }
  return names;
}

const KernelRegistration registration({.header = "cuda/layer_norm/kernel.cuh", .instances = all_instances()});

struct Family {
  struct Tiling {
    LayerNormProblem problem;
    int team = kMaxTeam, vectors = 0;  // of a lane; 0 if elements are loaded one by one
    int64_t row_vectors = 0;
  };
  using Arguments = layer_norm::Arguments<void>;

  // Chooses the team with the fewest idle lanes; among equals, the largest whose lanes have two vectors.
  static Tiling tiling_of(const LayerNormProblem& problem) {
    Tiling best{problem};
    const int64_t bytes = problem.length * bytes_per_element(problem.type), row_vectors = bytes / 16;
    const bool fits = bytes % 16 == 0 && row_vectors <= kMaxTeam * kMaxVectors;
    if (!fits || !has_vectors(element_name(problem.type))) return best;
    for (int team = kMaxTeam; team > 0; team /= 2) {
      const int64_t vectors = ceil_divide(row_vectors, int64_t{team});
      if (vectors > kMaxVectors || (vectors == 1 && row_vectors > 1)) continue;
      if (best.vectors == 0 || team * vectors < best.team * best.vectors)
        best = {problem, team, narrow(vectors), row_vectors};
    }
    return best;
  }

  static std::string name(const Tiling&) { return "layer_norm"; }

  static std::string kernel_name(const ConvProblem&, const Tiling& tiling) {
    return instance_of(element_name(tiling.problem.type), tiling.vectors);
  }

  static Arguments arguments_of(const ConvProblem&, const Device&, const Tiling& tiling) {
    Arguments to{};
    to.rows = tiling.problem.rows;
    to.length = tiling.problem.length;
    to.epsilon = tiling.problem.epsilon;
    to.team = tiling.team;
    to.warp_rows = kMaxTeam / tiling.team;
    to.row_vectors = narrow(tiling.row_vectors);
    return to;
  }

  // Tensors that are not aligned for vectors are normalised element by element.
  static void bind(const ConvProblem&, const Tiling&, const ConvTensors& tensors, Arguments& arguments) {
    const ConvTensors parameters{.x = tensors.w, .z = tensors.b};
    if (!are_aligned(tensors, 16) || !are_aligned(parameters, 16)) arguments.row_vectors = 0;
  }

  static int threads(const Tiling&) { return kThreads; }
  static int64_t shared_bytes(const Tiling&) { return 0; }

  static Dim3 grid_of(const ConvProblem&, const Device& device, const Tiling& tiling, const Launch& launch) {
    const int64_t blocks = ceil_divide(tiling.problem.rows, int64_t{kThreads / tiling.team});
    const int64_t resident = int64_t{std::max(1, device.multiprocessors)} * resident_blocks(launch);
    return {static_cast<unsigned>(std::min(blocks, resident))};
  }

  static std::string describe(const ConvProblem&, const Tiling& tiling, const Launch& launch) {
    return joined(tiling.problem.text(), ", ", tiling.team, " lanes with ", tiling.vectors,
                  " vectors per row, ", text_of(launch));
  }
};

class Stage final : public LayerNormStage {
 public:
  std::unique_ptr<Plan> make(const LayerNormProblem& problem, const Device& device) const override {
    return std::make_unique<KernelPlan<Family>>(ConvProblem{}, device, Family::tiling_of(problem));
  }

  std::vector<std::string> kernels(const LayerNormProblem& problem, const Device&) const override {
    return {Family::kernel_name({}, Family::tiling_of(problem))};
  }
};

}  // namespace
}  // namespace layer_norm

const LayerNormStage& cuda_layer_norm_stage() {
  static const layer_norm::Stage stage;
  return stage;
}

}  // namespace convswap
