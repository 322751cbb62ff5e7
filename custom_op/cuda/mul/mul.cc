// Mul: an NHWC tensor times a factor for each image and channel, as in squeeze-and-excitation. The
// kernel is bound by memory: a thread reads and writes some vectors of 16 bytes.

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "conv/arithmetic.h"
#include "conv/error.h"
#include "cuda/host/formats.h"
#include "cuda/host/kernel_plan.h"
#include "cuda/host/text.h"
#include "cuda/mul/arguments.h"
#include "plan/op_stage.h"

namespace convswap {
namespace mul {
namespace {

constexpr int64_t kMaxGridRows = 65535;
constexpr int64_t kMaxImageElements = 1 << 30;  // the kernel indexes an image with 32 bits

std::string instance_of(std::string_view element, bool has_vectors) {
  return instance_name("mul::kernel", element, has_vectors ? "true" : "false");
}

std::vector<std::string> all_instances() {
  std::vector<std::string> names;
  for (const std::string_view element : kElements) {
    for (const bool has_vectors : {false, true}) names.push_back(instance_of(element, has_vectors));
  }
  return names;
}

const KernelRegistration registration({.header = "cuda/mul/kernel.cuh", .instances = all_instances()});

struct Family {
  struct Tiling {
    MulProblem problem;
    int64_t vector_elements;
  };
  using Arguments = mul::Arguments<void>;

  static Tiling tiling_of(const MulProblem& problem) {
    const int64_t elements = 16 / bytes_per_element(problem.type);
    return {problem, problem.channels % elements == 0 ? elements : 1};
  }

  static std::string name(const Tiling&) { return "mul"; }

  static std::string kernel_name(const ConvProblem&, const Tiling& tiling) {
    return instance_of(element_name(tiling.problem.type), tiling.vector_elements > 1);
  }

  static void set_vectors(const MulProblem& problem, int64_t elements, Arguments& to) {
    to.has_vectors = elements > 1;
    to.image_vectors = static_cast<unsigned>(problem.image_elements() / elements);
    to.position_vectors = FastDivisor(narrow(problem.channels / elements));
  }

  static Arguments arguments_of(const ConvProblem&, const Device&, const Tiling& tiling) {
    const MulProblem& problem = tiling.problem;
    Arguments to{};
    to.images = narrow(problem.images);
    to.image_elements = problem.image_elements();
    to.channels = narrow(problem.channels);
    set_vectors(problem, tiling.vector_elements, to);
    return to;
  }

  // Tensors that are not aligned for vectors are multiplied element by element.
  static void bind(const ConvProblem&, const Tiling& tiling, const ConvTensors& tensors,
                   Arguments& arguments) {
    const ConvTensors factors{.x = tensors.w};
    if (!are_aligned(tensors, 16) || !are_aligned(factors, 16)) set_vectors(tiling.problem, 1, arguments);
  }

  static int threads(const Tiling&) { return kThreads; }
  static int64_t shared_bytes(const Tiling&) { return 0; }

  static Dim3 grid_of(const ConvProblem&, const Device&, const Tiling& tiling, const Launch&) {
    const int64_t vectors = tiling.problem.image_elements() / tiling.vector_elements;
    return {static_cast<unsigned>(ceil_divide(vectors, int64_t{kThreads * kVectors})),
            static_cast<unsigned>(std::min(kMaxGridRows, tiling.problem.images))};
  }

  static std::string describe(const ConvProblem&, const Tiling& tiling, const Launch& launch) {
    return joined(tiling.problem.text(), ", ", tiling.vector_elements, " elements at a time, ",
                  text_of(launch));
  }
};

class Stage final : public MulStage {
 public:
  std::unique_ptr<Plan> make(const MulProblem& problem, const Device& device) const override {
    if (problem.image_elements() > kMaxImageElements || problem.images > kMaxImageElements) {
      throw InvalidArgument(problem.text() + ": expected at most 2^30 images of at most 2^30 elements");
    }
    return std::make_unique<KernelPlan<Family>>(ConvProblem{}, device, Family::tiling_of(problem));
  }

  std::vector<std::string> kernels(const MulProblem& problem, const Device&) const override {
    return {Family::kernel_name({}, Family::tiling_of(problem))};
  }
};

}  // namespace
}  // namespace mul

const MulStage& cuda_mul_stage() {
  static const mul::Stage stage;
  return stage;
}

}  // namespace convswap
