// `halves HEIGHT WIDTH`: prints whether few_channels splits a tile of 64 filters into halves by images or by
// rows.

#include <cstdio>
#include <cstdlib>

#include "cuda/few_channels/family.h"

int main(int count, char** arguments) {
  if (count != 3) return 2;
  convswap::ConvProblem problem;
  problem.batch = 2;
  problem.group = problem.in_channels = 1;
  problem.out_channels = 64;
  problem.has_bias = false;
  problem.filter = {1, 1, 1};
  problem.input = {1, std::atoi(arguments[1]), std::atoi(arguments[2])};
  problem.output = problem.result = problem.input;
  problem.type = convswap::ElementType::float16;
  convswap::Device device;
  device.kind = convswap::DeviceKind::cuda;
  device.compute_capability = 90;
  device.multiprocessors = 132;
  device.shared_memory_per_block = 232'448;
  device.shared_memory_per_multiprocessor = 233'472;
  const auto passes = convswap::few_channels::passes_of(problem, device);
  if (passes.size() != 1) return 1;
  std::puts(passes[0].tiling.halves_images ? "images" : "rows");
  return 0;
}
