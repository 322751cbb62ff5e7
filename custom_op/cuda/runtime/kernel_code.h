#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace convswap {

// What is compiled: a kernel with its template's arguments, for cards of one compute capability.
struct KernelRequest {
  std::string header;          // that has it: "cuda/toeplitz/kernel.cuh"
  std::string kernel;          // "toeplitz::kernel<ScaledFloat16Pairs, 8, true>"
  std::string variable;        // that the host fills, in constant memory; mostly empty
  int compute_capability = 0;  // 90 for 9.0
  bool is_portable = false;    // as PTX, for newer cards too: their driver compiles it to its end
  // The program of a user's own that has the kernel, in the place of `header`, which is then its file's name.
  std::string program = {};
};

// A kernel as it was compiled.
struct KernelCode {
  std::string symbol;           // of the kernel in `binary`
  std::string variable_symbol;  // of its variable, if it has one
  std::string binary;           // for the driver: a cubin, or PTX
};

// FNV-1a of 64 bits, which tells texts apart that are not made to be mistaken for each other.
uint64_t fnv1a(std::string_view text);

// The text up to the end of the line, which is taken off `rest`; nothing where there is no whole line.
std::optional<std::string_view> take_line(std::string_view& rest);

// As a file has it: a line that says whose code this is (`key`), then the rest. Whoever reads it with another
// key, or after it was damaged, gets nothing. That guards against nobody who means harm; the store's folder
// does, which is the user's own.
std::string text_of(const std::string& key, const KernelCode& code);
std::optional<KernelCode> parse_kernel_code(const std::string& key, std::string_view text);

}  // namespace convswap
