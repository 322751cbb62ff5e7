#pragma once

// A user's kernel: a file of CUDA code, with directives in comments.
//
//   // launch: grid(B, M) block(16, 16) shared(4 * C * H * W)      the launch configuration
//   // interface: conv                                             the parameters of forward; default: course
//   // only: M == 50 && K == 5                                     the supported convolutions; default: all

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "conv/problem.h"
#include "cuda/host/launch.h"
#include "cuda/tutorial/lab/expression.h"

namespace convswap::lab {

// Parameters of the kernel, `forward`:
//
//   course  (float* y, const float* x, const float* k, int B, int M, int C, int H, int W, int K): square
//           filters, without bias, padding, stride, dilation and groups
//   conv    (float* y, const float* x, const float* w, const float* b, convswap::Conv conv): any float32
//           convolution of images; b is null without bias
enum class Interface { course, conv };

struct LaunchShape {
  Dim3 grid, block;
  int64_t shared_bytes = 0;
};

class Source {
 public:
  // `name` is the file's name, for messages. Throws InvalidArgument with file, line and column if a directive
  // is malformed, and with the file if there is no kernel or no launch line.
  static Source parse(const std::string& name, const std::string& text);

  const std::string& name() const { return name_; }
  const std::string& text() const { return text_; }
  Interface interface() const { return interface_; }

  // Why the kernel does not support the problem; empty if it does.
  std::string why_not(const ConvProblem& problem) const;

  // Requires an empty why_not. `shared_limit` is the shared memory that a block may have, in bytes. Throws
  // InvalidArgument if the launch line's values exceed it or CUDA's limits.
  LaunchShape launch_for(const ConvProblem& problem, int64_t shared_limit) const;

  // The program to compile: the file's text, followed by a check of forward's parameters.
  std::string program() const;

 private:
  struct Line {
    int number = 0;  // from 1
    std::string text;
  };

  // Calls `work`, and adds file and line to an InvalidArgument that it throws.
  template <typename Work>
  auto in_line(const Line& line, const Work& work) const;
  void parse_launch();
  void parse_only();

  std::string name_, text_;
  Interface interface_ = Interface::course;
  Line launch_line_, only_line_;
  std::array<std::vector<Expression>, 2> extents_;  // of the grid and of a block, up to three each
  std::optional<Expression> shared_, only_;
};

}  // namespace convswap::lab
