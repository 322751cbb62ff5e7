#pragma once

// The list of row_windows' kernel instances: one for each element type.

#include <string_view>

namespace convswap::row_windows {

inline constexpr std::string_view kFormats[] = {"float", "Float16", "BFloat16"};

}  // namespace convswap::row_windows
