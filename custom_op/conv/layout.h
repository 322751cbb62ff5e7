#pragma once

// Layouts of tensors in memory: channels first (NCHW) or channels last (NHWC).

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace convswap {

using Shape = std::vector<int64_t>;

// Order of a tensor's axes, for one to three spatial axes: (N, C, spatial...) or (N, spatial..., C). The
// names are those of two spatial axes in every rank.
enum class Layout { nchw, nhwc };

// "NCHW" or "NHWC".
std::string_view name_of(Layout layout);

// The axes in words: "(N, C, spatial...)" or "(N, spatial..., C)".
std::string_view axes_of(Layout layout);

// Throws InvalidArgument, naming the attribute, for a word that is not a layout's name.
Layout parse_layout(std::string_view attribute, std::string_view word);

// The axis of the channels in a tensor of `rank` axes.
inline size_t channel_axis(Layout layout, size_t rank) { return layout == Layout::nhwc ? rank - 1 : 1; }

// Permutes the extents of a tensor to NCHW, or from NCHW to a layout. Shapes of fewer than three axes stay.
Shape to_nchw(Shape shape, Layout layout);
Shape from_nchw(Shape shape, Layout layout);

// The layouts of a node's tensors. Weights are always (K, C / group, filter...).
struct Layouts {
  Layout input = Layout::nchw;     // of x; of the depthwise convolution's input if there is one in front
  Layout output = Layout::nchw;    // of y
  Layout residual = Layout::nchw;  // of z

  bool operator==(const Layouts&) const = default;
  bool are_nchw() const { return *this == Layouts{}; }
};

}  // namespace convswap
