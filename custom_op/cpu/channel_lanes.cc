// The path of `direct` for depthwise filters on small images, vectorised over channels.
//
// Rows of 7 or 14 pixels leave part of a vector empty, and the overhead per row and channel exceeds the
// arithmetic. So a vector holds one pixel of as many channels as it has lanes. The input is transposed into a
// zero-padded image of such vectors. Each tap of each output is then one multiplication of whole vectors, for
// any stride and dilation. The results are transposed back. Padding is multiplied like data, as in
// position_lanes.cc.

#include <algorithm>
#include <string>
#include <vector>

#include "conv/arithmetic.h"
#include "cpu/direct_plans.h"
#include "cpu/epilogue_rows.h"

namespace convswap {
namespace {

// Largest padded image: with its results it should stay in the L1 and L2 caches.
constexpr double kMaxImageBytes = 64 * 1024;
// Longer rows fill vectors by themselves, and transposing costs more than copying rows.
constexpr int64_t kMaxRow = 20;
// Operations that take about as long as handing a task to another thread.
constexpr int64_t kMinOperations = 50'000;
constexpr int64_t kMaxTasks = 32;

// The padded image's extent along an axis: everything that outputs read, and all of the input.
int64_t padded_extent(const ConvProblem& problem, size_t axis) {
  const int64_t read = (problem.output[axis] - 1) * problem.stride[axis] +
                       (problem.filter[axis] - 1) * problem.dilation[axis] + 1;
  return std::max(read, problem.pad_begin[axis] + problem.input[axis]);
}

class ChannelLanesPlan final : public Plan {
 public:
  ChannelLanesPlan(const ConvProblem& problem, const ChannelLanesKernels& kernels, std::string_view set)
      : problem_(problem),
        kernels_(kernels),
        set_(set),
        blocks_(ceil_divide(problem.in_channels, kernels.lanes)),
        pitch_(padded_extent(problem, 2) * kernels.lanes),
        image_elements_(padded_extent(problem, 1) * pitch_),
        activation_(problem.epilogue) {
    const int64_t lanes = kernels.lanes;
    for (int64_t h = problem.pad_begin[1]; h < problem.pad_begin[1] + problem.input[1]; ++h) {
      for (int64_t w = problem.pad_begin[2]; w < problem.pad_begin[2] + problem.input[2]; ++w) {
        pixel_offsets_.push_back(h * pitch_ + w * lanes);
      }
    }
    for (int64_t p = 0; p < problem.output[1]; ++p) {
      for (int64_t q = 0; q < problem.output[2]; ++q) {
        output_offsets_.push_back(p * problem.stride[1] * pitch_ + q * problem.stride[2] * lanes);
      }
    }
    for (int64_t r = 0; r < problem.filter[1]; ++r) {
      for (int64_t s = 0; s < problem.filter[2]; ++s) {
        tap_offsets_.push_back(r * problem.dilation[1] * pitch_ + s * problem.dilation[2] * lanes);
      }
    }
  }

  void run(const ConvTensors& tensors, const Execution& execution) const override {
    const int64_t jobs = problem_.batch * blocks_;
    const int64_t wanted = std::max<int64_t>(1, problem_.operations() / kMinOperations);
    const int64_t tasks = std::min({jobs, wanted, kMaxTasks});
    const int64_t jobs_per_task = jobs / tasks, extra_jobs = jobs % tasks;
    execution.parallel_for(tasks, [&](std::ptrdiff_t task) {
      thread_local Memory memory;
      memory.resize(image_elements_, problem_.output_size() * kernels_.lanes,
                    problem_.filter_size() * kernels_.lanes, kernels_.lanes);
      // Zeroes the padding, which nothing else writes; another plan may have used the buffer.
      std::fill_n(memory.image.data(), image_elements_, 0.0f);
      const int64_t first = task * jobs_per_task + std::min<int64_t>(task, extra_jobs);
      for (int64_t job = first; job < first + jobs_per_task + (task < extra_jobs); ++job) {
        compute(tensors, job / blocks_, job % blocks_ * kernels_.lanes, memory);
      }
    });
  }

  std::string describe() const override {
    return "small images, " + set_ + ", vectors of " + std::to_string(kernels_.lanes) + " channels";
  }

 private:
  // A thread's buffers, kept for the next run; all hold vectors of channels.
  struct Memory {
    std::vector<float> image, results, weights, bias;

    void resize(int64_t image_elements, int64_t result_elements, int64_t weight_elements, int64_t lanes) {
      grow(image, image_elements);
      grow(results, result_elements);
      grow(weights, weight_elements);
      grow(bias, lanes);
    }
  };

  // Computes one vector of channels of one image.
  void compute(const ConvTensors& tensors, int64_t n, int64_t first_channel, Memory& memory) const {
    const int64_t channels = std::min<int64_t>(kernels_.lanes, problem_.in_channels - first_channel);
    const int64_t taps = problem_.filter_size(), outputs = problem_.output_size();
    const int64_t plane = n * problem_.in_channels + first_channel;
    kernels_.to_lanes({channels, problem_.input_size(), problem_.input_size(), pixel_offsets_.data()},
                      static_cast<const float*>(tensors.x) + plane * problem_.input_size(),
                      memory.image.data());
    kernels_.to_lanes({channels, taps, taps, nullptr},
                      static_cast<const float*>(tensors.w) + first_channel * taps, memory.weights.data());
    for (int64_t lane = 0; lane < channels && tensors.b != nullptr; ++lane) {
      memory.bias[lane] = static_cast<const float*>(tensors.b)[first_channel + lane];
    }
    if (tensors.b == nullptr) std::fill_n(memory.bias.begin(), kernels_.lanes, 0.0f);
    kernels_.compute({memory.image.data(), outputs, output_offsets_.data(), taps, tap_offsets_.data(),
                      memory.weights.data(), memory.bias.data(), activation_.clips, activation_.lower,
                      activation_.upper, memory.results.data()});
    float* const y = static_cast<float*>(tensors.y) + plane * outputs;
    kernels_.to_planes({channels, outputs, outputs, nullptr}, memory.results.data(), y);
    const float* const z =
        problem_.epilogue.has_residual ? static_cast<const float*>(tensors.z) + plane * outputs : nullptr;
    if (z == nullptr && activation_.deferred == Activation::none) return;
    finish_rows<float, float>(problem_.epilogue, activation_.deferred, kernels_.activations, 1,
                              channels * outputs, {y, 0}, {z, 0}, {y, 0});
  }

  const ConvProblem problem_;
  const ChannelLanesKernels& kernels_;
  const std::string set_;
  const int64_t blocks_;  // of channels
  const int64_t pitch_;   // elements from one row of the padded image to the next
  const int64_t image_elements_;
  const SplitActivation activation_;
  std::vector<int64_t> pixel_offsets_, output_offsets_, tap_offsets_;
};

}  // namespace

bool suits_channel_lanes(const ConvProblem& problem, const ChannelLanesKernels& kernels) {
  if (!problem.is_depthwise() || problem.type != ElementType::float32) return false;
  // With depth padding the only output plane may not cover the only input plane.
  if (problem.input[0] != 1 || problem.filter[0] != 1 || problem.output[0] != 1) return false;
  if (problem.pad_begin[0] != 0) return false;
  if (problem.epilogue.pool.kind != PoolKind::none || problem.output_elements() == 0) return false;
  if (problem.output_size() < kOutputsPerPass || problem.output[2] > kMaxRow) return false;
  if (2 * problem.in_channels < kernels.lanes) return false;
  const double pixels =
      static_cast<double>(padded_extent(problem, 1)) * static_cast<double>(padded_extent(problem, 2));
  return pixels * kernels.lanes * sizeof(float) <= kMaxImageBytes;
}

std::unique_ptr<Plan> make_channel_lanes_plan(const ConvProblem& problem, const ChannelLanesKernels& kernels,
                                              std::string_view instruction_set) {
  return std::make_unique<ChannelLanesPlan>(problem, kernels, instruction_set);
}

}  // namespace convswap
