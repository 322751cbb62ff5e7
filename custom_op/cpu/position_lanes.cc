// The path of `direct` for all other problems, vectorised over output positions.
//
// The part of the image that a band of output rows reads is copied into a padded *phase image*, in which rows
// (and columns) with the same coordinate modulo the stride lie together. In the phase image every problem is
// a stride-1 convolution without padding, whatever its stride, dilation and padding. With positions numbered
// i = p * pitch + q, tap (c, t, r, s) of every position reads phase_image[offset(c, t, r, s) + i],
//
//   offset = plane(c, t, (r * dilation) % stride, (s * dilation) % stride)
//            + (r * dilation / stride) * pitch + s * dilation / stride
//
// so one kernel with contiguous loads computes all problems. The costs are the copy, which is short compared
// with the multiplications, and the positions between the end of one row and the start of the next, which are
// computed and dropped: (pitch - Q) / pitch of the work. float32 1x1 filters with stride 1 and without
// padding read x itself, without a copy, unless the planes of x conflict in the L1 cache.
//
// float16 and bfloat16 data become float in the phase image and are rounded once, when the results are
// stored.
//
// A task computes some filters of one band of rows, for one image, group and output depth. With a pool the
// band has the rows that the pool's windows cover, and its results stay in a float buffer until they are
// pooled. Tasks that read the same band share its phase image if memory suffices for all phase images. All
// threads then copy the phase images before any task computes.
//
// Padding is zeros that are multiplied like data. An infinite weight over padding therefore gives NaN, unlike
// in `reference`, which skips padding.

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

// A band's phase image should stay in a core's L2 cache. It may be larger if its rows would not fill the
// tiles.
constexpr int64_t kMaxImageBytes = 256 * 1024, kMaxBytesOfMinRows = 4 << 20;
// Total size of the phase images that tasks share. The thread that runs the plan keeps them for the next run.
constexpr int64_t kMaxSharedElements = 16 << 20;
// Number of tasks that keeps the threads of a common processor busy.
constexpr int64_t kTargetTasks = 32;
// Operations that take about as long as handing a task to another thread.
constexpr int64_t kMinOperations = 50'000;
// Minimum filters of a task that shares a phase image, and minimum register tiles of a band.
constexpr int64_t kMinFilters = 12, kMinTiles = 2;
// Bands that fill their vectors better must not reduce the number of tasks below this.
constexpr int64_t kEnoughTasks = 8;
// Filters that are computed together: their weights and their results before a pool stay in the L2 cache.
constexpr int64_t kMaxWeightBytes = 512 * 1024, kMaxUnpooledBytes = 256 * 1024;
// Maximum bytes of the phase image that a tile reads for the taps of one pass. They stay in the L1 cache
// while all filters are multiplied with them.
constexpr int64_t kMaxReadBytes = 24 * 1024;
constexpr int64_t kMaxReadElements = kMaxReadBytes / static_cast<int64_t>(sizeof(float));
// Planes at this distance, or a multiple of it, map to few sets of the L1 cache.
constexpr int64_t kConflictingBytes = 2048;
constexpr int64_t kLineFloats = 16;  // of a cache line and of the widest vector

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
    pitch_ = problem.output[2] + columns_.halo;
    // Without channels there are no planes, and every output is its bias.
    const int64_t row_bytes =
        std::max<int64_t>(1, slices() * slice_planes() * pitch_ * static_cast<int64_t>(sizeof(float)));
    const int64_t rows = std::max(kMaxImageBytes / row_bytes - rows_.halo,
                                  std::min(min_band_rows(), kMaxBytesOfMinRows / row_bytes - rows_.halo));
    band_ = std::clamp<int64_t>(rows, 1, problem.output[1]);
    split_work();
    result_band_ = band_;
    if (const Pool& pool = problem.epilogue.pool; pool.kind != PoolKind::none) {
      result_band_ = std::max<int64_t>(1, (band_ - pool.kernel[0]) / pool.stride[0] + 1);
      band_ = std::min(problem.output[1], (result_band_ - 1) * pool.stride[0] + pool.kernel[0]);
    }
    if (reads_in_place_) {
      plane_ = problem.input_size();
    } else {
      plane_ = (band_ + rows_.halo) * pitch_ + kLineFloats;  // a row's copy may end with a whole vector
      // The last tile reads past the last position.
      image_elements_ = slices() * slice_planes() * plane_ + kMaxPositions;
    }
    set_tap_offsets();
    set_taps_per_pass();
  }

  void run(const ConvTensors& tensors, const Execution& execution) const override {
    const int64_t bands = ceil_divide(problem_.result[1], result_band_);
    const int64_t filter_splits = ceil_divide(problem_.filters_per_group(), filters_);
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
    // Tasks that read the same phase image share it if memory suffices for all images.
    const bool shares_images =
        filter_splits > 1 && !reads_in_place_ && images <= kMaxSharedElements / image_elements_;
    thread_local std::vector<float> shared;
    if (shares_images) {
      grow(shared, images * image_elements_);
      const int64_t slices_per_task =
          ceil_divide(slices(), std::min(slices(), ceil_divide(kTargetTasks, images)));
      const int64_t fill_tasks = ceil_divide(slices(), slices_per_task);
      execution.parallel_for(images * fill_tasks, [&, image = shared.data()](std::ptrdiff_t task) {
        const int64_t first = task % fill_tasks * slices_per_task;
        fill_image(static_cast<const T*>(tensors.x), band_of(task / fill_tasks), first,
                   std::min(slices(), first + slices_per_task), image + task / fill_tasks * image_elements_);
      });
    }
    execution.parallel_for(images * filter_splits, [&, image = shared.data()](std::ptrdiff_t task) {
      Band band = band_of(task / filter_splits);
      band.first_filter = task % filter_splits * filters_;
      band.filters = std::min(filters_, problem_.filters_per_group() - band.first_filter);
      compute_band(tensors, weights, band,
                   shares_images ? image + task / filter_splits * image_elements_ : nullptr);
    });
  }

  std::string describe() const override {
    return "bands of " + std::to_string(band_) + " output rows, " + instruction_set_ + ", tiles of " +
           std::to_string(kMaxFilters) + " filters x " + std::to_string(kernels_.positions) + " positions";
  }

 private:
  struct Band : RowBand {
    int64_t n, group, o;
    int64_t first_filter = 0, filters = 0;  // relative to the group's first filter
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

  // Number of slices, which are pairs of a channel and an index along the filter's depth.
  int64_t slices() const { return problem_.channels_per_group() * problem_.filter[0]; }
  // Number of phase planes per slice.
  int64_t slice_planes() const { return rows_.phases * columns_.phases; }

  // Splits filters and rows among more tasks if images, groups and depths alone would leave threads idle. The
  // operand with more memory (weights or image) is split first: each task then has its own part of that
  // operand, and all tasks read the other.
  void split_work() {
    filters_ = std::max<int64_t>(1, problem_.filters_per_group());
    // With an empty output `group` may be so large that the product overflows.
    if (problem_.output_elements() == 0) return;
    const int64_t jobs = problem_.batch * problem_.group * problem_.output[0];
    const int64_t wanted = std::min(kTargetTasks, problem_.operations() / kMinOperations);
    const int64_t pixels = slices() * slice_planes() * problem_.output[1] * problem_.output[2];
    const bool has_more_weights =
        problem_.filters_per_group() * problem_.filter_size() * problem_.channels_per_group() > pixels;
    if (has_more_weights) split_filters(jobs * ceil_divide(problem_.output[1], band_), wanted);
    split_rows(jobs * ceil_divide(problem_.filters_per_group(), filters_), wanted);
    if (!has_more_weights) split_filters(jobs * ceil_divide(problem_.output[1], band_), wanted);
  }

  // Splits the filters among tasks of at least kMinFilters filters, so that reading the shared image costs
  // little compared with the multiplications. `jobs` is the number of tasks without a split.
  void split_filters(int64_t jobs, int64_t wanted) {
    const int64_t splits =
        std::clamp<int64_t>(ceil_divide(wanted, jobs), 1, std::max<int64_t>(1, filters_ / kMinFilters));
    filters_ = std::min(filters_, round_up(ceil_divide(filters_, splits), int64_t{kMaxFilters}));
  }

  // Splits the rows into bands of at least min_band_rows() rows. `jobs` is the number of tasks without a
  // split.
  void split_rows(int64_t jobs, int64_t wanted) {
    const int64_t all_rows = problem_.output[1];
    const int64_t bands_wanted = std::max<int64_t>(1, ceil_divide(wanted, jobs));
    const int64_t min_rows_of_band =
        std::min(band_, std::max(min_band_rows(), ceil_divide(all_rows, bands_wanted)));
    int64_t best = min_rows_of_band;
    for (int64_t rows = min_rows_of_band + 1; rows <= std::min(band_, 2 * min_rows_of_band - 1); ++rows) {
      const int64_t bands = ceil_divide(all_rows, rows);
      if (bands < ceil_divide(all_rows, min_rows_of_band) && bands * jobs < kEnoughTasks) break;
      if (vectors_in_bands(rows) < vectors_in_bands(best)) best = rows;
    }
    band_ = best;
  }

  // The number of vectors that a filter's positions fill in all bands of `rows` rows.
  int64_t vectors_in_bands(int64_t rows) const {
    const auto vectors = [&](int64_t band_rows) {
      return ceil_divide((band_rows - 1) * pitch_ + problem_.output[2], int64_t{kernels_.lanes});
    };
    const int64_t full_bands = problem_.output[1] / rows, remainder = problem_.output[1] % rows;
    return full_bands * vectors(rows) + (remainder == 0 ? 0 : vectors(remainder));
  }

  int64_t min_band_rows() const { return ceil_divide(kMinTiles * kernels_.positions, pitch_); }

  // Returns the weights as float; empty if they are float already.
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

  void set_taps_per_pass() {
    // In the worst case no two taps read the same memory.
    taps_per_pass_ = kMaxReadElements / kernels_.positions;
    if (reads_in_place_) {
      for (int64_t tap = 0; tap < taps_per_pass_; ++tap) copied_offsets_.push_back(tap * kernels_.positions);
      return;
    }
    // Rows near each other form one contiguous range; rows far apart are one range per tap row.
    const int64_t columns = kernels_.positions + columns_.halo;
    const int64_t slice_elements = columns_.phases * std::min(rows_.phases * (rows_.halo * pitch_ + columns),
                                                              problem_.filter[1] * columns);
    taps_per_pass_ =
        std::max(taps_per_pass_, kMaxReadElements / slice_elements * problem_.filter[1] * problem_.filter[2]);
  }

  // Fills the slices `first` to `end` of a band's phase image.
  void fill_image(const T* x, const Band& band, int64_t first, int64_t end, float* image) const {
    const PhaseRows phase_rows(problem_, row_kernels_, pitch_, plane_);
    const T* const group = x + first_channel(band) * problem_.input_size();
    for (int64_t slice = first; slice < end; ++slice) {
      const T* const source = phase_rows.slice(group, band.o, slice);
      for (int64_t phase = 0; phase < rows_.phases; ++phase) {
        const int64_t first_row = band.first_row * rows_.stride + phase - problem_.pad_begin[1];
        const int64_t rows = band.rows + rows_.halo;
        const InBounds in_bounds(first_row, rows_.stride, problem_.input[1], rows);
        phase_rows.fill(source, {first_row, in_bounds, rows, 0, pitch_},
                        image + (slice * slice_planes() + phase * columns_.phases) * plane_);
      }
    }
  }

  int64_t first_channel(const Band& band) const {
    return band.n * problem_.in_channels + band.group * problem_.channels_per_group();
  }

  // Returns the image that the band's tiles read: x itself, the shared phase image, or a phase image filled
  // here.
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
    int64_t max_filters =
        kMaxWeightBytes / (std::max<int64_t>(1, taps()) * static_cast<int64_t>(sizeof(float)));
    if (pools) {
      const int64_t plane = std::max<int64_t>(1, band.rows * problem_.output[2]);
      max_filters = std::min(max_filters, kMaxUnpooledBytes / (plane * static_cast<int64_t>(sizeof(float))));
    }
    max_filters = std::max<int64_t>(max_filters / kMaxFilters, 1) * kMaxFilters;
    const int64_t filters = ceil_divide(band.filters, ceil_divide(band.filters, max_filters));
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

  // Writes the convolution's rows. `plane` is the distance of two filters' rows in the target.
  template <typename Target>
  void compute_filters(const ConvTensors& tensors, const float* all_weights, const Band& band,
                       const float* image, Target* target, int64_t plane) const {
    const float* const weights = all_weights + first_filter(band) * taps();
    const int64_t positions = (band.rows - 1) * pitch_ + problem_.output[2];
    thread_local std::vector<float> tile;
    grow(tile, band.filters * kMaxPositions);
    for (int64_t i = 0; i < positions; i += kMaxPositions) {
      const int64_t end = std::min<int64_t>(i + kMaxPositions, positions);
      for (int64_t j = i; j < end; j += kernels_.positions) {
        const int64_t count = std::min<int64_t>(kernels_.positions, end - j);
        multiply(image + j, count, weights, band.filters, tile.data() + j - i);
      }
      store_tile(tensors, band, i, end, tile.data(), target, plane);
    }
  }

  // The index of the band's first filter among the filters of all groups.
  int64_t first_filter(const Band& band) const {
    return band.group * problem_.filters_per_group() + band.first_filter;
  }

  int64_t taps() const { return static_cast<int64_t>(tap_offsets_.size()); }

  // Multiplies a tile's positions with the weights. A few positions behind the last full vector are computed
  // one by one if x is read in place.
  void multiply(const float* image, int64_t positions, const float* weights, int64_t filters,
                float* results) const {
    const int64_t scalars = scalar_positions(positions);
    if (positions > scalars) multiply_vectors(image, positions - scalars, weights, filters, results);
    for (int64_t i = positions - scalars; i < positions; ++i) {
      kernels_.dot_products({gather_taps(image + i), taps(), weights, filters, results + i});
    }
  }

  int64_t scalar_positions(int64_t positions) const {
    const int64_t remainder = positions % kernels_.lanes;
    const int64_t max_scalars = positions < kernels_.lanes ? kernels_.lanes / 4 : kernels_.lanes / 8;
    return reads_in_place_ && remainder <= max_scalars ? remainder : 0;
  }

  const float* gather_taps(const float* position) const {
    if (plane_ == 1) return position;
    thread_local std::vector<float> gathered;
    grow(gathered, taps());
    for (int64_t tap = 0; tap < taps(); ++tap) gathered[tap] = position[tap_offsets_[tap]];
    return gathered.data();
  }

  // Multiplies some taps at a time with all filters, so that the elements read stay in the L1 cache.
  void multiply_vectors(const float* image, int64_t positions, const float* weights, int64_t filters,
                        float* results) const {
    alignas(64) float copied[kMaxReadElements];
    const int64_t lanes = kernels_.lanes, vectors = ceil_divide(positions, lanes);
    const int64_t tile_filters = ceil_divide(filters, ceil_divide(filters, kMaxFilters));  // 8: 4 and 4
    const bool copies = reads_in_place_ && positions % lanes != 0;  // a full vector may exceed x
    for (int64_t tap = 0; tap < std::max<int64_t>(taps(), 1); tap += taps_per_pass_) {
      const int64_t count = std::min(taps_per_pass_, taps() - tap);
      const int64_t* const offsets = tap_offsets_.data() + tap;
      if (copies) copy_positions(image, offsets, count, positions, copied);
      for (int64_t k = 0; k < filters; k += tile_filters) {
        kernels_.compute[vectors][std::min(tile_filters, filters - k)](
            {copies ? copied : image, copies ? copied_offsets_.data() : offsets, count,
             weights + k * taps() + tap, taps(), tap > 0, results + k * kMaxPositions});
      }
    }
  }

  void copy_positions(const float* image, const int64_t* offsets, int64_t taps, int64_t positions,
                      float* copied) const {
    for (int64_t tap = 0; tap < taps; ++tap) {
      std::copy_n(image + offsets[tap], positions, copied + copied_offsets_[tap]);
    }
  }

  // The offset of a row of the convolution's output in the residual and, without a pool, in y.
  int64_t offset_of(const Band& band, int64_t k, int64_t row) const {
    return (((band.n * problem_.out_channels + k) * problem_.output[0] + band.o) * problem_.output[1] + row) *
           problem_.output[2];
  }

  // Applies bias, residual and activation to the positions from i to `end` that lie inside output rows, and
  // writes them. `target` is the band's first row of the first filter; the rows of the next filter are
  // `plane` elements further.
  template <typename Target>
  void store_tile(const ConvTensors& tensors, const Band& band, int64_t i, int64_t end, float* values,
                  Target* target, int64_t plane) const {
    // Rows without a gap between them form one row.
    const bool is_contiguous = pitch_ == problem_.output[2];
    const int64_t width = is_contiguous ? end : problem_.output[2], pitch = is_contiguous ? end : pitch_;
    // Activates all positions at once, which are more than a row has, if the activation has a vectorised
    // kernel or is a clip of float16 or bfloat16 data. Not with a residual, which precedes the activation and
    // is read by rows.
    const auto kernel = activation_kernel(kernels_.activations, activation_);
    const bool clips = clip_.clips && !std::is_same_v<T, float>;
    const bool activates_all = tensors.z == nullptr && (kernel != nullptr || clips);
    for (int64_t filter = 0; filter < band.filters; ++filter, values += kMaxPositions, target += plane) {
      const int64_t k = first_filter(band) + filter;
      float bias = tensors.b == nullptr ? 0.0f : static_cast<float>(static_cast<const T*>(tensors.b)[k]);
      const T* const residual = tensors.z == nullptr
                                    ? nullptr
                                    : static_cast<const T*>(tensors.z) + offset_of(band, k, band.first_row);
      if (activates_all) {
        kernels_.finish({values, bias, nullptr, clips, clip_.lower, clip_.upper, end - i, values});
        if (kernel != nullptr) kernel(values, end - i);
        bias = -0.0f;  // adding it keeps every value, also a zero of either sign
      }
      for (int64_t row = i / pitch; row * pitch < end; ++row) {
        const int64_t from = std::max<int64_t>(i - row * pitch, 0);
        const int64_t to = std::min(end - row * pitch, width);
        const int64_t first = row * width + from;
        finish(values + row * pitch + from - i, bias, residual == nullptr ? nullptr : residual + first,
               activates_all ? Activation::none : activation_, to - from, target + first);
      }
    }
  }

  template <typename Target>
  void finish(const float* values, float bias, const T* residual, Activation activation, int64_t columns,
              Target* target) const {
    if constexpr (std::is_same_v<T, float>) {
      if (activation == Activation::none || clip_.clips) {
        return kernels_.finish(
            {values, bias, residual, clip_.clips, clip_.lower, clip_.upper, columns, target});
      }
    }
    finish_row(problem_.epilogue, activation, kernels_.activations, columns, values, bias, residual, target);
  }

  ConvProblem problem_;
  const PositionLanesKernels& kernels_;
  const RowLanesKernels& row_kernels_;
  const std::string instruction_set_;
  PhaseAxis rows_;
  PhaseAxis columns_;
  const Activation activation_;  // none if it is applied after the pool
  const SplitActivation clip_;   // the kernels' clamp
  bool reads_in_place_ = false;  // reads x, without a phase image
  int64_t pitch_ = 0;            // distance of two rows of a phase in elements
  int64_t band_ = 0;             // maximum rows of a task in the convolution's output
  int64_t result_band_ = 0;      // maximum rows of a task in y
  int64_t filters_ = 0;          // maximum filters of a task
  int64_t plane_ = 0;            // elements of one phase of one slice
  int64_t image_elements_ = 0;
  int64_t taps_per_pass_ = 0;
  std::vector<int64_t> tap_offsets_, copied_offsets_;
};

}  // namespace

// Number of elements of the phase image of the smallest band, which is one row or the rows of a pool window.
// It is a double, because large strides and dilations make the product exceed 64 bits even for a tiny image.
// Zero channels count as one.
double min_image_elements(const ConvProblem& problem) {
  const PhaseAxis rows(problem, 1);
  const PhaseAxis columns(problem, 2);
  const Pool& pool = problem.epilogue.pool;
  const int64_t min_rows = pool.kind == PoolKind::none ? 1 : std::min(problem.output[1], pool.kernel[0]);
  const auto number = [](int64_t count) { return static_cast<double>(count); };
  const double plane =
      number(min_rows + rows.halo) * number(problem.output[2] + columns.halo) + number(kLineFloats);
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
