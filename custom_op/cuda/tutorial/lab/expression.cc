#include "cuda/tutorial/lab/expression.h"

#include <algorithm>
#include <cctype>
#include <limits>
#include <optional>
#include <utility>

#include "conv/error.h"

namespace convswap::lab {
namespace {

// Operators in ascending order of precedence. In a level, `<=` precedes `<`, and `>=` precedes `>`, so that
// the longer one is matched.
const std::vector<std::vector<std::string>> kLevels = {
    {"||"}, {"&&"}, {"==", "!="}, {"<=", ">=", "<", ">"}, {"+", "-"}, {"*", "/", "%"}};
constexpr std::string_view kCalls[] = {"ceil_div", "min", "max"};
// Maximum nesting depth, to bound the recursion.
constexpr int kMaxDepth = 50;

std::optional<int64_t> result_of(std::string_view name, int64_t a, int64_t b) {
  int64_t result = 0;
  const bool divides = name == "/" || name == "%" || name == "ceil_div";
  if (divides && (b == 0 || (a == std::numeric_limits<int64_t>::min() && b == -1))) return std::nullopt;
  if (name == "+") return __builtin_add_overflow(a, b, &result) ? std::nullopt : std::optional(result);
  if (name == "-") return __builtin_sub_overflow(a, b, &result) ? std::nullopt : std::optional(result);
  if (name == "*") return __builtin_mul_overflow(a, b, &result) ? std::nullopt : std::optional(result);
  if (name == "/") return a / b;
  if (name == "%") return a % b;
  if (name == "ceil_div") return a / b + (a % b != 0 && (a < 0) == (b < 0) ? 1 : 0);
  if (name == "min") return std::min(a, b);
  if (name == "max") return std::max(a, b);
  if (name == "<") return a < b;
  if (name == "<=") return a <= b;
  if (name == ">") return a > b;
  if (name == ">=") return a >= b;
  if (name == "==") return a == b;
  if (name == "!=") return a != b;
  if (name == "&&") return a != 0 && b != 0;
  return a != 0 || b != 0;
}

int64_t value_of(const std::string& name, const Variables& variables) {
  if (const auto found = variables.find(name); found != variables.end()) return found->second;
  std::string known;
  for (const auto& [each, value] : variables) known += (known.empty() ? "" : " ") + each;
  throw InvalidArgument("'" + name + "' is not a size of a convolution: expected one of " + known);
}

}  // namespace

// Recursive-descent parser; read_level recurses through the levels of precedence.
class ExpressionReader {
 public:
  ExpressionReader(std::string_view text, std::size_t& at) : text_(text), at_(at) {}

  std::vector<Expression::Step> read() {
    read_level(0);
    return std::move(steps_);
  }

 private:
  using Step = Expression::Step;

  void read_level(std::size_t level) {
    if (level == kLevels.size()) return read_factor();
    read_level(level + 1);
    while (const std::string* const found = take_any(kLevels[level])) {
      read_level(level + 1);
      steps_.push_back({Step::Kind::operation, 0, *found});
    }
  }

  void read_factor() {
    if (++depth_ > kMaxDepth) fail("fewer than 50 parentheses and signs nested");
    if (take("-")) {
      read_factor();
      steps_.push_back({Step::Kind::negate, 0, {}});
    } else if (take("(")) {
      read_level(0);
      expect(")");
    } else if (at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_]))) {
      steps_.push_back({Step::Kind::number, read_number(), {}});
    } else {
      read_name();
    }
    --depth_;
  }

  int64_t read_number() {
    int64_t number = 0;
    for (; at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_])); ++at_) {
      if (__builtin_mul_overflow(number, int64_t{10}, &number) ||
          __builtin_add_overflow(number, int64_t{text_[at_] - '0'}, &number)) {
        fail("a number below 2^63");
      }
    }
    return number;
  }

  void read_name() {
    const std::size_t begin = at_;
    const auto is_part = [&](char letter) {
      return std::isalnum(static_cast<unsigned char>(letter)) || letter == '_';
    };
    while (at_ < text_.size() && is_part(text_[at_])) ++at_;
    if (at_ == begin) fail("a number, a name or a parenthesis");
    const std::string name(text_.substr(begin, at_ - begin));
    if (!take("(")) {
      steps_.push_back({Step::Kind::variable, 0, name});
      return;
    }
    if (std::ranges::find(kCalls, name) == std::end(kCalls)) {
      at_ = begin;
      fail("one of ceil_div(a, b), min(a, b) and max(a, b)");
    }
    read_level(0);
    expect(",");
    read_level(0);
    expect(")");
    steps_.push_back({Step::Kind::operation, 0, name});
  }

  void skip_blanks() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t')) ++at_;
  }

  bool take(std::string_view word) {
    skip_blanks();
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    skip_blanks();
    return true;
  }

  const std::string* take_any(const std::vector<std::string>& words) {
    for (const std::string& word : words) {
      if (take(word)) return &word;
    }
    return nullptr;
  }

  void expect(std::string_view word) {
    if (!take(word)) fail("'" + std::string(word) + "'");
  }

  [[noreturn]] void fail(const std::string& expected) const {
    const std::string next(text_.substr(std::min(at_, text_.size()), 20));
    throw InvalidArgument("column " + std::to_string(at_ + 1) + " has " +
                          (next.empty() ? "the end of the line" : "'" + next + "'") + ": expected " +
                          expected);
  }

  std::string_view text_;
  std::size_t& at_;
  int depth_ = 0;
  std::vector<Step> steps_;
};

Expression Expression::read(std::string_view text, std::size_t& at) {
  Expression read;
  read.steps_ = ExpressionReader(text, at).read();
  return read;
}

void Expression::check_names(const Variables& variables) const {
  for (const Step& step : steps_) {
    if (step.kind == Step::Kind::variable) static_cast<void>(value_of(step.name, variables));
  }
}

int64_t Expression::evaluate(const Variables& variables) const {
  std::vector<int64_t> stack;
  for (const Step& step : steps_) {
    if (step.kind == Step::Kind::number) {
      stack.push_back(step.number);
    } else if (step.kind == Step::Kind::variable) {
      stack.push_back(value_of(step.name, variables));
    } else if (step.kind == Step::Kind::negate) {
      if (stack.back() == std::numeric_limits<int64_t>::min())
        throw InvalidArgument("a number outgrows 64 bits");
      stack.back() = -stack.back();
    } else {
      const int64_t b = stack.back();
      stack.pop_back();
      const std::optional<int64_t> result = result_of(step.name, stack.back(), b);
      if (!result) {
        throw InvalidArgument("'" + std::to_string(stack.back()) + " " + step.name + " " + std::to_string(b) +
                              "' divides by zero or outgrows 64 bits");
      }
      stack.back() = *result;
    }
  }
  return stack.back();
}

}  // namespace convswap::lab
