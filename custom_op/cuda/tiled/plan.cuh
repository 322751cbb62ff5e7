#pragma once

// The plan of `tiled` for one element type; see tiled.cc.

#include <memory>
#include <string>
#include <vector>

#include "cuda/primitives/kernel_facts.h"
#include "cuda/primitives/launch.h"
#include "cuda/tiled/kernel.cuh"
#include "cuda/tiled/plan.h"
#include "cuda/tiled/tiling.h"

namespace convswap::tiled {

template <typename T>
Arguments<T> arguments_of(const ConvProblem& problem, const Tiling& tiling) {
  const auto narrow = [](int64_t value) { return static_cast<int>(value); };
  const auto blocks = [&](int64_t extent, int of_block) {
    return FastDivisor(static_cast<unsigned>((extent + of_block - 1) / of_block));
  };
  Arguments<T> a{};
  a.channels = narrow(problem.channels_per_group()), a.filters = narrow(problem.filters_per_group());
  a.in_channels = narrow(problem.in_channels), a.out_channels = narrow(problem.out_channels);
  a.height = narrow(problem.input[1]), a.width = narrow(problem.input[2]);
  a.out_height = narrow(problem.output[1]), a.out_width = narrow(problem.output[2]);
  a.y_height = narrow(problem.result[1]), a.y_width = narrow(problem.result[2]);
  a.filter_height = narrow(problem.filter[1]), a.filter_width = narrow(problem.filter[2]);
  a.stride_height = narrow(problem.stride[1]), a.stride_width = narrow(problem.stride[2]);
  a.dilation_height = narrow(problem.dilation[1]), a.dilation_width = narrow(problem.dilation[2]);
  a.pad_top = narrow(problem.pad_begin[1]), a.pad_left = narrow(problem.pad_begin[2]);
  a.epilogue = problem.epilogue;
  a.rows = tiling.rows, a.columns = tiling.columns, a.filters_of_block = tiling.filters;
  a.channels_at_a_time = tiling.channels, a.splits = tiling.splits;
  a.tiles_down = blocks(problem.output[1], tiling.rows);
  a.tiles_across = blocks(problem.output[2], tiling.columns);
  a.filter_blocks = blocks(problem.filters_per_group(), tiling.filters);
  a.threads_across = FastDivisor(tiling.columns / tiling.columns_of_thread);
  a.threads_of_filter = FastDivisor(tiling.rows / 2 * a.threads_across.divisor);
  a.filter_threads = FastDivisor(tiling.filters / tiling.filters_of_thread);
  a.window_width = FastDivisor(tiling.window_width);
  a.window_size = FastDivisor(tiling.window_height * tiling.window_width);
  a.window_pitch = tiling.window_pitch, a.window_plane = tiling.window_plane;
  a.weight_pitch = tiling.weight_pitch;
  a.filter_quads = FastDivisor((tiling.filters + 3) / 4);
  a.rows_of_filter = FastDivisor(a.filter_height);
  a.y_rows = tiling.rows / narrow(problem.epilogue.pool.kernel[0]);
  const int y_columns = tiling.columns / narrow(problem.epilogue.pool.kernel[1]);
  a.y_columns = FastDivisor(y_columns), a.y_plane = FastDivisor(a.y_rows * y_columns);
  return a;
}

template <typename T>
class TiledPlan final : public Plan {
 public:
  TiledPlan(const ConvProblem& problem, const Device& device)
      : device_(device.index),
        tiling_(*best_tiling(problem, device)),
        kernel_(kernel_for(tiling_)),
        arguments_(arguments_of<T>(problem, tiling_)) {
    const int64_t tiles = problem.batch * arguments_.tiles_down.divisor * arguments_.tiles_across.divisor;
    grid_ = dim3(static_cast<unsigned>(tiles),
                 static_cast<unsigned>(problem.group * arguments_.filter_blocks.divisor));
    const DeviceGuard guard(device_);
    allow_shared_memory(kernel_, device.shared_memory_per_block);
    start_ = earliest_start(kernel_);
  }

  void run(const ConvTensors& tensors, const Execution& execution) const override {
    Arguments<T> arguments = arguments_;
    arguments.x = static_cast<const T*>(tensors.x);
    arguments.w = static_cast<const T*>(tensors.w);
    arguments.b = static_cast<const T*>(tensors.b);
    arguments.z = static_cast<const T*>(tensors.z);
    arguments.y = static_cast<T*>(tensors.y);
    void* parameters[] = {&arguments};
    const DeviceGuard guard(device_);
    launch(kernel_, grid_, static_cast<unsigned>(tiling_.threads), static_cast<size_t>(tiling_.shared_bytes),
           execution.stream, parameters, start_);
  }

  std::vector<KernelFacts> kernels() const override {
    const DeviceGuard guard(device_);
    return {kernel_facts("tiled", kernel_, grid_, static_cast<unsigned>(tiling_.threads),
                         static_cast<size_t>(tiling_.shared_bytes))};
  }

  std::string describe() const override {
    const Tiling& t = tiling_;
    return "tiles of " + std::to_string(t.rows) + "x" + std::to_string(t.columns) + " x " +
           std::to_string(t.filters) + " filters, " + std::to_string(t.channels) + " channels at a time, " +
           std::to_string(t.threads) + " threads of 2x" + std::to_string(t.columns_of_thread) + " x " +
           std::to_string(t.filters_of_thread) + " outputs" +
           (t.splits > 1 ? ", each shared by " + std::to_string(t.splits) : "") + ", " +
           std::to_string(t.shared_bytes) + " bytes of shared memory, " + std::to_string(grid_.x * grid_.y) +
           " blocks";
  }

 private:
  static const void* kernel_for(const Tiling& tiling) {
    if (tiling.columns_of_thread == 4) return reinterpret_cast<const void*>(kernel<T, 8, 4>);
    if (tiling.filters_of_thread == 8) return reinterpret_cast<const void*>(kernel<T, 8, 2>);
    if (tiling.filters_of_thread == 4) return reinterpret_cast<const void*>(kernel<T, 4, 2>);
    return reinterpret_cast<const void*>(kernel<T, 1, 2>);
  }

  int device_;
  Tiling tiling_;
  const void* kernel_;
  Start start_ = Start::in_turn;
  Arguments<T> arguments_;
  dim3 grid_;
};

}  // namespace convswap::tiled
