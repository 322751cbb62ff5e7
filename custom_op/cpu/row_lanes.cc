// The path of `direct` for groups with one channel, such as depthwise filters, or with few channels and
// filters. It is vectorised along the rows of the output.
//
// Such a convolution has few multiplications per input element, so loads dominate. A job copies the part of a
// group that a band of output rows reads into a strip (row_strip.h) and computes the rows of all filters of
// the group from it. Each row of the strip is loaded once for all taps of a filter column and four output
// rows (row_lanes_kernel.h).
//
// As in position_lanes.cc, padding is multiplied like data, and float16 and bfloat16 become float32 in the
// strip.

#include <algorithm>
#include <string>
#include <type_traits>
#include <vector>

#include "conv/small_floats.h"
#include "cpu/direct_plans.h"
#include "cpu/epilogue_rows.h"
#include "cpu/row_strip.h"

namespace convswap {
namespace {

// Limits the strip of the smallest band.
constexpr int64_t kMaxStripElements = 4 << 20;
// Limits for groups of several channels. More filters fill the tiles of position_lanes.cc, where they share
// each load.
constexpr int64_t kMaxChannels = 8, kMaxFiltersPerGroup = 4;
// A task of this many operations takes long compared with handing it to another thread and with copying the
// rows that two bands share.
constexpr int64_t kMinOperations = 200'000;
// More tasks do not balance the load better, unless there are far more threads.
constexpr int64_t kEnoughTasks = 32;
constexpr int64_t kJobsPerTask = 8;

// Turns an image with a single column, such as sound stored as (N, C, T, 1), into one with a single row.
ConvProblem column_as_row(ConvProblem problem) {
  const bool is_column = problem.input[2] == 1 && problem.filter[2] == 1 && problem.output[2] == 1;
  if (!is_column || problem.epilogue.pool.kind != PoolKind::none) return problem;
  for (Axes* axes : {&problem.input, &problem.filter, &problem.output, &problem.stride, &problem.dilation,
                     &problem.pad_begin, &problem.pad_end, &problem.result}) {
    std::rotate(axes->begin(), axes->begin() + 2, axes->end());
  }
  return problem;
}

template <typename T>
class RowLanesPlan final : public Plan {
 public:
  RowLanesPlan(const ConvProblem& problem, const RowLanesKernels& kernels, std::string_view set)
      : problem_(column_as_row(problem)),
        kernels_(kernels),
        set_(set),
        tasks_wanted_(std::max<int64_t>(1, problem.operations() / kMinOperations)),
        strip_(problem_, kernels, std::min(tasks_wanted_, kEnoughTasks)),
        activation_(problem_.epilogue),
        pools_(problem_.epilogue.pool.kind != PoolKind::none) {}

  void run(const ConvTensors& tensors, const Execution& execution) const override {
    const int64_t jobs = problem_.batch * problem_.group * problem_.output[0] * bands() * segments();
    const int64_t max_tasks = std::min(jobs, std::max(kEnoughTasks, jobs / kJobsPerTask));
    const int64_t tasks = std::min(tasks_wanted_, max_tasks);
    const int64_t jobs_per_task = jobs / tasks, extra_jobs = jobs % tasks;
    execution.parallel_for(tasks, [&](std::ptrdiff_t task) {
      thread_local Memory memory;
      memory.resize(strip_);
      Job job = job_of(task * jobs_per_task + std::min<int64_t>(task, extra_jobs));
      for (int64_t remaining = jobs_per_task + (task < extra_jobs); remaining > 0; --remaining, advance(job))
        compute(tensors, job, memory);
    });
  }

  std::string describe() const override {
    return "rows from strips, bands of " + std::to_string(strip_.bands().front().rows) + " output rows, " +
           set_ + ", vectors of " + std::to_string(kernels_.lanes) + " columns";
  }

 private:
  // A unit of work: all filters of a group, at one output depth, in one band and one segment.
  struct Job {
    int64_t n, group, o, band, segment;
  };

  int64_t bands() const { return static_cast<int64_t>(strip_.bands().size()); }
  int64_t segments() const { return static_cast<int64_t>(strip_.segments().size()); }

  Job job_of(int64_t number) const {
    const auto take_index = [&number](int64_t count) {
      const int64_t index = number % count;
      number /= count;
      return index;
    };
    const int64_t segment = take_index(segments()), band = take_index(bands());
    const int64_t o = take_index(problem_.output[0]), group = take_index(problem_.group);
    return {number, group, o, band, segment};
  }

  // Moves to the next job without the divisions of job_of, which take as long as a small image.
  void advance(Job& job) const {
    if (++job.segment < segments()) return;
    job.segment = 0;
    if (++job.band < bands()) return;
    job.band = 0;
    if (++job.o < problem_.output[0]) return;
    job.o = 0;
    if (++job.group < problem_.group) return;
    job.group = 0;
    ++job.n;
  }

  // A thread's buffers, kept for the next run.
  struct Memory {
    std::vector<float> unaligned_strip, weights, convolved;

    void resize(const RowStrip& layout) {
      grow(unaligned_strip, layout.elements() + RowStrip::kLineFloats);
      grow(weights, static_cast<int64_t>(layout.taps().size()));
    }

    // Returns the strip, aligned to a cache line.
    float* strip() {
      const auto address = reinterpret_cast<uintptr_t>(unaligned_strip.data());
      constexpr uintptr_t kBytes = RowStrip::kLineFloats * sizeof(float);
      return unaligned_strip.data() + (kBytes - address % kBytes) % kBytes / sizeof(float);
    }
  };

  void compute(const ConvTensors& tensors, const Job& job, Memory& memory) const {
    const int64_t first_channel = (job.n * problem_.group + job.group) * problem_.channels_per_group();
    strip_.fill(static_cast<const T*>(tensors.x) + first_channel * problem_.input_size(), job.o, job.band,
                job.segment, memory.strip());
    const int64_t filters = problem_.filters_per_group(), first = job.group * filters;
    for (int64_t k = first; k < first + filters; ++k) compute_filter(tensors, job, k, memory);
  }

  void compute_filter(const ConvTensors& tensors, const Job& job, int64_t k, Memory& memory) const {
    const RowBand& band = strip_.bands()[job.band];
    const auto& [first_column, columns] = strip_.segments()[job.segment];
    const int64_t width = problem_.output[2];
    const int64_t image = job.n * problem_.out_channels + k;
    const int64_t row = (image * problem_.output[0] + job.o) * problem_.output[1] + band.first_row;
    const int64_t first = row * width + first_column;
    const T* const z = problem_.epilogue.has_residual ? static_cast<const T*>(tensors.z) + first : nullptr;
    const bool finishes = z != nullptr || activation_.deferred != Activation::none;
    if constexpr (std::is_same_v<T, float>) {
      if (!pools_) {
        float* const y = static_cast<float*>(tensors.y) + first;
        convolve(tensors, k, band.rows, columns, memory, y, width);
        if (finishes) finish(band.rows, columns, y, width, z, y);
        return;
      }
    }
    grow(memory.convolved, band.rows * columns);
    float* const convolved = memory.convolved.data();
    convolve(tensors, k, band.rows, columns, memory, convolved, columns);
    if (!pools_) {
      return finish(band.rows, columns, convolved, columns, z, static_cast<T*>(tensors.y) + first);
    }
    if (finishes) finish(band.rows, columns, convolved, columns, z, convolved);
    const int64_t result = image * problem_.result[1] + band.first_result;
    pool_rows(problem_, kernels_.activations, band, convolved,
              static_cast<T*>(tensors.y) + result * problem_.result[2]);
  }

  // Computes the convolution, its bias and a clamp. `pitch` is the distance of two rows in the target.
  void convolve(const ConvTensors& tensors, int64_t k, int64_t rows, int64_t columns, Memory& memory,
                float* target, int64_t pitch) const {
    const std::vector<int64_t>& taps = strip_.taps();
    float* const weights = memory.weights.data();
    const float* const strip = memory.strip();
    const T* const w = static_cast<const T*>(tensors.w) + k * static_cast<int64_t>(taps.size());
    for (size_t i = 0; i < taps.size(); ++i) weights[i] = static_cast<float>(w[taps[i]]);
    const float bias = tensors.b == nullptr ? 0.0f : static_cast<float>(static_cast<const T*>(tensors.b)[k]);
    const int64_t step = strip_.row_step();
    for (int64_t row = 0; row < std::min(step, rows); ++row) {
      kernels_.compute({strip + row * strip_.pitch(), step * strip_.pitch(), strip_.runs().data(),
                        static_cast<int64_t>(strip_.runs().size()), weights, bias, activation_.clips,
                        activation_.lower, activation_.upper,
                        step == 1 ? rows : ceil_divide(rows - row, step), columns, target + row * pitch,
                        step * pitch});
    }
  }

  // Applies the rest of the epilogue before the pool. `pitch` is the distance of two rows in `values`; rows
  // of the residual and the target lie as in y.
  template <typename Target>
  void finish(int64_t rows, int64_t columns, const float* values, int64_t pitch, const T* residual,
              Target* target) const {
    const int64_t width = problem_.output[2];
    if (width == columns && pitch == columns) {
      columns *= rows;  // contiguous rows form a single row
      rows = 1;
    }
    finish_rows<T, Target>(problem_.epilogue, activation_.deferred, kernels_.activations, rows, columns,
                           {values, pitch}, {residual, width}, {target, width});
  }

  const ConvProblem problem_;
  const RowLanesKernels& kernels_;
  const std::string set_;
  const int64_t tasks_wanted_;
  const RowStrip strip_;  // refers to problem_
  const SplitActivation activation_;
  const bool pools_;
};

}  // namespace

bool suits_row_lanes(const ConvProblem& problem, int lanes) {
  const int64_t channels = problem.channels_per_group();
  if (problem.output_elements() == 0 || channels == 0 || channels > kMaxChannels) return false;
  if (channels > 1 && problem.filters_per_group() > kMaxFiltersPerGroup) return false;
  const ConvProblem in_rows = column_as_row(problem);
  // Narrower rows would leave most of a vector unused.
  return 3 * in_rows.output[2] >= lanes && RowStrip::min_elements(in_rows) <= kMaxStripElements;
}

std::unique_ptr<Plan> make_row_lanes_plan(const ConvProblem& problem, const RowLanesKernels& kernels,
                                          std::string_view instruction_set) {
  if (problem.type == ElementType::float16) {
    return std::make_unique<RowLanesPlan<Float16>>(problem, kernels, instruction_set);
  }
  if (problem.type == ElementType::bfloat16) {
    return std::make_unique<RowLanesPlan<BFloat16>>(problem, kernels, instruction_set);
  }
  return std::make_unique<RowLanesPlan<float>>(problem, kernels, instruction_set);
}

}  // namespace convswap
