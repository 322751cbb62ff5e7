#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace convswap {

// A kernel instance to compile, for one compute capability.
struct KernelRequest {
  std::string header;          // that defines it: "cuda/toeplitz/kernel.cuh"
  std::string kernel;          // "toeplitz::kernel<ScaledFloat16Pairs, 8, true>"
  std::string variable;        // constant memory that the host fills; usually empty
  int compute_capability = 0;  // 90 for 9.0
  bool is_portable = false;    // as PTX, which the driver compiles for this and newer cards
  // A user's program that defines the kernel. `header` is then the name of its file.
  std::string program = {};
};

// A compiled kernel.
struct KernelCode {
  std::string symbol;           // the kernel's mangled name in `binary`
  std::string variable_symbol;  // the variable's mangled name, or empty
  std::string binary;           // a cubin, or PTX
};

// 64-bit FNV-1a hash. Detects accidental differences, not deliberate collisions.
uint64_t fnv1a(std::string_view text);

// Removes the first line from `rest` and returns it without its newline; nothing if there is no newline.
std::optional<std::string_view> take_line(std::string_view& rest);

// The file format of a kernel: a line with the size and the hash of the rest, then `key`, symbols and binary.
// parse_kernel_code returns nothing for another key or a damaged text. The hash does not protect against
// attackers; the permissions of the store's folder do.
std::string text_of(const std::string& key, const KernelCode& code);
std::optional<KernelCode> parse_kernel_code(const std::string& key, std::string_view text);

}  // namespace convswap
