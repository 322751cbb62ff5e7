#pragma once

// A plan of toeplitz for one format of the data.

#include <algorithm>
#include <bit>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda/naive_arguments.h"
#include "cuda/primitives/kernel_facts.h"
#include "cuda/primitives/launch.h"
#include "cuda/toeplitz/kernel.cuh"
#include "cuda/toeplitz/plan.h"
#include "cuda/toeplitz/tiling.h"

namespace convswap::toeplitz {

template <typename Format, bool kFinishes>
const void* kernel_of(int tiles) {
  switch (tiles) {
    case 2:
      return reinterpret_cast<const void*>(kernel<Format, 2, kFinishes>);
    case 4:
      return reinterpret_cast<const void*>(kernel<Format, 4, kFinishes>);
    case 6:
      return reinterpret_cast<const void*>(kernel<Format, 6, kFinishes>);
    case 8:
      return reinterpret_cast<const void*>(kernel<Format, 8, kFinishes>);
    case 10:
      return reinterpret_cast<const void*>(kernel<Format, 10, kFinishes>);
    case 12:
      return reinterpret_cast<const void*>(kernel<Format, 12, kFinishes>);
  }
  throw std::logic_error("toeplitz: no kernel for " + std::to_string(tiles) + " tiles of columns");
}

template <typename Element>
Arguments<Element> arguments_of(const ConvProblem& problem, const Tiling& tiling) {
  const auto narrow = [](int64_t value) { return static_cast<int>(value); };
  const auto log2 = [](int value) { return std::countr_zero(static_cast<unsigned>(value)); };
  const Cut& cut = tiling.cut;
  Arguments<Element> to{};
  to.definition = naive_arguments<Element>(problem);
  to.input_elements = problem.batch * problem.in_channels * problem.input_size();
  to.is_unpadded = is_unpadded(problem, cut);
  to.batch = narrow(problem.batch);
  to.in_channels = narrow(problem.in_channels);
  to.out_channels = narrow(problem.out_channels);
  to.channels = narrow(problem.channels_per_group());
  to.filters = narrow(problem.filters_per_group());
  to.input_height = narrow(problem.input[1]);
  to.input_width = narrow(problem.input[2]);
  to.output_height = narrow(problem.output[1]);
  to.output_width = narrow(problem.output[2]);
  to.input_plane = narrow(problem.input_size());
  to.output_plane = narrow(problem.output_size());
  to.y_height = narrow(problem.result[1]);
  to.y_width = narrow(problem.result[2]);
  to.y_plane = narrow(problem.result_size());
  to.filter_height = narrow(problem.filter[1]);
  to.filter_width = narrow(problem.filter[2]);
  to.stride_height = narrow(problem.stride[1]);
  to.stride_width = narrow(problem.stride[2]);
  to.dilation_height = FastDivisor(narrow(problem.dilation[1]));
  to.dilation_width = FastDivisor(narrow(problem.dilation[2]));
  to.pad_height = narrow(problem.pad_begin[1]);
  to.pad_width = narrow(problem.pad_begin[2]);

  to.source_plane = narrow(tiling.copies_input ? tiling.source_plane : problem.input_size());
  to.source_image = narrow(tiling.source_image);
  // Rows of cores begin whole widths of the input and whole rows of cores apart.
  to.load_bytes = 1 << std::countr_zero(static_cast<unsigned>(
                      kAlignment | problem.input[2] * sizeof(Element) | cut.pixels * sizeof(Element)));
  to.log2_bundle = log2(cut.bundle);
  to.log2_outputs = log2(cut.outputs);
  to.folds = cut.folds;
  to.log2_folds = log2(cut.folds);
  to.bundles = FastDivisor(narrow(cut.bundles));
  to.window_rows = narrow(cut.window_rows);
  to.window_cores = narrow(cut.window_cores);
  to.steps = narrow(cut.steps());
  to.steps_divisor = FastDivisor(to.steps);
  to.row_phases = FastDivisor(cut.row_phases);
  to.column_phases = FastDivisor(cut.column_phases);
  to.window_rows_divisor = FastDivisor(to.window_rows);
  to.window_cores_divisor = FastDivisor(to.window_cores);

  to.pitch = FastDivisor(narrow(tiling.pitch));
  to.core_rows = narrow(tiling.core_rows);
  to.plane_cores = narrow(tiling.plane_cores);
  to.image_cores = narrow(tiling.image_cores);
  to.part_cores = narrow(tiling.part_cores);
  to.cores_per_row = FastDivisor(narrow(tiling.cores_per_row));
  to.input_rows = narrow(tiling.input_rows);
  to.items_per_row = narrow(cut.bundles * tiling.cores_per_row);
  to.image_items = narrow(tiling.image_items);
  to.lines_per_channel =
      FastDivisor(narrow(tiling.input_rows * problem.input[2] * size_of(problem.type) / kCacheLine + 2));

  to.images = tiling.images;
  to.rows = tiling.rows;
  to.cores = tiling.cores;
  const int64_t core_columns = (problem.output[2] + cut.outputs - 1) / cut.outputs;
  to.bands = FastDivisor(narrow(tiling.bands));
  to.row_advance = narrow(tiling.row_advance);
  to.y_rows = narrow(tiling.y_rows);
  to.stores_lines = tiling.overlap > 0;
  to.pools = problem.epilogue.pool.kind != PoolKind::none;
  to.pool_pad_height = to.pools ? narrow(problem.epilogue.pool.pad_begin[0]) : 0;
  to.column_tiles = FastDivisor(narrow((core_columns + tiling.cores - 1) / tiling.cores));
  to.tiles = narrow(tiling.tile_count);
  to.product_rows = narrow(tiling.product_rows);

  to.filters_per_block = tiling.filters_per_block;
  to.filter_blocks = tiling.filter_blocks;
  to.results = tiling.results;
  to.stored = tiling.stored;
  to.pools_sums = pools_sums(problem, cut);
  to.fold_distance = to.pools_sums ? 0 : to.results.row;
  to.finish = finish_of(problem, cut);
  to.lies_apart = lies_apart(problem, to.finish);
  const bool is_bounded = to.finish != Finish::everything;
  to.least = is_bounded ? bounds_of(problem.epilogue).least : -std::numeric_limits<float>::infinity();
  to.most = is_bounded ? bounds_of(problem.epilogue).most : std::numeric_limits<float>::infinity();
  to.result_bytes = to.lies_apart ? sizeof(float) : sizeof(Element);
  to.writes_pairs = cut.outputs > 1 && problem.output[2] % 2 == 0 && tiling.results.row % 2 == 0 &&
                    tiling.results.plane % 2 == 0 && tiling.results.image % 2 == 0;
  to.shared = tiling.shared;
  to.cores_bytes = narrow(tiling.cores_bytes);
  to.raw_bytes = narrow(tiling.raw_bytes);
  place_steps(tiling, to.step_cores, to.step_places);
  return to;
}

template <typename Format>
class ToeplitzPlan final : public Plan {
 public:
  using Element = typename Format::Element;

  ToeplitzPlan(const ConvProblem& problem, const Device& device)
      : device_(device.index),
        tiling_(best_tiling(problem, device).value()),
        kernel_(problem.epilogue.is_empty() ? kernel_of<Format, false>(tiling_.tiles)
                                            : kernel_of<Format, true>(tiling_.tiles)),
        arguments_(arguments_of<Element>(problem, tiling_)) {
    // A y that the cache cannot hold shall not drive out of it input that is asked for ahead of time. Where
    // copies bring the input nothing is to be kept, and parts of lines had better wait for the rest.
    const int64_t y_bytes = problem.batch * problem.out_channels * problem.result_size() * sizeof(Element);
    arguments_.leaves_first = problem.epilogue.is_empty() && y_bytes > device.second_level_cache &&
                              (!tiling_.copies_input || stores_whole_lines(problem, tiling_));
    const DeviceGuard guard(device_);
    allow_shared_memory(kernel_, device.shared_memory_per_block);
    start_ = earliest_start(kernel_);
    const int64_t share = std::max<int64_t>(1, device.multiprocessors / problem.group);
    grid_ = dim3(static_cast<unsigned>(std::min(tiling_.tile_count, share)),
                 static_cast<unsigned>(problem.group));
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
    arguments.definition.z = static_cast<const Element*>(tensors.z);
    // Copies take what is aligned.
    arguments.copies_input = tiling_.copies_input && reinterpret_cast<uintptr_t>(tensors.x) % kAlignment == 0;
    if (!arguments.copies_input) arguments.source_plane = arguments.input_plane;
    arguments.y_misalignment =
        static_cast<int>(reinterpret_cast<uintptr_t>(tensors.y) % kCacheLine / sizeof(Element));
    void* parameters[] = {&arguments};
    const DeviceGuard guard(device_);
    launch(kernel_, grid_, threads(), static_cast<size_t>(tiling_.shared_bytes), execution.stream, parameters,
           start_);
  }

  std::vector<KernelFacts> kernels() const override {
    const DeviceGuard guard(device_);
    return {kernel_facts("toeplitz", kernel_, grid_, threads(), static_cast<size_t>(tiling_.shared_bytes))};
  }

  std::string describe() const override {
    const Cut& cut = tiling_.cut;
    return "tiles of " + std::to_string(tiling_.images) + " images x " +
           std::to_string(tiling_.rows * cut.folds) + " rows" +
           (tiling_.overlap > 0 ? " (" + std::to_string(tiling_.overlap) + " of them the next tile's too)"
                                : "") +
           " x " + std::to_string(tiling_.cores * cut.outputs) + " columns, " +
           std::to_string(tiling_.filters_per_block) + " filters at a time; products of " +
           std::to_string(tiling_.chunks * kRows) + " x " + std::to_string(cut.steps() * kDepth) + " x " +
           std::to_string(tiling_.tiles * kTileColumns) + " for " + std::to_string(cut.outputs) + " x " +
           std::to_string(cut.folds) + " outputs, " + std::to_string(cut.bundle) +
           " channels side by side; " + (tiling_.copies_input ? "input by bulk copies; " : "") +
           std::to_string(grid_.x) + " x " + std::to_string(grid_.y) + " blocks of " +
           std::to_string(threads()) + " threads, " + std::to_string(tiling_.shared_bytes) +
           " bytes of shared memory";
  }

 private:
  int threads() const { return kWarpgroupThreads * tiling_.warpgroups; }

  int device_;
  Tiling tiling_;
  const void* kernel_;
  Start start_ = Start::in_turn;
  Arguments<Element> arguments_;
  dim3 grid_;
};

}  // namespace convswap::toeplitz
