#include "cuda/tutorial/lab/source.h"

#include <algorithm>
#include <limits>
#include <sstream>

#include "conv/error.h"

namespace convswap::lab {
namespace {

constexpr char kExample[] = "// launch: grid(B, M) block(16, 16) shared(0)";
// Limits of CUDA on every card.
constexpr int64_t kMaxThreads = 1024;
constexpr std::array<int64_t, 3> kMaxGrid{2147483647, 65535, 65535}, kMaxBlock{1024, 1024, 64};

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

// The value of a directive, `// word: value`; nullopt for any other line.
std::optional<std::string> directive_of(const std::string& line, const std::string& word) {
  std::size_t at = line.find_first_not_of(" \t");
  if (at == std::string::npos || line.compare(at, 2, "//") != 0) return std::nullopt;
  at = line.find_first_not_of(" \t", at + 2);
  if (at == std::string::npos || line.compare(at, word.size(), word) != 0) return std::nullopt;
  at = line.find_first_not_of(" \t", at + word.size());
  if (at == std::string::npos || line[at] != ':') return std::nullopt;
  std::string value = line.substr(at + 1);
  while (!value.empty() && (value.back() == ' ' || value.back() == '\t' || value.back() == '\r'))
    value.pop_back();
  const std::size_t begin = value.find_first_not_of(" \t");
  return begin == std::string::npos ? "" : value.substr(begin);
}

Variables variables_of(const ConvProblem& problem, Interface interface) {
  Variables sizes{{"B", problem.batch},         {"M", problem.out_channels}, {"C", problem.in_channels},
                  {"H", problem.input[1]},      {"W", problem.input[2]},     {"H_out", problem.output[1]},
                  {"W_out", problem.output[2]}, {"K", problem.filter[2]}};
  if (interface == Interface::course) return sizes;
  sizes.erase("K");
  sizes["R"] = problem.filter[1], sizes["S"] = problem.filter[2], sizes["G"] = problem.group;
  return sizes;
}

bool is_all(const Axes& axes, int64_t value) { return axes == Axes{value, value, value}; }

std::string extents_text(const std::array<int64_t, 3>& extents) {
  return std::to_string(extents[0]) + " x " + std::to_string(extents[1]) + " x " + std::to_string(extents[2]);
}

// Values along the three axes; 1 for an axis that the line omits.
std::array<int64_t, 3> evaluated(const std::vector<Expression>& expressions, const Variables& variables) {
  std::array<int64_t, 3> extents{1, 1, 1};
  for (std::size_t i = 0; i < expressions.size(); ++i) extents[i] = expressions[i].evaluate(variables);
  return extents;
}

void check_extents(const char* what, const std::array<int64_t, 3>& extents,
                   const std::array<int64_t, 3>& limits) {
  for (std::size_t i = 0; i < 3; ++i) {
    if (extents[i] >= 1 && extents[i] <= limits[i]) continue;
    throw InvalidArgument(std::string(what) + " of " + extents_text(extents) +
                          ": expected at least 1 and at most " + extents_text(limits) + " along the axes");
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
    const auto set_once = [&](Line& directive, const char* word) {
      const std::optional<std::string> value = directive_of(line, word);
      if (!value) return;
      if (directive.number != 0) {
        throw InvalidArgument(name + ":" + std::to_string(number) + ": a second '// " + word +
                              ":', after line " + std::to_string(directive.number) + ": expected one");
      }
      directive = {number, *value};
    };
    set_once(source.launch_line_, "launch");
    set_once(source.only_line_, "only");
    Line interface;
    set_once(interface, "interface");
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
  const auto read_part = [&](const std::string& word, std::size_t max_count) {
    std::vector<Expression> read;
    at += word.size();
    skip_blanks();
    if (line.compare(at, 1, "(") != 0) fail("'(' after " + word);
    do {
      ++at;
      read.push_back(Expression::read(line, at));
      skip_blanks();
    } while (line.compare(at, 1, ",") == 0);
    if (line.compare(at, 1, ")") != 0) fail("',' or ')'");
    ++at;
    skip_blanks();
    if (read.size() > max_count) {
      throw InvalidArgument(word + " has " + std::to_string(read.size()) + " numbers: expected at most " +
                            std::to_string(max_count));
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
  // The known names are the same for all problems.
  const Variables sample = variables_of({}, interface_);
  for (const std::vector<Expression>& expressions : extents_) {
    for (const Expression& expression : expressions) expression.check_names(sample);
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
  constexpr int64_t kMaxElements = std::numeric_limits<int>::max();
  for (const int64_t elements : {problem.batch * problem.in_channels * problem.input_size(),
                                 problem.out_channels * problem.channels_per_group() * problem.filter_size(),
                                 problem.output_elements()}) {
    if (elements > kMaxElements) return "the sizes of the lab have 32 bits and the problem needs more";
  }
  if (interface_ == Interface::course) {
    const char* const hint =
        ", which the course's interface does not support: use the one of `convswap lab new --what conv`";
    if (problem.has_bias) return std::string("it has a bias") + hint;
    if (!is_all(problem.stride, 1)) return std::string("it has a stride") + hint;
    if (!is_all(problem.dilation, 1)) return std::string("it has a dilation") + hint;
    if (!is_all(problem.pad_begin, 0) || !is_all(problem.pad_end, 0))
      return std::string("it has padding") + hint;
    if (problem.group != 1) return std::string("it has groups") + hint;
    if (problem.filter[1] != problem.filter[2]) return std::string("its filters are not square") + hint;
  }
  const auto is_supported = [&] { return only_->evaluate(variables_of(problem, interface_)) != 0; };
  if (only_ && !in_line(only_line_, is_supported)) return "the file is for '" + only_line_.text + "' only";
  return {};
}

LaunchShape Source::launch_for(const ConvProblem& problem, int64_t shared_limit) const {
  return in_line(launch_line_, [&]() -> LaunchShape {
    const Variables variables = variables_of(problem, interface_);
    const std::array<int64_t, 3> grid = evaluated(extents_[0], variables);
    const std::array<int64_t, 3> block = evaluated(extents_[1], variables);
    const int64_t shared = shared_ ? shared_->evaluate(variables) : 0;
    check_extents("a grid", grid, kMaxGrid);
    check_extents("a block", block, kMaxBlock);
    const int64_t threads = block[0] * block[1] * block[2];
    if (threads > kMaxThreads) {
      throw InvalidArgument("a block of " + extents_text(block) + " = " + std::to_string(threads) +
                            " threads: expected at most " + std::to_string(kMaxThreads) + " in total");
    }
    if (shared < 0 || shared > shared_limit) {
      throw InvalidArgument(std::to_string(shared) + " bytes of shared memory: expected from 0 to " +
                            std::to_string(shared_limit) + ", the most that a block can have");
    }
    return {narrowed(grid), narrowed(block), shared};
  });
}

std::string Source::program() const {
  return text_ + (interface_ == Interface::conv ? kConvCheck : kCourseCheck);
}

}  // namespace convswap::lab
