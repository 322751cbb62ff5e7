#pragma once

// Host code that the rungs of the ladder share: their limits, and a plan that launches their kernels.

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "conv/arithmetic.h"
#include "cpu/tutorial/ladder/problem.h"
#include "cuda/host/kernels.h"
#include "cuda/host/launch.h"
#include "plan/algorithm.h"

namespace convswap::ladder {

// A kernel of the ladder and its launch configuration. The kernel's argument is a Convolution of `images`
// images from `first_image` on; 0 images means the entire batch.
struct RungLaunch {
  std::string name;    // for display
  std::string kernel;  // the instance (cuda/host/kernels.h)
  Dim3 grid, block;
  std::size_t shared_bytes = 0;
  int64_t first_image = 0;
  int64_t images = 0;
};

// A rung's kernels, for KernelRegistration. `file` is the name of the rung's .cuh file without the extension.
KernelFamily kernels_of(const std::string& file, std::vector<std::string> instances);

// Number of blocks of `size` elements that cover `count` elements.
inline unsigned blocks_for(int64_t count, int64_t size) {
  return static_cast<unsigned>(ceil_divide(count, size));
}

// Launches kernels one after the other.
class LaunchPlan : public Plan {
 public:
  LaunchPlan(const ConvProblem& problem, const Device& device, std::vector<RungLaunch> launches,
             std::size_t scratch_bytes);

  void run(const ConvTensors& tensors, const Execution& execution) const override;
  std::string describe() const override;
  std::size_t scratch_bytes() const override { return scratch_bytes_; }
  std::vector<KernelFacts> kernels() const override;

 private:
  Launch launch_of(const RungLaunch& launch) const;

  ConvProblem problem_;
  int device_;
  std::vector<RungLaunch> launches_;
  std::map<std::string, const void*> kernels_;  // loaded kernels by instance name
  std::size_t scratch_bytes_;
  const float* no_bias_ = nullptr;
};

// A rung with kernels. It supports the problems that the ladder supports, within its own limits.
class Rung : public Algorithm {
 public:
  DeviceKind device_kind() const final { return DeviceKind::cuda; }
  std::string_view why_by_name_alone() const final { return kRung; }
  Offer offer(const ConvProblem& problem, const Device& device) const final;

 protected:
  // Why the rung does not support a problem that the ladder supports; empty if it does.
  virtual std::string why_unsupported(const ConvProblem&, const Device&) const { return {}; }

  // The launches for a problem that the rung supports.
  virtual std::vector<RungLaunch> launches(const ConvProblem& problem) const = 0;
  virtual std::size_t scratch_bytes(const ConvProblem&) const { return 0; }
  virtual std::unique_ptr<Plan> make_plan(const ConvProblem& problem, const Device& device) const;
};

// A rung with one launch and no limits of its own.
class OneKernelRung final : public Rung {
 public:
  OneKernelRung(std::string_view name, RungLaunch (*launch)(const ConvProblem&))
      : name_(name), launch_(launch) {}
  std::string_view name() const override { return name_; }

 protected:
  std::vector<RungLaunch> launches(const ConvProblem& problem) const override { return {launch_(problem)}; }

 private:
  std::string_view name_;
  RungLaunch (*launch_)(const ConvProblem&);
};

}  // namespace convswap::ladder
