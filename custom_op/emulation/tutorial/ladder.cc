// Checks a rung's kernels on the CPU: `ladder NAME FIRST END`, see problems.cc. The build generates
// rung_kernels.h, which includes the kernels of all rungs, and rungs.inc, which lists the rungs:
// CONVSWAP_RUNG(02_global_adds) ...

#include "cuda_emulation.h"

namespace convswap::ladder {
alignas(128) float shared[emulation::kSharedBytes / sizeof(float)];  // the kernels declare it as extern
}  // namespace convswap::ladder

#include "compiled.h"
#include "cuda/host/kernels.h"
#include "cuda/tutorial/ladder/constant_bank.h"
#include "cuda/tutorial/ladder/course_layers.h"
#include "cuda/tutorial/ladder/no_bias.h"
#include "plan/epilogue_stage.h"
#include "rung_kernels.h"
//
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "host.h"
#include "problems.h"

namespace convswap {

const EpilogueStage* epilogue_stage(DeviceKind) { return nullptr; }  // rungs have no epilogue
const EpilogueStage* code_pool_stage(DeviceKind) { return nullptr; }

void enqueue(const Launch& launch, void*, void** arguments) {
  run_kernel<ladder::Convolution>(launch, arguments, ladder::shared);
}

namespace ladder {
namespace {

// Kernels with an instance for each layer of the course.
template <int... kIndex>
std::vector<CompiledKernel> course_kernels(std::integer_sequence<int, kIndex...>) {
  return {CompiledKernel(kCourseLayers[kIndex].instance("ladder::constants"),
                         constants<kCourseLayers[kIndex].channels, kCourseLayers[kIndex].size,
                                   kCourseLayers[kIndex].filters, kCourseLayers[kIndex].filter>)...,
          CompiledKernel(kCourseLayers[kIndex].instance("ladder::constant_memory"),
                         constant_memory<kCourseLayers[kIndex].channels, kCourseLayers[kIndex].size,
                                         kCourseLayers[kIndex].filters, kCourseLayers[kIndex].filter>)...};
}

#define CONVSWAP_KERNEL(...) CompiledKernel("ladder::" #__VA_ARGS__, __VA_ARGS__)
const CompiledKernels kernels({CONVSWAP_KERNEL(global_adds),          CONVSWAP_KERNEL(register_sum),
                               CONVSWAP_KERNEL(shared_memory),        CONVSWAP_KERNEL(flat_blocks),
                               CONVSWAP_KERNEL(block_per_image),      CONVSWAP_KERNEL(array_of_outputs<4>),
                               CONVSWAP_KERNEL(array_of_outputs<6>),  CONVSWAP_KERNEL(array_of_outputs<12>),
                               CONVSWAP_KERNEL(array_of_outputs<16>), CONVSWAP_KERNEL(array_of_outputs<24>),
                               CONVSWAP_KERNEL(array_of_outputs<50>), CONVSWAP_KERNEL(unrolled<6, 5>),
                               CONVSWAP_KERNEL(unrolled<12, 5>),      CONVSWAP_KERNEL(unrolled<16, 5>),
                               CONVSWAP_KERNEL(unrolled<24, 5>),      CONVSWAP_KERNEL(unrolled<50, 5>),
                               CONVSWAP_KERNEL(unrolled<4, 7>),       CONVSWAP_KERNEL(unrolled<12, 7>),
                               CONVSWAP_KERNEL(unrolled<16, 7>),      CONVSWAP_KERNEL(unrolled<24, 7>),
                               CONVSWAP_KERNEL(write_columns),        CONVSWAP_KERNEL(multiply_columns),
                               CONVSWAP_KERNEL(fused_im2col),         CONVSWAP_KERNEL(evaluate_filters<5>),
                               CONVSWAP_KERNEL(evaluate_filters<7>),  CONVSWAP_KERNEL(winograd<5>),
                               CONVSWAP_KERNEL(winograd<7>),          CONVSWAP_KERNEL(tensor_cores)});
#undef CONVSWAP_KERNEL
const CompiledKernels for_course(
    course_kernels(std::make_integer_sequence<int, static_cast<int>(kCourseLayers.size())>()));

}  // namespace
}  // namespace ladder

void* find_variable(const std::string&, const Device&) { return ladder::filters_of_layer; }

#define CONVSWAP_RUNG(rung_name) const Algorithm& cuda_ladder_##rung_name();
#include "rungs.inc"
#undef CONVSWAP_RUNG

void with_constants(void* constants, const void* source, size_t bytes, void*,
                    const std::function<void()>& launch) {
  std::memcpy(constants, source, bytes);
  launch();
}

const float* ladder::no_bias(int) {
  static const float zeros[kMaxFilters] = {};
  return zeros;
}

namespace {

const Algorithm* find_rung(const std::string& name) {
#define CONVSWAP_RUNG(rung_name) \
  if (name == "ladder_" #rung_name) return &cuda_ladder_##rung_name();
#include "rungs.inc"
#undef CONVSWAP_RUNG
  return nullptr;
}

// The first seeds draw the layers of the course in order. Later seeds draw one of them or a similar problem,
// small enough to be computed thread by thread.
ConvProblem draw_rung_problem(Random& random, int seed) {
  constexpr int kLayers = static_cast<int>(ladder::kCourseLayers.size());
  constexpr int64_t kFilters[] = {4, 6, 12, 16, 24, 50};
  ConvProblem p;
  p.precision = Precision::ieee;
  p.batch = between(random, 1, 3);
  p.has_bias = one_in(random, 2);
  if (seed < kLayers || one_in(random, 2)) {
    const auto number = seed < kLayers ? seed : between(random, 0, kLayers - 1);
    const ladder::Layer& layer = ladder::kCourseLayers[static_cast<std::size_t>(number)];
    p.batch = 1;
    p.in_channels = layer.channels;
    p.out_channels = layer.filters;
    p.input = {1, layer.size, layer.size};
    p.filter = {1, layer.filter, layer.filter};
  } else {
    p.in_channels = between(random, 1, 4);
    p.out_channels = one_in(random, 3) ? between(random, 1, 40) : kFilters[between(random, 0, 5)];
    const int64_t square = one_in(random, 2) ? 5 : 7;
    const bool is_square = !one_in(random, 3);
    for (int axis = 1; axis < 3; ++axis) {
      p.filter[axis] = is_square ? square : between(random, 1, 9);
      p.input[axis] = p.filter[axis] + between(random, 0, 40);
    }
  }
  for (int axis = 1; axis < 3; ++axis) p.output[axis] = p.input[axis] - p.filter[axis] + 1;
  p.result = p.output;
  return p;
}

// True if the problem of a seed is computed correctly or refused. `computed` counts the problems that the
// rung takes.
bool check_rung_seed(const Algorithm& rung, int seed, int& computed) {
  Random random(seed);
  ConvProblem problem = draw_rung_problem(random, seed);
  Device device = draw_device(random);
  device.shared_memory_per_block = 232'448;
  Offer offer = rung.offer(problem, device);
  if (offer.is_refusal()) {
    problem.precision = Precision::tf32;
    offer = rung.offer(problem, device);
  }
  if (offer.is_refusal()) return true;
  ++computed;
  // A Winograd transform mixes all numbers of a tile: an infinity spreads, and a large number absorbs small
  // ones.
  const bool mixes = rung.name().find("winograd") != std::string_view::npos;
  return computes_float32(offer, problem, random, mixes ? Values::normal : Values::any);
}

}  // namespace
}  // namespace convswap

int main(int count, char** arguments) {
  using namespace convswap;
  const Algorithm* const rung = count == 4 ? find_rung(arguments[1]) : nullptr;
  if (rung == nullptr) {
    std::printf("usage: ladder NAME FIRST END, NAME one of");
#define CONVSWAP_RUNG(rung_name) std::printf(" ladder_" #rung_name);
#include "rungs.inc"
#undef CONVSWAP_RUNG
    std::printf("\n");
    return 2;
  }
  int computed = 0, wrong = 0;
  const int end = std::atoi(arguments[3]);
  for (int seed = std::atoi(arguments[2]); seed < end; ++seed) {
    if (check_rung_seed(*rung, seed, computed)) continue;
    std::printf("seed %d\n", seed);
    ++wrong;
  }
  std::printf("%d problems computed, %d wrong\n", computed, wrong);
  return wrong == 0 ? 0 : 1;
}
