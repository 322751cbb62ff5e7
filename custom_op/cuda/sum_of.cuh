#pragma once

namespace convswap {

// What sums of products of T are kept in.
template <typename T>
struct SumOf {
  using Type = float;
};
template <>
struct SumOf<double> {
  using Type = double;
};

}  // namespace convswap
