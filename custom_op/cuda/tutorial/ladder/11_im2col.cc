#include <algorithm>

#include "cuda/tutorial/ladder/rung.h"
#include "cuda/tutorial/ladder/sizes.h"

namespace convswap {
namespace {

const KernelRegistration registration(ladder::kernels_of("11_im2col", {"ladder::write_columns",
                                                                       "ladder::multiply_columns"}));

class Im2col final : public ladder::Rung {
 public:
  std::string_view name() const override { return "ladder_11_im2col"; }

 protected:
  std::string why_unsupported(const ConvProblem& problem, const Device&) const override {
    if (image_bytes(problem) <= kMaxScratchBytes) return {};
    return "the columns of one image take " + std::to_string(image_bytes(problem)) +
           " bytes; its scratch memory has " + std::to_string(kMaxScratchBytes);
  }

  std::vector<ladder::RungLaunch> launches(const ConvProblem& problem) const override {
    constexpr int kThreads = 256;
    const int64_t max_images = images_per_pass(problem);
    const unsigned rows = ladder::blocks_for(problem.out_channels, ladder::kTile);
    std::vector<ladder::RungLaunch> all;
    for (int64_t first = 0; first < problem.batch; first += max_images) {
      const int64_t images = std::min(max_images, problem.batch - first);
      const int64_t columns = images * problem.output_size();
      const unsigned writers = ladder::blocks_for(columns * taps(problem), kThreads);
      all.push_back({"write_columns", "ladder::write_columns", writers, kThreads, 0, first, images});
      all.push_back({"multiply_columns", "ladder::multiply_columns",
                     Dim3{ladder::blocks_for(columns, ladder::kTile), rows},
                     Dim3{ladder::kTile, ladder::kTile}, 2 * sizeof(float) * ladder::kTile * ladder::kTile,
                     first, images});
    }
    return all;
  }

  std::size_t scratch_bytes(const ConvProblem& problem) const override {
    return static_cast<std::size_t>(images_per_pass(problem) * image_bytes(problem));
  }

 private:
  // Enough that a slice of images fills a large card.
  static constexpr int64_t kMaxScratchBytes = 64 << 20;

  static int64_t taps(const ConvProblem& problem) { return problem.in_channels * problem.filter_size(); }

  static int64_t image_bytes(const ConvProblem& problem) {
    return static_cast<int64_t>(sizeof(float)) * taps(problem) * problem.output_size();
  }

  static int64_t images_per_pass(const ConvProblem& problem) {
    return std::min(problem.batch, kMaxScratchBytes / image_bytes(problem));
  }
};

}  // namespace

const Algorithm& cuda_ladder_11_im2col() {
  static const Im2col rung;
  return rung;
}

}  // namespace convswap
