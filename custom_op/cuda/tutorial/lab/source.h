#pragma once

// A kernel of the user's own, as its file has it: CUDA text, and in comments what a launch needs.
//
//   // launch: grid(B, M) block(16, 16) shared(4 * C * H * W)      how the kernel is started
//   // interface: conv                                             it takes the whole op; else the course's
//   // only: M == 50 && K == 5                                     which convolutions it is for; else all

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "conv/problem.h"
#include "cuda/host/launch.h"
#include "cuda/tutorial/lab/expression.h"

namespace convswap::lab {

// What `forward` takes:
//
//   course  (float* y, const float* x, const float* k, int B, int M, int C, int H, int W, int K): no bias,
//           padding nor stride, square filters
//   conv    (float* y, const float* x, const float* w, const float* b, convswap::Conv conv): images of any
//           float32 convolution; b is null where there is no bias
enum class Interface { course, conv };

struct LaunchShape {
  Dim3 grid, block;
  int64_t shared_bytes = 0;
};

class Source {
 public:
  // `name` is the file's, for messages. Throws InvalidArgument, which names file, line and column, where a
  // comment is not as above, or there is no launch line.
  static Source parse(const std::string& name, const std::string& text);

  const std::string& name() const { return name_; }
  const std::string& text() const { return text_; }
  Interface interface() const { return interface_; }

  // Why the kernel is not started for the problem; empty where it is.
  std::string why_not(const ConvProblem& problem) const;

  // Requires an empty why_not. Throws InvalidArgument where the launch line gives none that a card takes;
  // `shared_limit`: the bytes that a block may have.
  LaunchShape launch_for(const ConvProblem& problem, int64_t shared_limit) const;

  // What is compiled: the text, and behind it a check of what `forward` takes.
  std::string program() const;

 private:
  struct Line {
    int number = 0;  // from 1
    std::string text;
  };

  // Calls `work`, and adds file and line to what it throws.
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
