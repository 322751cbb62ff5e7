#pragma once

// Whole-number expressions of a user's launch line, such as `ceil_div(H_out, 16) * M`. They are read by a
// grammar of their own, which knows no statement, no assignment and no call but those below:
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
  // Takes the expression that `text` has from `at` on, and moves `at` behind it. Throws InvalidArgument,
  // which names the column, where there is none.
  static Expression read(std::string_view text, std::size_t& at);

  // Throws InvalidArgument where a name is not among the variables.
  void check_names(const Variables& variables) const;

  // Throws InvalidArgument where a name is not among the variables, where it divides by zero, or where a
  // number outgrows 64 bits.
  int64_t evaluate(const Variables& variables) const;

 private:
  friend class ExpressionReader;

  // In the order in which they are done, with a stack: a number or a variable is pushed; an operation takes
  // its operands from there and leaves its result.
  struct Step {
    enum class Kind { number, variable, negate, operation } kind;
    int64_t number = 0;
    std::string name;  // of a variable, or an operation
  };
  std::vector<Step> steps_;
};

}  // namespace convswap::lab
