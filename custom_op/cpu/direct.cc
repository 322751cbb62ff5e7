// Direct convolution, vectorised over output positions.
//
// The idea: copy the part of the image that a band of output rows needs into a padded *phase image*, in
// which rows (and columns) with the same coordinate modulo the stride lie together. There every problem,
// whatever its stride, dilation and padding, is a stride-1 convolution without padding: with positions
// numbered i = p * pitch + q, tap (c, t, r, s) of every position reads phase_image[offset(c, t, r, s) + i],
//
//   offset = plane(c, t, (r * dilation) % stride, (s * dilation) % stride)
//            + (r * dilation / stride) * pitch + s * dilation / stride
//
// so one kernel with contiguous loads serves all problems. The price is the copy, small beside the
// multiplications, and the positions between the end of one row and the start of the next, computed and
// dropped: (pitch - Q) / pitch of the work.
//
// float16 and bfloat16 data become float in the phase image and are rounded once, when they are stored.
//
// Each task computes one band of rows of one image, group and output depth; where a pool follows, the rows
// that its windows take, which then lie in float beside the phase image.
//
// Filters of few channels have paths of their own: along rows (row_lanes.cc), and over channels where images
// are small (channel_lanes.cc).
//
// Limits: padding is zeros that are multiplied like data, so that an infinite weight over padding gives NaN,
// where `reference` leaves it out.

#include "cpu/direct.h"

#include <algorithm>
#include <type_traits>

#include "conv/arithmetic.h"
#include "conv/epilogue_math.h"
#include "conv/error.h"
#include "conv/messages.h"
#include "conv/small_floats.h"
#include "conv/with_activation.h"
#include "cpu/channel_lanes.h"
#include "cpu/direct_kernel.h"
#include "cpu/finish_rows.h"
#include "cpu/phase_axis.h"
#include "cpu/pool_rows.h"
#include "cpu/row_lanes.h"

namespace convswap {
namespace {

// A band's phase image should stay in a core's own cache.
constexpr int64_t kMostImageBytes = 256 * 1024;
// Each thread keeps its phase image for the next run.
constexpr int64_t kMostImageElements = 64 << 20;
// Fewer tasks than this would leave the threads of a common processor idle.
constexpr int64_t kFewestTasks = 32;
// Handing a task to another thread takes about as long as so many operations.
constexpr int64_t kFewestOperations = 50'000;
// Multiplications of a task for each number that it copies, and register tiles of a band.
constexpr int64_t kFewestTaps = 100;
constexpr int64_t kFewestTiles = 2;

struct InstructionSet {
  std::string_view name;
  bool available;
  const DirectKernels& kernels;
  const RowLanesKernels& row_lanes;
  const ChannelLanesKernels& channel_lanes;
};

const std::vector<InstructionSet>& instruction_sets() {
  static const std::vector<InstructionSet> sets = {
      {"avx512", __builtin_cpu_supports("avx512f") != 0, direct_kernels_avx512(), row_lanes_kernels_avx512(),
       channel_lanes_kernels_avx512()},
      {"avx2", __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"), direct_kernels_avx2(),
       row_lanes_kernels_avx2(), channel_lanes_kernels_avx2()},
      {"baseline", true, direct_kernels_baseline(), row_lanes_kernels_baseline(),
       channel_lanes_kernels_baseline()},
  };
  return sets;
}

// Of the phase image of the smallest band, one row or those of a pool's window. A double, because great
// strides and dilations make the product leave 64 bits, even of a tiny image. Without channels there is no
// image, but its rows are counted with.
double least_image_elements(const ConvProblem& problem) {
  const PhaseAxis rows(problem, 1);
  const PhaseAxis columns(problem, 2);
  const Pool& pool = problem.epilogue.pool;
  const int64_t least_rows = pool.kind == PoolKind::none ? 1 : std::min(problem.output[1], pool.kernel[0]);
  double product = 1;
  for (const int64_t factor :
       {std::max<int64_t>(1, problem.channels_per_group()), problem.filter[0], rows.phases, columns.phases,
        least_rows + rows.reach, problem.output[2] + columns.reach}) {
    product *= static_cast<double>(factor);
  }
  return product;
}

template <typename T>
class DirectPlan final : public Plan {
 public:
  DirectPlan(const ConvProblem& problem, const InstructionSet& set)
      : problem_(problem), set_(set), rows_(problem, 1), columns_(problem, 2) {
    pitch_ = problem.output[2] + columns_.reach;
    const int64_t planes = problem.channels_per_group() * problem.filter[0] * rows_.phases * columns_.phases;
    // No channels, no planes: every output is its bias.
    const int64_t row_bytes = std::max<int64_t>(1, planes * pitch_ * static_cast<int64_t>(sizeof(float)));
    band_ = std::clamp<int64_t>(kMostImageBytes / row_bytes - rows_.reach, 1, problem.output[1]);
    share_out();
    result_band_ = band_;
    activates_last_ = activates_after_pool(problem.epilogue);
    if (const Pool& pool = problem.epilogue.pool; pool.kind != PoolKind::none) {
      result_band_ = std::max<int64_t>(1, (band_ - pool.kernel[0]) / pool.stride[0] + 1);
      band_ = std::min(problem.output[1], (result_band_ - 1) * pool.stride[0] + pool.kernel[0]);
    }
    plane_ = (band_ + rows_.reach) * pitch_;
    image_elements_ = planes * plane_ + kMostPositions;  // the last tile reads past the last position
    set_tap_offsets();
  }

  void run(const ConvTensors& tensors, const Execution& execution) const override {
    const int64_t bands = ceil_divide(problem_.result[1], result_band_);
    const int64_t parts = ceil_divide(problem_.filters_per_group(), filters_);
    const int64_t tasks = problem_.batch * problem_.group * problem_.output[0] * bands * parts;
    const std::vector<float> widened = widened_weights(tensors);
    const float* weights = widened.empty() ? static_cast<const float*>(tensors.w) : widened.data();
    execution.parallel_for(tasks, [&](std::ptrdiff_t task) {
      const int64_t first_row = task % bands * result_band_;
      int64_t rest = task / bands;
      const int64_t first_filter = rest % parts * filters_;
      rest /= parts;
      const int64_t o = rest % problem_.output[0];
      rest /= problem_.output[0];
      const RowBand rows(problem_, first_row, std::min(result_band_, problem_.result[1] - first_row));
      compute_band(tensors, weights,
                   {rows, rest / problem_.group, rest % problem_.group, o, first_filter,
                    std::min(filters_, problem_.filters_per_group() - first_filter)});
    });
  }

  std::string describe() const override {
    return "bands of " + std::to_string(band_) + " output rows, " + std::string(set_.name) + ", tiles of " +
           std::to_string(kMostFilters) + " filters x " + std::to_string(set_.kernels.positions) +
           " positions";
  }

 private:
  struct Band : RowBand {
    int64_t n, group, o;
    int64_t first_filter, filters;  // of the group's
  };

  // Gives filters and rows to more tasks, where images, groups and depths alone would leave threads idle:
  // filters first, so far as what each task copies is little beside what it multiplies, then rows, so far as
  // they fill the tiles.
  void share_out() {
    filters_ = std::max<int64_t>(1, problem_.filters_per_group());
    // An empty output may be of any group: there the product could leave 64 bits.
    if (problem_.output_elements() == 0) return;
    const int64_t jobs = problem_.batch * problem_.group * problem_.output[0];
    const int64_t wanted = std::min(kFewestTasks, problem_.operations() / kFewestOperations);
    const int64_t bands = ceil_divide(problem_.output[1], band_);
    const int64_t fewest_filters = std::max<int64_t>(kMostFilters, kFewestTaps / problem_.filter_size());
    const int64_t parts = std::clamp<int64_t>(ceil_divide(wanted, jobs * bands), 1,
                                              std::max<int64_t>(1, filters_ / fewest_filters));
    filters_ = ceil_divide(filters_, parts);
    const int64_t others = jobs * ceil_divide(problem_.filters_per_group(), filters_);
    const int64_t bands_wanted = std::max<int64_t>(1, ceil_divide(wanted, others));
    const int64_t fewest_rows = ceil_divide(kFewestTiles * set_.kernels.positions, pitch_);
    band_ = std::min(band_, std::max(fewest_rows, ceil_divide(problem_.output[1], bands_wanted)));
  }

  // The weights as float; empty where they are float already.
  std::vector<float> widened_weights(const ConvTensors& tensors) const {
    std::vector<float> widened;
    if constexpr (!std::is_same_v<T, float>) {
      const T* weights = static_cast<const T*>(tensors.w);
      const int64_t count = problem_.out_channels * static_cast<int64_t>(tap_offsets_.size());
      widened.reserve(count);
      for (int64_t i = 0; i < count; ++i) widened.push_back(static_cast<float>(weights[i]));
    }
    return widened;
  }

  void set_tap_offsets() {
    for (int64_t c = 0; c < problem_.channels_per_group(); ++c) {
      for (int64_t t = 0; t < problem_.filter[0]; ++t) {
        for (int64_t r = 0; r < problem_.filter[1]; ++r) {
          for (int64_t s = 0; s < problem_.filter[2]; ++s) {
            const int64_t plane =
                ((c * problem_.filter[0] + t) * rows_.phases + rows_.phase(r)) * columns_.phases +
                columns_.phase(s);
            tap_offsets_.push_back(plane * plane_ + rows_.shift(r) * pitch_ + columns_.shift(s));
          }
        }
      }
    }
  }

  void compute_band(const ConvTensors& tensors, const float* all_weights, const Band& band) const {
    thread_local std::vector<float> image;
    if (static_cast<int64_t>(image.size()) < image_elements_) image.resize(image_elements_);
    fill_phase_image(static_cast<const T*>(tensors.x), band, image.data());

    const int64_t taps = static_cast<int64_t>(tap_offsets_.size());
    const int64_t filters = band.filters;
    const int64_t first_filter = band.group * problem_.filters_per_group() + band.first_filter;
    const int64_t positions = (band.rows - 1) * pitch_ + problem_.output[2];
    const bool pools = problem_.epilogue.pool.kind != PoolKind::none;
    thread_local std::vector<float> unpooled;
    const int64_t plane = band.rows * problem_.output[2];
    if (pools && static_cast<int64_t>(unpooled.size()) < kMostFilters * plane) {
      unpooled.resize(kMostFilters * plane);
    }
    alignas(64) float sums[kMostFilters * kMostPositions];
    const int64_t at_once = ceil_divide(filters, ceil_divide(filters, kMostFilters));  // 8 are 4 and 4
    for (int64_t k = 0; k < filters; k += at_once) {
      const int count = static_cast<int>(std::min(at_once, filters - k));
      const float* weights = all_weights + (first_filter + k) * taps;
      for (int64_t i = 0; i < positions; i += set_.kernels.positions) {
        set_.kernels.by_filters[count]({image.data() + i, tap_offsets_.data(), taps, weights, sums});
        if (pools) {
          store_tile(tensors, band, first_filter + k, count, i, sums, unpooled.data(), plane);
        } else {
          store_tile(tensors, band, first_filter + k, count, i, sums,
                     static_cast<T*>(tensors.y) + offset_of(band, first_filter + k, band.first_row),
                     problem_.output_size());
        }
      }
      if (pools) pool_band(tensors, band, first_filter + k, count, unpooled.data());
    }
  }

  void fill_phase_image(const T* x, const Band& band, float* image) const {
    const T* group = x + (band.n * problem_.in_channels + band.group * problem_.channels_per_group()) *
                             problem_.input_size();
    for (int64_t c = 0; c < problem_.channels_per_group(); ++c) {
      for (int64_t t = 0; t < problem_.filter[0]; ++t) {
        const int64_t d = band.o * problem_.stride[0] + t * problem_.dilation[0] - problem_.pad_begin[0];
        const bool inside = d >= 0 && d < problem_.input[0];
        const T* slice =
            inside ? group + (c * problem_.input[0] + d) * problem_.input[1] * problem_.input[2] : nullptr;
        for (int64_t row_phase = 0; row_phase < rows_.phases; ++row_phase) {
          for (int64_t column_phase = 0; column_phase < columns_.phases; ++column_phase) {
            fill_plane(slice, band, row_phase, column_phase, image);
            image += plane_;
          }
        }
      }
    }
  }

  // A null slice lies in the padding.
  void fill_plane(const T* slice, const Band& band, int64_t row_phase, int64_t column_phase,
                  float* plane) const {
    for (int64_t row = 0; row < band.rows + rows_.reach; ++row, plane += pitch_) {
      const int64_t h = (band.first_row + row) * rows_.stride + row_phase - problem_.pad_begin[1];
      if (slice == nullptr || h < 0 || h >= problem_.input[1]) {
        std::fill_n(plane, pitch_, 0.0f);
      } else {
        fill_row(slice + h * problem_.input[2], column_phase, plane);
      }
    }
  }

  void fill_row(const T* source, int64_t column_phase, float* row) const {
    const int64_t width = problem_.input[2];
    const int64_t offset = column_phase - problem_.pad_begin[2];
    const int64_t stride = columns_.stride;
    const auto [begin, end] = InsideColumns(offset, stride, width, pitch_);
    std::fill_n(row, begin, 0.0f);
    // Apart, because a stride known to be 1 makes it a vectorised copy.
    if (stride == 1) {
      for (int64_t j = begin; j < end; ++j) row[j] = static_cast<float>(source[j + offset]);
    } else {
      for (int64_t j = begin; j < end; ++j) row[j] = static_cast<float>(source[j * stride + offset]);
    }
    std::fill_n(row + end, pitch_ - end, 0.0f);
  }

  // Of a row of the convolution's output, in y without a pool and in the residual.
  int64_t offset_of(const Band& band, int64_t k, int64_t row) const {
    return (((band.n * problem_.out_channels + k) * problem_.output[0] + band.o) * problem_.output[1] + row) *
           problem_.output[2];
  }

  // Writes what comes of the sums of positions i, i + 1, ... that lie inside output rows. `target` is the
  // first filter's first row of the band, the others' lie `plane` further on.
  template <typename Target>
  void store_tile(const ConvTensors& tensors, const Band& band, int64_t first_filter, int count, int64_t i,
                  const float* sums, Target* target, int64_t plane) const {
    const int64_t width = problem_.output[2];
    const int64_t end = std::min(i + set_.kernels.positions, (band.rows - 1) * pitch_ + width);
    const Epilogue& epilogue = problem_.epilogue;
    const Activation activation = activates_last_ ? Activation::none : epilogue.activation;
    const bool is_plain = activation == Activation::none && !epilogue.has_residual;
    for (int filter = 0; filter < count; ++filter, sums += kMostPositions, target += plane) {
      const int64_t k = first_filter + filter;
      const float bias =
          tensors.b == nullptr ? 0.0f : static_cast<float>(static_cast<const T*>(tensors.b)[k]);
      for (int64_t row = i / pitch_; row * pitch_ < end; ++row) {
        const int64_t from = std::max<int64_t>(i - row * pitch_, 0);
        const int64_t to = std::min(end - row * pitch_, width);
        Target* const stored = target + row * width;
        const float* const found = sums + row * pitch_ - i;
        if (is_plain) {
          for (int64_t q = from; q < to; ++q) stored[q] = static_cast<Target>(found[q] + bias);
          continue;
        }
        const T* const residual = epilogue.has_residual ? static_cast<const T*>(tensors.z) +
                                                              offset_of(band, k, band.first_row + row)
                                                        : nullptr;
        finish_row(epilogue, activation, set_.kernels.activations, to - from, found + from, bias,
                   residual == nullptr ? nullptr : residual + from, stored + from);
      }
    }
  }

  // Writes the rows of y that the band's rows give, of so many filters.
  void pool_band(const ConvTensors& tensors, const Band& band, int64_t first_filter, int count,
                 const float* unpooled) const {
    const int64_t plane = band.rows * problem_.output[2];
    for (int filter = 0; filter < count; ++filter, unpooled += plane) {
      const int64_t image = band.n * problem_.out_channels + first_filter + filter;
      pool_rows(
          problem_, band, unpooled,
          static_cast<T*>(tensors.y) + (image * problem_.result[1] + band.first_result) * problem_.result[2]);
    }
  }

  ConvProblem problem_;
  const InstructionSet& set_;
  PhaseAxis rows_;
  PhaseAxis columns_;
  bool activates_last_ = false;  // what a pool takes, which the activation leaves the largest
  int64_t pitch_ = 0;            // elements from one row of a phase to the next
  int64_t band_ = 0;             // most rows of the convolution's output that a task computes
  int64_t result_band_ = 0;      // rows of y of a task
  int64_t filters_ = 0;          // most filters of a task
  int64_t plane_ = 0;            // elements of one phase of one slice
  int64_t image_elements_ = 0;
  std::vector<int64_t> tap_offsets_;
};

class Direct final : public Algorithm {
 public:
  std::string_view name() const override { return "direct"; }
  DeviceKind device_kind() const override { return DeviceKind::cpu; }

  Offer offer(const ConvProblem& problem, const Device&) const override {
    if (problem.type == ElementType::float64) {
      return Offer::refusal("it computes in float32 and the data are float64");
    }
    if (least_image_elements(problem) > kMostImageElements) {
      return Offer::refusal(
          "the part of the image that one row of results needs, with its channels and dilation, exceeds " +
          std::to_string(kMostImageElements * 4 >> 20) + " MiB");
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
    if (problem.type == ElementType::float16) return std::make_unique<DirectPlan<Float16>>(problem, set);
    if (problem.type == ElementType::bfloat16) return std::make_unique<DirectPlan<BFloat16>>(problem, set);
    return std::make_unique<DirectPlan<float>>(problem, set);
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
