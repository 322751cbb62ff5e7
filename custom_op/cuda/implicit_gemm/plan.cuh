#pragma once

// A plan of implicit_gemm for one format of the data.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "cuda/implicit_gemm/kernel.cuh"
#include "cuda/implicit_gemm/plan.h"
#include "cuda/implicit_gemm/tiling.h"
#include "cuda/naive_arguments.h"
#include "cuda/primitives/kernel_facts.h"
#include "cuda/primitives/launch.h"

namespace convswap::implicit_gemm {

template <typename Element>
Arguments<Element> arguments_of(const ConvProblem& problem, const Tiling& tiling) {
  const auto narrow = [](int64_t value) { return static_cast<int>(value); };
  Arguments<Element> to{};
  to.definition = naive_arguments<Element>(problem);
  to.input_elements = problem.batch * problem.in_channels * problem.input_size();
  to.batch = narrow(problem.batch);
  to.in_channels = narrow(problem.in_channels);
  to.out_channels = narrow(problem.out_channels);
  to.channels = narrow(problem.channels_per_group());
  to.group_filters = narrow(problem.filters_per_group());
  to.filters = tiling.filters;
  to.filter_blocks = tiling.filter_blocks;
  to.input_width = narrow(problem.input[2]);
  to.input_plane = narrow(problem.input_size());
  to.output_height = narrow(problem.output[1]);
  to.output_width = narrow(problem.output[2]);
  to.output_plane = narrow(problem.output_size());
  to.filter_height = narrow(problem.filter[1]);
  to.filter_width = narrow(problem.filter[2]);
  to.stride_height = narrow(problem.stride[1]);
  to.pad_height = narrow(problem.pad_begin[1]);
  to.pad_width = narrow(problem.pad_begin[2]);
  to.dilation_height = FastDivisor(narrow(problem.dilation[1]));
  to.dilation_width = FastDivisor(narrow(problem.dilation[2]));
  to.input_width_divisor = FastDivisor(to.input_width);

  to.folds = tiling.folds;
  to.chunks = narrow(tiling.chunks);
  to.half_chunk = narrow(tiling.half_chunk);
  to.pairs_rows = tiling.pairs_rows;
  to.row_phases = FastDivisor(narrow(tiling.row_phases));
  to.column_phases = FastDivisor(narrow(tiling.column_phases));
  to.pitch = FastDivisor(narrow(tiling.pitch));
  to.plane_places = narrow(tiling.plane_places);
  to.plane_rows = narrow(tiling.plane_rows);
  to.bundle_places = narrow(tiling.bundle_places);
  to.part_places = narrow(tiling.part_places);
  to.slot_places = narrow(tiling.slot_places);
  to.steps = narrow(tiling.steps());
  to.steps_held = narrow(tiling.steps_held());
  to.turn_ends = std::max(0, to.steps - (to.steps < kLongSum ? kStepsOfBoth : kStepsOfBothInLongSums));
  to.output_chunks = narrow(tiling.output_chunks);
  to.first_ragged = problem.output[1] % tiling.folds == 0
                        ? to.output_chunks
                        : narrow((tiling.groups - 1) * tiling.pitch / tiling.columns());
  to.stages = tiling.stages;
  to.stage_bytes = narrow(tiling.stage_bytes);
  to.buffers = tiling.buffers;
  to.buffer_bytes = narrow(tiling.buffer_bytes);
  to.late_filters = tiling.late_filters;
  to.late_bytes = narrow(tiling.late_bytes);
  to.writes_pairs = writes_pairs(problem, tiling);
  to.results_bytes = narrow(tiling.results_bytes);
  to.shared = tiling.shared;
  std::copy(tiling.owners.begin(), tiling.owners.end(), to.rows);
  for (int step = 0; step < to.steps; ++step) {
    // The distance of the halves has no sign; what is no half meets weights of zero, wherever it is read.
    HalfStep first = tiling.half_steps[2 * step], second = tiling.half_steps[2 * step + 1];
    if (second.bundle >= 0 && tiling.place_of(second) < tiling.place_of(first)) std::swap(first, second);
    const int64_t place = tiling.place_of(first);
    const int64_t distance = second.bundle < 0 ? 1 : tiling.place_of(second) - place;
    to.half_steps[2 * step] = first, to.half_steps[2 * step + 1] = second;
    to.step_places[step] = static_cast<unsigned>(place) | static_cast<unsigned>(distance) << 16;
  }
  return to;
}

template <typename Format>
class ImplicitGemmPlan final : public Plan {
 public:
  using Element = typename Format::Element;

  ImplicitGemmPlan(const ConvProblem& problem, const Device& device)
      : device_(device.index),
        tiling_(best_tiling(problem, device).value()),
        kernel_(reinterpret_cast<const void*>(tiling_.tiles == kMostTiles ? kernel<Format, kMostTiles>
                                                                          : kernel<Format, kFewerTiles>)),
        arguments_(arguments_of<Element>(problem, tiling_)) {
    // A y that the cache cannot hold shall not drive out of it what is asked for next.
    const int64_t y_bytes = problem.batch * problem.out_channels * problem.output_size() * sizeof(Element);
    arguments_.leaves_first = y_bytes > device.second_level_cache;
    const DeviceGuard guard(device_);
    allow_shared_memory(kernel_, device.shared_memory_per_block);
    start_ = earliest_start(kernel_);
    const int64_t blocks_per_image = problem.group * tiling_.filter_blocks;
    const int64_t share = std::max<int64_t>(1, device.multiprocessors / blocks_per_image);
    grid_ =
        dim3(static_cast<unsigned>(std::min(problem.batch, share)), static_cast<unsigned>(blocks_per_image));
  }

  void run(const ConvTensors& tensors, const Execution& execution) const override {
    Arguments<Element> arguments = arguments_;
    arguments.x = static_cast<const Element*>(tensors.x);
    arguments.w = static_cast<const Element*>(tensors.w);
    arguments.b = static_cast<const Element*>(tensors.b);
    arguments.y = static_cast<Element*>(tensors.y);
    arguments.definition.x = arguments.x;
    arguments.definition.w = arguments.w;
    arguments.definition.b = arguments.b;
    arguments.y_misalignment =
        static_cast<int>(reinterpret_cast<uintptr_t>(tensors.y) % kAlignment / sizeof(Element));
    void* parameters[] = {&arguments};
    const DeviceGuard guard(device_);
    launch(kernel_, grid_, kThreads, static_cast<size_t>(tiling_.shared_bytes), execution.stream, parameters,
           start_);
  }

  std::vector<KernelFacts> kernels() const override {
    const DeviceGuard guard(device_);
    return {
        kernel_facts("implicit_gemm", kernel_, grid_, kThreads, static_cast<size_t>(tiling_.shared_bytes))};
  }

  std::string describe() const override {
    return "whole images, " + std::to_string(tiling_.filters) + " filters x " +
           std::to_string(tiling_.folds) + " rows at a time; products of 64 x " +
           std::to_string(tiling_.steps() * kDepth) + " x " +
           std::to_string(tiling_.output_chunks * tiling_.columns()) + ", the weights of " +
           std::to_string(tiling_.steps_held()) + " of " + std::to_string(tiling_.steps()) +
           " steps in registers; " + (tiling_.pairs_rows ? "two rows in a place; " : "") +
           (tiling_.stages == 1 ? "1 chunk of channels on its way, "
                                : std::to_string(tiling_.stages) + " chunks of channels on their way, ") +
           (tiling_.buffers == 1 ? "1 buffer" : std::to_string(tiling_.buffers) + " buffers") +
           " for results" +
           (tiling_.late_filters == 0
                ? "; "
                : " and one for " + std::to_string(tiling_.late_filters) + " filters; ") +
           std::to_string(grid_.x) + " x " + std::to_string(grid_.y) + " blocks of " +
           std::to_string(kThreads) + " threads, " + std::to_string(tiling_.shared_bytes) +
           " bytes of shared memory";
  }

 private:
  int device_;
  Tiling tiling_;
  const void* kernel_;
  Start start_ = Start::in_turn;
  Arguments<Element> arguments_;
  dim3 grid_;
};

}  // namespace convswap::implicit_gemm
