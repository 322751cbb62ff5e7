#pragma once

namespace convswap {

inline void griddepcontrol_wait() {}
inline void griddepcontrol_wait_unless(bool) {}
inline void griddepcontrol_launch_dependents() {}

}  // namespace convswap
