#include "cuda/runtime/kernel_code.h"

namespace convswap {
namespace {

constexpr std::string_view kCodeFormat = "convswap kernel 1";

}  // namespace

uint64_t fnv1a(std::string_view text) {
  uint64_t hash = 14695981039346656037u;
  for (const char letter : text) hash = (hash ^ static_cast<unsigned char>(letter)) * 1099511628211u;
  return hash;
}

std::optional<std::string_view> take_line(std::string_view& rest) {
  const size_t end = rest.find('\n');
  if (end == std::string_view::npos) return std::nullopt;
  const std::string_view line = rest.substr(0, end);
  rest.remove_prefix(end + 1);
  return line;
}

std::string text_of(const std::string& key, const KernelCode& code) {
  std::string body = key + '\n' + code.symbol + '\n' + code.variable_symbol + '\n' + code.binary;
  return std::string(kCodeFormat) + ' ' + std::to_string(body.size()) + ' ' + std::to_string(fnv1a(body)) +
         '\n' + body;
}

std::optional<KernelCode> parse_kernel_code(const std::string& key, std::string_view text) {
  std::optional<std::string_view> header = take_line(text);
  if (!header || !header->starts_with(kCodeFormat)) return std::nullopt;
  header->remove_prefix(kCodeFormat.size());
  if (*header != ' ' + std::to_string(text.size()) + ' ' + std::to_string(fnv1a(text))) return std::nullopt;
  if (take_line(text) != key) return std::nullopt;
  const std::optional<std::string_view> symbol = take_line(text), variable = take_line(text);
  if (!symbol || !variable) return std::nullopt;
  return KernelCode{std::string(*symbol), std::string(*variable), std::string(text)};
}

}  // namespace convswap
