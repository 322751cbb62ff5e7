#pragma once

// Integer expressions of a user's launch line, such as `ceil_div(H_out, 16) * M`. The grammar has no
// statements, no assignments and no calls but these:
//
//   numbers, names, ( ), unary -, * / %, + -, < <= > >= == !=, &&, ||, ceil_div(a, b), min(a, b), max(a, b)

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace convswap::lab {

using Variables = std::map<std::string, int64_t, std::less<>>;

class Expression {
 public:
  // Parses the expression at position `at` of `text`, and moves `at` past it. Throws InvalidArgument with the
  // column if there is none.
  static Expression read(std::string_view text, std::size_t& at);

  // Throws InvalidArgument if a name is not among the variables.
  void check_names(const Variables& variables) const;

  // Throws InvalidArgument if a name is not among the variables, at a division by zero, and at an overflow of
  // 64 bits.
  int64_t evaluate(const Variables& variables) const;

 private:
  friend class ExpressionReader;

  // A step of the evaluation on a stack (postfix order): a number or a variable is pushed; an operation pops
  // its operands and pushes its result.
  struct Step {
    enum class Kind { number, variable, negate, operation } kind;
    int64_t number = 0;
    std::string name;  // of a variable, or an operation
  };
  std::vector<Step> steps_;
};

}  // namespace convswap::lab
