#pragma once

// A plan of few_channels for one format of the data.

#include <algorithm>
#include <bit>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda/few_channels/kernel.cuh"
#include "cuda/few_channels/plan.h"
#include "cuda/few_channels/tiling.h"
#include "cuda/naive_arguments.h"
#include "cuda/primitives/kernel_facts.h"
#include "cuda/primitives/launch.h"

namespace convswap::few_channels {

template <typename Format, int kBundle, int kTaps>
const void* kernel_of(int tiles) {
  switch (tiles) {
    case 1:
      return reinterpret_cast<const void*>(kernel<Format, kBundle, kTaps, 1>);
    case 2:
      return reinterpret_cast<const void*>(kernel<Format, kBundle, kTaps, 2>);
    case 3:
      if constexpr (kTaps <= 7) return reinterpret_cast<const void*>(kernel<Format, kBundle, kTaps, 3>);
      break;
  }
  throw std::logic_error("few_channels: no kernel for " + std::to_string(tiles) + " tiles of filters");
}

template <typename Format, int kBundle>
const void* kernel_of(const Tiling& tiling) {
  switch (tiling.taps) {
    case 1:
      return kernel_of<Format, kBundle, 1>(tiling.tiles);
    case 2:
      return kernel_of<Format, kBundle, 2>(tiling.tiles);
    case 3:
      return kernel_of<Format, kBundle, 3>(tiling.tiles);
    case 4:
      return kernel_of<Format, kBundle, 4>(tiling.tiles);
    case 5:
      return kernel_of<Format, kBundle, 5>(tiling.tiles);
    case 7:
      return kernel_of<Format, kBundle, 7>(tiling.tiles);
    default:
      return kernel_of<Format, kBundle, kMostTaps>(tiling.tiles);
  }
}

template <typename Element>
Arguments<Element> arguments_of(const ConvProblem& problem, const Pass& pass) {
  const Tiling& tiling = pass.tiling;
  const ConvProblem folded = folded_problem(problem_with_channels(problem, pass.channels), tiling.folds);
  const auto narrow = [](int64_t value) { return static_cast<int>(value); };
  Arguments<Element> to{};
  to.batch = narrow(problem.batch);
  to.in_channels = narrow(problem.in_channels);
  to.out_channels = narrow(problem.out_channels);
  to.log2_folds = std::countr_zero(static_cast<unsigned>(tiling.folds));
  to.fold_stride = narrow(problem.stride[1]);
  to.folded_filters = narrow(folded.filters_per_group());
  to.folded_filter_height = narrow(folded.filter[1]);
  to.folded_rows = narrow(folded.output[1]);
  to.channels_per_group = narrow(problem.channels_per_group());
  to.first_channel = narrow(pass.first_channel);
  to.channels = narrow(pass.channels);
  to.accumulates = pass.first_channel > 0;
  to.input_elements = problem.batch * problem.in_channels * problem.input_size();
  to.input_height = narrow(problem.input[1]);
  to.input_width = narrow(problem.input[2]);
  to.output_height = narrow(problem.output[1]);
  to.output_width = narrow(problem.output[2]);
  to.output_plane = narrow(problem.output_size());
  to.filter_height = narrow(problem.filter[1]);
  to.filter_width = narrow(problem.filter[2]);
  to.stride_height = narrow(folded.stride[1]);
  to.stride_width = narrow(problem.stride[2]);
  to.dilation_height = narrow(problem.dilation[1]);
  to.dilation_width = narrow(problem.dilation[2]);
  to.pad_height = narrow(problem.pad_begin[1]);
  to.pad_width = narrow(problem.pad_begin[2]);

  to.tile_images = tiling.tile_images();
  to.tile_rows = tiling.tile_rows();
  to.half_images = tiling.halves_images ? tiling.images : 0;
  to.half_rows = tiling.halves_images ? 0 : tiling.rows;
  to.half_offset =
      narrow((to.half_images * problem.out_channels * problem.output[1] + to.half_rows * tiling.folds) *
             problem.output[2]);
  to.places_images = tiling.images;
  to.places_rows = tiling.rows;
  to.places_quads = tiling.quads;
  to.bands = FastDivisor(narrow(ceil_divide(folded.output[1], to.tile_rows)));
  to.column_tiles = FastDivisor(narrow(ceil_divide(quads_per_output_row(problem), tiling.quads)));
  to.tiles = narrow(ceil_divide(problem.batch, to.tile_images) * to.bands.divisor * to.column_tiles.divisor);
  to.quads_per_row = FastDivisor(tiling.quads);
  to.quads_per_image = FastDivisor(tiling.rows * tiling.quads);

  const FilterBundles bundles(folded);
  to.raw_rows = tiling.raw_rows;
  to.raw_columns = tiling.raw_columns;
  to.raw_words = narrow(tiling.raw_words);
  to.part_words = narrow(tiling.part_words);
  to.zero_words = tiling.zero_words;
  to.runs_per_plane = tiling.runs_per_plane;
  to.runs = to.tile_images * to.channels * to.runs_per_plane;
  to.run_elements = tiling.run_elements;
  to.runs_per_plane_divisor = FastDivisor(to.runs_per_plane);
  to.channels_divisor = FastDivisor(to.channels);
  to.copy_sharers = FastDivisor(std::max(1, tiling.warps / to.runs));

  to.bundle_channels = narrow(bundles.channels);
  to.bundle_rows = narrow(bundles.size / bundles.channels);
  to.row_step = narrow(bundles.row_step * problem.dilation[1]);
  to.planes = narrow(bundles.planes);
  to.phases = narrow(bundles.phases);
  to.line_words = tiling.line_words;
  to.plane_words = narrow(tiling.plane_words);
  to.columns = FastDivisor(tiling.columns);
  to.lines_per_plane = FastDivisor(tiling.lines);
  to.lines = tiling.images * to.planes * tiling.lines;
  to.planes_divisor = FastDivisor(to.planes);
  to.phases_divisor = FastDivisor(to.phases);

  to.bundles = narrow(bundles.count);
  to.steps = narrow(bundles.steps());
  to.shared = tiling.shared;
  to.filter_blocks = tiling.filter_blocks;
  to.filter_splits = tiling.filter_splits;
  to.filter_block_divisor = FastDivisor(tiling.filter_blocks);
  to.store_width = store_width(problem);
  const int64_t plane = problem.output_size();
  const auto offset_of = [&](int filter) {
    return filter / tiling.folds * plane + filter % tiling.folds * problem.output[2];
  };
  for (int i = 0; i < kFiltersPerTile; ++i) {
    if (i % 2 == 0) to.even_filters[i / 2] = static_cast<unsigned>(offset_of(i));
    if (i % tiling.folds == 0) to.first_folds |= 1u << i;
  }
  to.odd_filter = static_cast<unsigned>(offset_of(1));
  to.next_filters = offset_of(kFiltersPerTile);
  to.definition = naive_arguments<Element>(problem);
  return to;
}

// One launch, ready to be repeated.
template <typename Format>
class Launch {
 public:
  using Element = typename Format::Element;

  Launch(const ConvProblem& problem, const Device& device, const Pass& pass)
      : tiling_(pass.tiling),
        kernel_(FilterBundles(folded_problem(problem_with_channels(problem, pass.channels), tiling_.folds))
                            .size == 4
                    ? kernel_of<Format, 4>(tiling_)
                    : kernel_of<Format, 2>(tiling_)),
        arguments_(arguments_of<Element>(problem, pass)) {
    allow_shared_memory(kernel_, device.shared_memory_per_block);
    start_ = earliest_start(kernel_);
    const int resident = resident_blocks(kernel_, threads(), shared_bytes());
    if (resident == 0) throw std::runtime_error("few_channels: a block does not fit on " + device.name);
    const int64_t rows = problem.group * tiling_.filter_splits;
    const int64_t slots = int64_t{device.multiprocessors} * resident;
    grid_ =
        dim3(static_cast<unsigned>(grid_columns(arguments_.tiles, rows, slots)), static_cast<unsigned>(rows));
  }

  void enqueue(const ConvTensors& tensors, void* stream) const {
    Arguments<Element> arguments = arguments_;
    arguments.x = static_cast<const Element*>(tensors.x);
    arguments.w = static_cast<const Element*>(tensors.w);
    arguments.b = arguments.accumulates ? nullptr : static_cast<const Element*>(tensors.b);
    arguments.y = static_cast<Element*>(tensors.y);
    arguments.definition.x = arguments.x;
    arguments.definition.w = arguments.w;
    arguments.copies_16_bytes = reinterpret_cast<uintptr_t>(tensors.x) % 16 == 0;
    while (arguments.store_width > 1 &&
           reinterpret_cast<uintptr_t>(tensors.y) % (arguments.store_width * sizeof(Element)) != 0) {
      arguments.store_width /= 2;
    }
    void* parameters[] = {&arguments};
    launch(kernel_, grid_, threads(), shared_bytes(), stream, parameters, start_);
  }

  KernelFacts facts() const {
    return kernel_facts("few_channels", kernel_, grid_, threads(), shared_bytes());
  }

  std::string describe() const {
    return "tiles of " + std::to_string(tiling_.tile_images()) + " images x " +
           std::to_string(tiling_.tile_rows() * tiling_.folds) + " rows x " +
           std::to_string(tiling_.quads * kQuad) + " columns x " +
           std::to_string(tiling_.filter_blocks * tiling_.tiles * kFiltersPerTile / tiling_.folds) +
           " filters (" + std::to_string(tiling_.tiles * kFiltersPerTile) + " at a time, of " +
           std::to_string(tiling_.folds) + " rows each), " + std::to_string(grid_.x) + " x " +
           std::to_string(grid_.y) + " blocks of " + std::to_string(threads()) + " threads, " +
           std::to_string(tiling_.shared_bytes) + " bytes of shared memory";
  }

 private:
  int threads() const { return 32 * tiling_.warps; }
  size_t shared_bytes() const { return static_cast<size_t>(tiling_.shared_bytes); }

  Tiling tiling_;
  const void* kernel_;
  Start start_ = Start::in_turn;
  Arguments<Element> arguments_;
  dim3 grid_;
};

template <typename Format>
class FewChannelsPlan final : public Plan {
 public:
  FewChannelsPlan(const ConvProblem& problem, const Device& device) : device_(device.index) {
    const DeviceGuard guard(device_);
    for (const Pass& pass : passes_of(problem, device)) {
      launches_.emplace_back(problem, device, pass);
    }
  }

  void run(const ConvTensors& tensors, const Execution& execution) const override {
    const DeviceGuard guard(device_);
    for (const Launch<Format>& launch : launches_) launch.enqueue(tensors, execution.stream);
  }

  std::vector<KernelFacts> kernels() const override {
    const DeviceGuard guard(device_);
    std::vector<KernelFacts> facts;
    for (const Launch<Format>& launch : launches_) facts.push_back(launch.facts());
    return facts;
  }

  std::string describe() const override {
    const size_t count = launches_.size();
    return (count == 1 ? "" : std::to_string(count) + " passes, each ") + launches_.front().describe();
  }

 private:
  int device_;
  std::vector<Launch<Format>> launches_;
};

}  // namespace convswap::few_channels
