// Convolution vectorised over output positions.
//
// The idea: copy the part of the image that a band of output rows needs into a padded *phase image*, in which
// rows (and columns) with the same coordinate modulo the stride lie together. There every problem, whatever
// its stride, dilation and padding, is a stride-1 convolution without padding: with positions numbered i = p
// * pitch + q, tap (c, t, r, s) of every position reads phase_image[offset(c, t, r, s) + i],
//
//   offset = plane(c, t, (r * dilation) % stride, (s * dilation) % stride)
//            + (r * dilation / stride) * pitch + s * dilation / stride
//
// so one kernel with contiguous loads serves all problems. The price is the copy, small beside the
// multiplications, and the positions between the end of one row and the start of the next, computed and
// dropped: (pitch - Q) / pitch of the work. Filters of one tap that see each pixel once read x itself.
//
// float16 and bfloat16 data become float in the phase image and are rounded once, when they are stored.
//
// Each task computes some filters of one band of rows of one image, group and output depth; where a pool
// follows, the rows that its windows take, which then lie in float beside the phase image. Tasks that read
// the same band share its phase image, which all threads copy before, where there is room for those of all.
//
// Limits: padding is zeros that are multiplied like data, so that an infinite weight over padding gives NaN,
// where `reference` leaves it out.

#include <algorithm>
#include <string>
#include <type_traits>
#include <vector>

#include "conv/arithmetic.h"
#include "conv/epilogue_math.h"
#include "conv/small_floats.h"
#include "cpu/direct_plans.h"
#include "cpu/epilogue_rows.h"
#include "cpu/phase_rows.h"

namespace convswap {
namespace {

// A band's phase image should stay in a core's own cache, unless its rows are too few to fill tiles.
constexpr int64_t kMostImageBytes = 256 * 1024, kMostBytesOfFewRows = 4 << 20;
// Of all images that tasks share; the thread that runs the plan keeps them for the next run.
constexpr int64_t kMostSharedElements = 16 << 20;
// Fewer tasks than this would leave the threads of a common processor idle.
constexpr int64_t kFewestTasks = 32;
// Handing a task to another thread takes about as long as so many operations.
constexpr int64_t kFewestOperations = 50'000;
// Filters of a task that reads the same image as others, and register tiles of a band.
constexpr int64_t kFewestFilters = 12, kFewestTiles = 2;
// So many tasks are not given up for bands that fill their vectors better.
constexpr int64_t kEnoughTasks = 8;
// Filters that go through a band together have weights that stay in the second cache, and what a pool takes
// of them does.
constexpr int64_t kMostWeightBytes = 512 * 1024, kMostUnpooledBytes = 256 * 1024;
// All filters are multiplied with what some taps read of a tile's image before the next are: so much memory
// stays in the nearest cache.
constexpr int64_t kMostReadBytes = 24 * 1024;
constexpr int64_t kMostReadElements = kMostReadBytes / static_cast<int64_t>(sizeof(float));
// Planes so far apart, or a multiple, share few places of the nearest cache.
constexpr int64_t kConflictingBytes = 2048;
constexpr int64_t kLine = 16;  // floats of a cache line, and of the widest vector

template <typename T>
class PositionLanesPlan final : public Plan {
 public:
  PositionLanesPlan(const ConvProblem& problem, const PositionLanesKernels& kernels,
                    const RowLanesKernels& row_kernels, std::string_view instruction_set)
      : problem_(problem),
        kernels_(kernels),
        row_kernels_(row_kernels),
        instruction_set_(instruction_set),
        rows_(problem, 1),
        columns_(problem, 2),
        activation_(activates_after_pool(problem.epilogue) ? Activation::none : problem.epilogue.activation),
        clip_(problem.epilogue, true) {
    const bool conflicts =
        problem.input_size() * static_cast<int64_t>(sizeof(float)) % kConflictingBytes == 0;
    reads_in_place_ = std::is_same_v<T, float> && reads_each_pixel_once(problem) && !conflicts;
    pitch_ = problem.output[2] + columns_.reach;
    // No channels, no planes: every output is its bias.
    const int64_t row_bytes =
        std::max<int64_t>(1, slices() * slice_planes() * pitch_ * static_cast<int64_t>(sizeof(float)));
    const int64_t rows = std::max(kMostImageBytes / row_bytes - rows_.reach,
                                  std::min(fewest_rows(), kMostBytesOfFewRows / row_bytes - rows_.reach));
    band_ = std::clamp<int64_t>(rows, 1, problem.output[1]);
    share_out();
    result_band_ = band_;
    if (const Pool& pool = problem.epilogue.pool; pool.kind != PoolKind::none) {
      result_band_ = std::max<int64_t>(1, (band_ - pool.kernel[0]) / pool.stride[0] + 1);
      band_ = std::min(problem.output[1], (result_band_ - 1) * pool.stride[0] + pool.kernel[0]);
    }
    if (reads_in_place_) {
      plane_ = problem.input_size();
    } else {
      plane_ = (band_ + rows_.reach) * pitch_ + kLine;  // copies of rows end with a vector
      // The last tile reads past the last position.
      image_elements_ = slices() * slice_planes() * plane_ + kMostPositions;
    }
    set_tap_offsets();
    set_taps_at_once();
  }

  void run(const ConvTensors& tensors, const Execution& execution) const override {
    const int64_t bands = ceil_divide(problem_.result[1], result_band_);
    const int64_t parts = ceil_divide(problem_.filters_per_group(), filters_);
    const int64_t images = problem_.batch * problem_.group * problem_.output[0] * bands;
    if (images == 0) return;
    const std::vector<float> widened = widened_weights(tensors);
    const float* weights = widened.empty() ? static_cast<const float*>(tensors.w) : widened.data();
    const auto band_of = [&](int64_t image) {
      const RowBand rows(problem_, image % bands * result_band_,
                         std::min(result_band_, problem_.result[1] - image % bands * result_band_));
      const int64_t plane = image / bands / problem_.output[0];
      return Band{rows, plane / problem_.group, plane % problem_.group, image / bands % problem_.output[0]};
    };
    // Tasks that compute from the same image share it, where there is room for all.
    const bool shares = parts > 1 && !reads_in_place_ && images <= kMostSharedElements / image_elements_;
    thread_local std::vector<float> shared;
    if (shares) {
      grow(shared, images * image_elements_);
      const int64_t at_once = ceil_divide(slices(), std::min(slices(), ceil_divide(kFewestTasks, images)));
      const int64_t pieces = ceil_divide(slices(), at_once);
      execution.parallel_for(images * pieces, [&, image = shared.data()](std::ptrdiff_t task) {
        const int64_t first = task % pieces * at_once;
        fill_image(static_cast<const T*>(tensors.x), band_of(task / pieces), first,
                   std::min(slices(), first + at_once), image + task / pieces * image_elements_);
      });
    }
    execution.parallel_for(images * parts, [&, image = shared.data()](std::ptrdiff_t task) {
      Band band = band_of(task / parts);
      band.first_filter = task % parts * filters_;
      band.filters = std::min(filters_, problem_.filters_per_group() - band.first_filter);
      compute_band(tensors, weights, band, shares ? image + task / parts * image_elements_ : nullptr);
    });
  }

  std::string describe() const override {
    return "bands of " + std::to_string(band_) + " output rows, " + instruction_set_ + ", tiles of " +
           std::to_string(kMostFilters) + " filters x " + std::to_string(kernels_.positions) + " positions";
  }

 private:
  struct Band : RowBand {
    int64_t n, group, o;
    int64_t first_filter = 0, filters = 0;  // of the group's
  };

  static bool reads_each_pixel_once(const ConvProblem& problem) {
    for (size_t axis = 0; axis < 3; ++axis) {
      if (problem.filter[axis] != 1 || problem.stride[axis] != 1 || problem.pad_begin[axis] != 0 ||
          problem.output[axis] != problem.input[axis]) {
        return false;
      }
    }
    return true;
  }

  // A channel at a depth of the filter, and the planes of its phases.
  int64_t slices() const { return problem_.channels_per_group() * problem_.filter[0]; }
  int64_t slice_planes() const { return rows_.phases * columns_.phases; }

  // Gives filters and rows to more tasks, where images, groups and depths alone would leave threads idle:
  // first those whose memory is larger, of which each task then has its own part, while all of them read the
  // other.
  void share_out() {
    filters_ = std::max<int64_t>(1, problem_.filters_per_group());
    // An empty output may be of any group: there the product could leave 64 bits.
    if (problem_.output_elements() == 0) return;
    const int64_t jobs = problem_.batch * problem_.group * problem_.output[0];
    const int64_t wanted = std::min(kFewestTasks, problem_.operations() / kFewestOperations);
    const int64_t pixels = slices() * slice_planes() * problem_.output[1] * problem_.output[2];
    const bool has_more_weights =
        problem_.filters_per_group() * problem_.filter_size() * problem_.channels_per_group() > pixels;
    if (has_more_weights) share_filters(jobs * ceil_divide(problem_.output[1], band_), wanted);
    share_rows(jobs * ceil_divide(problem_.filters_per_group(), filters_), wanted);
    if (!has_more_weights) share_filters(jobs * ceil_divide(problem_.output[1], band_), wanted);
  }

  // So far as what all tasks read is little beside what they multiply.
  void share_filters(int64_t others, int64_t wanted) {
    const int64_t parts =
        std::clamp<int64_t>(ceil_divide(wanted, others), 1, std::max<int64_t>(1, filters_ / kFewestFilters));
    filters_ = std::min(filters_, round_up(ceil_divide(filters_, parts), int64_t{kMostFilters}));
  }

  // So far as they fill the tiles.
  void share_rows(int64_t others, int64_t wanted) {
    const int64_t all = problem_.output[1];
    const int64_t bands_wanted = std::max<int64_t>(1, ceil_divide(wanted, others));
    const int64_t fewest = std::min(band_, std::max(fewest_rows(), ceil_divide(all, bands_wanted)));
    int64_t best = fewest;
    for (int64_t rows = fewest + 1; rows <= std::min(band_, 2 * fewest - 1); ++rows) {
      const int64_t bands = ceil_divide(all, rows);
      if (bands < ceil_divide(all, fewest) && bands * others < kEnoughTasks) break;
      if (vectors_of_bands(rows) < vectors_of_bands(best)) best = rows;
    }
    band_ = best;
  }

  // Of a filter's positions in all bands of so many rows.
  int64_t vectors_of_bands(int64_t rows) const {
    const auto vectors = [&](int64_t of_band) {
      return ceil_divide((of_band - 1) * pitch_ + problem_.output[2], int64_t{kernels_.lanes});
    };
    const int64_t whole = problem_.output[1] / rows, rest = problem_.output[1] % rows;
    return whole * vectors(rows) + (rest == 0 ? 0 : vectors(rest));
  }

  int64_t fewest_rows() const { return ceil_divide(kFewestTiles * kernels_.positions, pitch_); }

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
    for (int64_t slice = 0; slice < slices(); ++slice) {
      for (int64_t r = 0; r < problem_.filter[1]; ++r) {
        for (int64_t s = 0; s < problem_.filter[2]; ++s) {
          const int64_t plane = (slice * rows_.phases + rows_.phase(r)) * columns_.phases + columns_.phase(s);
          tap_offsets_.push_back(plane * plane_ + rows_.shift(r) * pitch_ + columns_.shift(s));
        }
      }
    }
  }

  void set_taps_at_once() {
    // At worst each tap reads memory of its own.
    taps_at_once_ = kMostReadElements / kernels_.positions;
    if (reads_in_place_) {
      for (int64_t tap = 0; tap < taps_at_once_; ++tap) copied_offsets_.push_back(tap * kernels_.positions);
      return;
    }
    // Rows that are near share what lies between them, others have it for each tap.
    const int64_t columns = kernels_.positions + columns_.reach;
    const int64_t of_slice = columns_.phases * std::min(rows_.phases * (rows_.reach * pitch_ + columns),
                                                        problem_.filter[1] * columns);
    taps_at_once_ =
        std::max(taps_at_once_, kMostReadElements / of_slice * problem_.filter[1] * problem_.filter[2]);
  }

  // Some slices of a band's phase image.
  void fill_image(const T* x, const Band& band, int64_t first, int64_t end, float* image) const {
    const PhaseRows phase_rows(problem_, row_kernels_, pitch_, plane_);
    const T* const group = x + first_channel(band) * problem_.input_size();
    for (int64_t slice = first; slice < end; ++slice) {
      const T* const source = phase_rows.slice(group, band.o, slice);
      for (int64_t phase = 0; phase < rows_.phases; ++phase) {
        const int64_t first_row = band.first_row * rows_.stride + phase - problem_.pad_begin[1];
        const int64_t rows = band.rows + rows_.reach;
        const InsideColumns inside(first_row, rows_.stride, problem_.input[1], rows);
        phase_rows.fill(source, {first_row, inside, rows, 0, pitch_},
                        image + (slice * slice_planes() + phase * columns_.phases) * plane_);
      }
    }
  }

  int64_t first_channel(const Band& band) const {
    return band.n * problem_.in_channels + band.group * problem_.channels_per_group();
  }

  // What the band's tiles read: x itself, the image that is shared, or one that is filled here.
  const float* image_of(const ConvTensors& tensors, const Band& band, const float* shared) const {
    if constexpr (std::is_same_v<T, float>) {
      if (reads_in_place_) {
        return static_cast<const float*>(tensors.x) + first_channel(band) * problem_.input_size() +
               (band.o * problem_.input[1] + band.first_row) * problem_.input[2];
      }
    }
    if (shared != nullptr) return shared;
    thread_local std::vector<float> image;
    grow(image, image_elements_);
    fill_image(static_cast<const T*>(tensors.x), band, 0, slices(), image.data());
    return image.data();
  }

  void compute_band(const ConvTensors& tensors, const float* weights, Band band, const float* shared) const {
    const float* const image = image_of(tensors, band, shared);
    const bool pools = problem_.epilogue.pool.kind != PoolKind::none;
    int64_t most = kMostWeightBytes / (std::max<int64_t>(1, taps()) * static_cast<int64_t>(sizeof(float)));
    if (pools) {
      const int64_t plane = std::max<int64_t>(1, band.rows * problem_.output[2]);
      most = std::min(most, kMostUnpooledBytes / (plane * static_cast<int64_t>(sizeof(float))));
    }
    most = std::max<int64_t>(most / kMostFilters, 1) * kMostFilters;
    const int64_t filters = ceil_divide(band.filters, ceil_divide(band.filters, most));
    for (const int64_t end = band.first_filter + band.filters; band.first_filter < end;
         band.first_filter += filters) {
      band.filters = std::min(filters, end - band.first_filter);
      if (pools) {
        compute_pooled(tensors, weights, band, image);
      } else {
        compute_filters(tensors, weights, band, image,
                        static_cast<T*>(tensors.y) + offset_of(band, first_filter(band), band.first_row),
                        problem_.output_size());
      }
    }
  }

  void compute_pooled(const ConvTensors& tensors, const float* weights, const Band& band,
                      const float* image) const {
    thread_local std::vector<float> unpooled;
    const int64_t plane = band.rows * problem_.output[2];
    grow(unpooled, band.filters * plane);
    compute_filters(tensors, weights, band, image, unpooled.data(), plane);
    for (int64_t filter = 0; filter < band.filters; ++filter) {
      const int64_t y_plane = band.n * problem_.out_channels + first_filter(band) + filter;
      pool_rows(problem_, kernels_.activations, band, unpooled.data() + filter * plane,
                static_cast<T*>(tensors.y) +
                    (y_plane * problem_.result[1] + band.first_result) * problem_.result[2]);
    }
  }

  // Writes the convolution's rows, of a filter each `plane` behind the one before.
  template <typename Target>
  void compute_filters(const ConvTensors& tensors, const float* all_weights, const Band& band,
                       const float* image, Target* target, int64_t plane) const {
    const float* const weights = all_weights + first_filter(band) * taps();
    const int64_t positions = (band.rows - 1) * pitch_ + problem_.output[2];
    thread_local std::vector<float> sums;
    grow(sums, band.filters * kMostPositions);
    for (int64_t i = 0; i < positions; i += kMostPositions) {
      const int64_t end = std::min<int64_t>(i + kMostPositions, positions);
      for (int64_t j = i; j < end; j += kernels_.positions) {
        const int64_t count = std::min<int64_t>(kernels_.positions, end - j);
        multiply(image + j, count, weights, band.filters, sums.data() + j - i);
      }
      store_tile(tensors, band, i, end, sums.data(), target, plane);
    }
  }

  // Of all groups' filters.
  int64_t first_filter(const Band& band) const {
    return band.group * problem_.filters_per_group() + band.first_filter;
  }

  int64_t taps() const { return static_cast<int64_t>(tap_offsets_.size()); }

  // The sums of a tile's positions. A few that fill no vector are computed one by one where they are x's own.
  void multiply(const float* image, int64_t positions, const float* weights, int64_t filters,
                float* sums) const {
    const int64_t alone = alone_of(positions);
    if (positions > alone) multiply_vectors(image, positions - alone, weights, filters, sums);
    for (int64_t i = positions - alone; i < positions; ++i) {
      kernels_.multiply_one({read_by_taps(image + i), taps(), weights, filters, sums + i});
    }
  }

  int64_t alone_of(int64_t positions) const {
    const int64_t rest = positions % kernels_.lanes;
    const int64_t most = positions < kernels_.lanes ? kernels_.lanes / 4 : kernels_.lanes / 8;
    return reads_in_place_ && rest <= most ? rest : 0;
  }

  const float* read_by_taps(const float* position) const {
    if (plane_ == 1) return position;
    thread_local std::vector<float> read;
    grow(read, taps());
    for (int64_t tap = 0; tap < taps(); ++tap) read[tap] = position[tap_offsets_[tap]];
    return read.data();
  }

  // Of some taps at a time, so that what all filters read stays in the nearest cache.
  void multiply_vectors(const float* image, int64_t positions, const float* weights, int64_t filters,
                        float* sums) const {
    alignas(64) float copied[kMostReadElements];
    const int64_t lanes = kernels_.lanes, vectors = ceil_divide(positions, lanes);
    const int64_t at_once = ceil_divide(filters, ceil_divide(filters, kMostFilters));  // 8 are 4 and 4
    const bool copies = reads_in_place_ && positions % lanes != 0;  // x may end behind the last position
    for (int64_t tap = 0; tap < std::max<int64_t>(taps(), 1); tap += taps_at_once_) {
      const int64_t count = std::min(taps_at_once_, taps() - tap);
      const int64_t* const offsets = tap_offsets_.data() + tap;
      if (copies) copy_positions(image, offsets, count, positions, copied);
      for (int64_t k = 0; k < filters; k += at_once) {
        kernels_.compute[vectors][std::min(at_once, filters - k)](
            {copies ? copied : image, copies ? copied_offsets_.data() : offsets, count,
             weights + k * taps() + tap, taps(), tap > 0, sums + k * kMostPositions});
      }
    }
  }

  void copy_positions(const float* image, const int64_t* offsets, int64_t taps, int64_t positions,
                      float* copied) const {
    for (int64_t tap = 0; tap < taps; ++tap) {
      std::copy_n(image + offsets[tap], positions, copied + copied_offsets_[tap]);
    }
  }

  // Of a row of the convolution's output, in y without a pool and in the residual.
  int64_t offset_of(const Band& band, int64_t k, int64_t row) const {
    return (((band.n * problem_.out_channels + k) * problem_.output[0] + band.o) * problem_.output[1] + row) *
           problem_.output[2];
  }

  // Writes what comes of the sums of positions i to `end` that lie inside output rows. `target` is the first
  // filter's first row of the band, the others' lie `plane` further on.
  template <typename Target>
  void store_tile(const ConvTensors& tensors, const Band& band, int64_t i, int64_t end, float* sums,
                  Target* target, int64_t plane) const {
    // Rows without a gap between them are one.
    const bool is_whole = pitch_ == problem_.output[2];
    const int64_t width = is_whole ? end : problem_.output[2], pitch = is_whole ? end : pitch_;
    // All positions at once where the activation has a kernel or, of numbers that are stored by others, is a
    // clip: there are more of them than of a row. A residual, which comes before, is read by rows.
    const auto kernel = activation_kernel(kernels_.activations, activation_);
    const bool clips = clip_.clips && !std::is_same_v<T, float>;
    const bool activates_all = tensors.z == nullptr && (kernel != nullptr || clips);
    for (int64_t filter = 0; filter < band.filters; ++filter, sums += kMostPositions, target += plane) {
      const int64_t k = first_filter(band) + filter;
      float bias = tensors.b == nullptr ? 0.0f : static_cast<float>(static_cast<const T*>(tensors.b)[k]);
      const T* const residual = tensors.z == nullptr
                                    ? nullptr
                                    : static_cast<const T*>(tensors.z) + offset_of(band, k, band.first_row);
      if (activates_all) {
        kernels_.finish({sums, bias, nullptr, clips, clip_.least, clip_.most, end - i, sums});
        if (kernel != nullptr) kernel(sums, end - i);
        bias = -0.0f;  // which adds nothing, to a zero of either sign
      }
      for (int64_t row = i / pitch; row * pitch < end; ++row) {
        const int64_t from = std::max<int64_t>(i - row * pitch, 0);
        const int64_t to = std::min(end - row * pitch, width);
        const int64_t first = row * width + from;
        finish(sums + row * pitch + from - i, bias, residual == nullptr ? nullptr : residual + first,
               activates_all ? Activation::none : activation_, to - from, target + first);
      }
    }
  }

  template <typename Target>
  void finish(const float* sums, float bias, const T* residual, Activation activation, int64_t columns,
              Target* target) const {
    if constexpr (std::is_same_v<T, float>) {
      if (activation == Activation::none || clip_.clips) {
        return kernels_.finish({sums, bias, residual, clip_.clips, clip_.least, clip_.most, columns, target});
      }
    }
    finish_row(problem_.epilogue, activation, kernels_.activations, columns, sums, bias, residual, target);
  }

  ConvProblem problem_;
  const PositionLanesKernels& kernels_;
  const RowLanesKernels& row_kernels_;
  const std::string instruction_set_;
  PhaseAxis rows_;
  PhaseAxis columns_;
  const Activation activation_;  // but for one that a pool comes before
  const SplitActivation clip_;   // of data that are float
  bool reads_in_place_ = false;  // the phase image would be x
  int64_t pitch_ = 0;            // elements from one row of a phase to the next
  int64_t band_ = 0;             // most rows of the convolution's output that a task computes
  int64_t result_band_ = 0;      // rows of y of a task
  int64_t filters_ = 0;          // most filters of a task
  int64_t plane_ = 0;            // elements of one phase of one slice
  int64_t image_elements_ = 0;
  int64_t taps_at_once_ = 0;
  std::vector<int64_t> tap_offsets_, copied_offsets_;
};

}  // namespace

// Of the phase image of the smallest band, one row or those of a pool's window. A double, because great
// strides and dilations make the product leave 64 bits, even of a tiny image. Without channels there is no
// image, but its rows are counted with.
double least_image_elements(const ConvProblem& problem) {
  const PhaseAxis rows(problem, 1);
  const PhaseAxis columns(problem, 2);
  const Pool& pool = problem.epilogue.pool;
  const int64_t least_rows = pool.kind == PoolKind::none ? 1 : std::min(problem.output[1], pool.kernel[0]);
  const auto number = [](int64_t count) { return static_cast<double>(count); };
  const double plane =
      number(least_rows + rows.reach) * number(problem.output[2] + columns.reach) + number(kLine);
  return number(std::max<int64_t>(1, problem.channels_per_group())) * number(problem.filter[0]) *
         number(rows.phases) * number(columns.phases) * plane;
}

std::unique_ptr<Plan> make_position_lanes_plan(const ConvProblem& problem,
                                               const PositionLanesKernels& kernels,
                                               const RowLanesKernels& row_kernels,
                                               std::string_view instruction_set) {
  if (problem.type == ElementType::float16) {
    return std::make_unique<PositionLanesPlan<Float16>>(problem, kernels, row_kernels, instruction_set);
  }
  if (problem.type == ElementType::bfloat16) {
    return std::make_unique<PositionLanesPlan<BFloat16>>(problem, kernels, row_kernels, instruction_set);
  }
  return std::make_unique<PositionLanesPlan<float>>(problem, kernels, row_kernels, instruction_set);
}

}  // namespace convswap
