#include "cuda/tutorial/lab/source.h"

#include <algorithm>
#include <limits>
#include <sstream>
#include <utility>

#include "conv/error.h"

namespace convswap::lab {
namespace {

constexpr char kExample[] = "// launch: grid(B, M) block(16, 16) shared(0)";
// What CUDA takes, whatever the card.
constexpr int64_t kMostThreads = 1024;
constexpr std::array<int64_t, 3> kMostBlocks{2147483647, 65535, 65535}, kMostOfBlock{1024, 1024, 64};

constexpr char kCourseCheck[] = R"check(
#line 1 "what forward takes"
namespace convswap_lab {
template <typename A, typename B> struct Same { static constexpr bool value = false; };
template <typename A> struct Same<A, A> { static constexpr bool value = true; };
static_assert(Same<decltype(&::forward), void (*)(float*, const float*, const float*, int, int, int, int, int, int)>::value, "forward must be __global__ void forward(float* y, const float* x, const float* k, int B, int M, int C, int H, int W, int K)");
}
)check";
constexpr char kConvCheck[] = R"check(
#line 1 "what forward takes"
#include "convswap/lab.h"
namespace convswap_lab {
template <typename A, typename B> struct Same { static constexpr bool value = false; };
template <typename A> struct Same<A, A> { static constexpr bool value = true; };
static_assert(Same<decltype(&::forward), void (*)(float*, const float*, const float*, const float*, convswap::Conv)>::value, "forward must be __global__ void forward(float* y, const float* x, const float* w, const float* b, convswap::Conv conv)");
}
)check";

// What follows `word` and a colon in a comment; nothing in any other line.
std::optional<std::string> said_of(const std::string& line, const std::string& word) {
  std::size_t at = line.find_first_not_of(" \t");
  if (at == std::string::npos || line.compare(at, 2, "//") != 0) return std::nullopt;
  at = line.find_first_not_of(" \t", at + 2);
  if (at == std::string::npos || line.compare(at, word.size(), word) != 0) return std::nullopt;
  at = line.find_first_not_of(" \t", at + word.size());
  if (at == std::string::npos || line[at] != ':') return std::nullopt;
  std::string said = line.substr(at + 1);
  while (!said.empty() && (said.back() == ' ' || said.back() == '\t' || said.back() == '\r')) said.pop_back();
  const std::size_t begin = said.find_first_not_of(" \t");
  return begin == std::string::npos ? "" : said.substr(begin);
}

Variables variables_of(const ConvProblem& problem, Interface interface) {
  Variables all{{"B", problem.batch},         {"M", problem.out_channels}, {"C", problem.in_channels},
                {"H", problem.input[1]},      {"W", problem.input[2]},     {"H_out", problem.output[1]},
                {"W_out", problem.output[2]}, {"K", problem.filter[2]}};
  if (interface == Interface::course) return all;
  all.erase("K");
  all["R"] = problem.filter[1], all["S"] = problem.filter[2], all["G"] = problem.group;
  return all;
}

bool is_all(const Axes& axes, int64_t value) { return axes == Axes{value, value, value}; }

std::string extents_text(const std::array<int64_t, 3>& extents) {
  return std::to_string(extents[0]) + " x " + std::to_string(extents[1]) + " x " + std::to_string(extents[2]);
}

// So many along each axis, 1 where the line says nothing.
std::array<int64_t, 3> evaluated(const std::vector<Expression>& expressions, const Variables& variables) {
  std::array<int64_t, 3> extents{1, 1, 1};
  for (std::size_t i = 0; i < expressions.size(); ++i) extents[i] = expressions[i].evaluate(variables);
  return extents;
}

void check_extents(const char* what, const std::array<int64_t, 3>& extents,
                   const std::array<int64_t, 3>& most) {
  for (std::size_t i = 0; i < 3; ++i) {
    if (extents[i] >= 1 && extents[i] <= most[i]) continue;
    throw InvalidArgument(std::string(what) + " of " + extents_text(extents) +
                          ": expected at least 1 and at most " + extents_text(most) + " along the axes");
  }
}

Dim3 narrowed(const std::array<int64_t, 3>& extents) {
  return {static_cast<unsigned>(extents[0]), static_cast<unsigned>(extents[1]),
          static_cast<unsigned>(extents[2])};
}

}  // namespace

template <typename Work>
auto Source::in_line(const Line& line, const Work& work) const {
  try {
    return work();
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(name_ + ":" + std::to_string(line.number) + ": '" + line.text +
                          "': " + error.what());
  }
}

Source Source::parse(const std::string& name, const std::string& text) {
  Source source;
  source.name_ = name;
  source.text_ = text;
  std::istringstream lines(text);
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    const auto keep_once = [&](Line& kept, const char* word) {
      const std::optional<std::string> said = said_of(line, word);
      if (!said) return;
      if (kept.number != 0) {
        throw InvalidArgument(name + ":" + std::to_string(number) + ": a second '// " + word +
                              ":', after line " + std::to_string(kept.number) + ": expected one");
      }
      kept = {number, *said};
    };
    keep_once(source.launch_line_, "launch");
    keep_once(source.only_line_, "only");
    Line interface;
    keep_once(interface, "interface");
    if (interface.number == 0) continue;
    if (interface.text != "conv" && interface.text != "course") {
      throw InvalidArgument(name + ":" + std::to_string(number) + ": interface '" + interface.text +
                            "': expected course or conv");
    }
    source.interface_ = interface.text == "conv" ? Interface::conv : Interface::course;
  }
  if (text.find("__global__") == std::string::npos) {
    throw InvalidArgument(name +
                          " has no kernel: expected __global__ void forward(...), as `convswap lab new` "
                          "writes it");
  }
  if (source.launch_line_.number == 0) {
    throw InvalidArgument(name + " does not say how its kernel is started: expected a line such as '" +
                          kExample + "'");
  }
  source.in_line(source.launch_line_, [&] { source.parse_launch(); });
  if (source.only_line_.number != 0) source.in_line(source.only_line_, [&] { source.parse_only(); });
  return source;
}

void Source::parse_launch() {
  const std::string& line = launch_line_.text;
  std::size_t at = 0;
  const auto skip_blanks = [&] { at = std::min(line.find_first_not_of(" \t", at), line.size()); };
  const auto fail = [&](const std::string& expected) {
    throw InvalidArgument("column " + std::to_string(at + 1) + ": expected " + expected + ", as in '" +
                          kExample + "'");
  };
  const auto read_part = [&](const std::string& word, std::size_t most) {
    std::vector<Expression> read;
    at += word.size();
    skip_blanks();
    if (line.compare(at, 1, "(") != 0) fail("'(' behind " + word);
    do {
      ++at;
      read.push_back(Expression::read(line, at));
      skip_blanks();
    } while (line.compare(at, 1, ",") == 0);
    if (line.compare(at, 1, ")") != 0) fail("',' or ')'");
    ++at;
    skip_blanks();
    if (read.size() > most) {
      throw InvalidArgument(word + " has " + std::to_string(read.size()) + " numbers: expected at most " +
                            std::to_string(most));
    }
    return read;
  };
  while (at < line.size()) {
    if (line.compare(at, 4, "grid") == 0) {
      extents_[0] = read_part("grid", 3);
    } else if (line.compare(at, 5, "block") == 0) {
      extents_[1] = read_part("block", 3);
    } else if (line.compare(at, 6, "shared") == 0) {
      shared_ = read_part("shared", 1).front();
    } else {
      fail("grid(...), block(...) or shared(...)");
    }
  }
  if (extents_[0].empty()) fail("grid(...)");
  if (extents_[1].empty()) fail("block(...)");
  // Names are known or not, whatever the problem.
  const Variables sample = variables_of({}, interface_);
  for (const std::vector<Expression>& all : extents_) {
    for (const Expression& one : all) one.check_names(sample);
  }
  if (shared_) shared_->check_names(sample);
}

void Source::parse_only() {
  std::size_t at = 0;
  only_ = Expression::read(only_line_.text, at);
  if (at != only_line_.text.size()) {
    throw InvalidArgument("column " + std::to_string(at + 1) + ": expected the end of the line");
  }
  only_->check_names(variables_of({}, interface_));
}

std::string Source::why_not(const ConvProblem& problem) const {
  if (problem.type != ElementType::float32) {
    return "kernels of the lab take float32, and the data are " + std::string(name_of(problem.type));
  }
  if (problem.spatial_rank != 2) {
    return "kernels of the lab take images, with 2 spatial axes, and these have " +
           std::to_string(problem.spatial_rank);
  }
  if (!problem.epilogue.is_empty()) return "kernels of the lab compute the convolution alone";
  constexpr int64_t kMost = std::numeric_limits<int>::max();
  for (const int64_t elements : {problem.batch * problem.in_channels * problem.input_size(),
                                 problem.out_channels * problem.channels_per_group() * problem.filter_size(),
                                 problem.output_elements()}) {
    if (elements > kMost) return "the sizes of the lab have 32 bits and the problem needs more";
  }
  if (interface_ == Interface::course) {
    const char* const how = ", which the course's interface has not: `convswap lab new --what conv` has it";
    if (problem.has_bias) return std::string("it has a bias") + how;
    if (!is_all(problem.stride, 1)) return std::string("it has a stride") + how;
    if (!is_all(problem.dilation, 1)) return std::string("it has a dilation") + how;
    if (!is_all(problem.pad_begin, 0) || !is_all(problem.pad_end, 0))
      return std::string("it has padding") + how;
    if (problem.group != 1) return std::string("it has groups") + how;
    if (problem.filter[1] != problem.filter[2]) return std::string("its filters are not square") + how;
  }
  const auto is_for = [&] { return only_->evaluate(variables_of(problem, interface_)) != 0; };
  if (only_ && !in_line(only_line_, is_for)) return "the file is for '" + only_line_.text + "' only";
  return {};
}

LaunchShape Source::launch_for(const ConvProblem& problem, int64_t shared_limit) const {
  return in_line(launch_line_, [&]() -> LaunchShape {
    const Variables variables = variables_of(problem, interface_);
    const std::array<int64_t, 3> grid = evaluated(extents_[0], variables);
    const std::array<int64_t, 3> block = evaluated(extents_[1], variables);
    const int64_t shared = shared_ ? shared_->evaluate(variables) : 0;
    check_extents("a grid", grid, kMostBlocks);
    check_extents("a block", block, kMostOfBlock);
    const int64_t threads = block[0] * block[1] * block[2];
    if (threads > kMostThreads) {
      throw InvalidArgument("a block of " + extents_text(block) + " = " + std::to_string(threads) +
                            " threads: expected at most " + std::to_string(kMostThreads) + " together");
    }
    if (shared < 0 || shared > shared_limit) {
      throw InvalidArgument(std::to_string(shared) + " bytes of shared memory: expected from 0 to " +
                            std::to_string(shared_limit) + ", which is all that a block can have");
    }
    return {narrowed(grid), narrowed(block), shared};
  });
}

std::string Source::program() const {
  return text_ + (interface_ == Interface::conv ? kConvCheck : kCourseCheck);
}

}  // namespace convswap::lab
