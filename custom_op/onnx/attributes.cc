#include "onnx/attributes.h"

#include <algorithm>
#include <cstring>

#include "conv/error.h"

namespace convswap {
namespace {

[[noreturn]] void throw_wrong_type(const char* name, const char* expected) {
  throw InvalidArgument("attribute " + std::string(name) + " has another type or no value: expected " +
                        expected + ", or no such attribute");
}

// Returns whether the attribute is present, and throws if it has another type. The getters return the same
// error code for both cases; only the message differs.
bool is_present(const OrtApi& api, OrtStatus* status, const char* name, const char* expected) {
  if (status == nullptr) return true;
  const std::string message = api.GetErrorMessage(status);
  api.ReleaseStatus(status);
  if (message.find("No attribute with") == std::string::npos) throw_wrong_type(name, expected);
  return false;
}

// Reads a number from its bytes; empty if the size does not fit.
template <typename T>
std::optional<T> number_of(const std::string& bytes) {
  if (bytes.size() != sizeof(T)) return std::nullopt;
  T value = 0;
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

}  // namespace

std::optional<int64_t> KernelAttributes::integer(const char* name) const {
  int64_t value = 0;
  if (!is_present(api_, api_.KernelInfoGetAttribute_int64(info_, name, &value), name, "an integer")) {
    return std::nullopt;
  }
  return value;
}

std::optional<float> KernelAttributes::real(const char* name) const {
  float value = 0;
  if (!is_present(api_, api_.KernelInfoGetAttribute_float(info_, name, &value), name, "a real number")) {
    return std::nullopt;
  }
  return value;
}

std::vector<int64_t> KernelAttributes::integers(const char* name) const {
  size_t size = 0;
  constexpr char kExpected[] = "a list of integers";
  if (!is_present(api_, api_.KernelInfoGetAttributeArray_int64(info_, name, nullptr, &size), name,
                  kExpected)) {
    return {};
  }
  // This getter returns an empty list for an attribute of any other type, a single integer included.
  if (size == 0) throw_wrong_type(name, kExpected);
  std::vector<int64_t> values(size);
  check(api_, api_.KernelInfoGetAttributeArray_int64(info_, name, values.data(), &size));
  return values;
}

std::optional<std::string> KernelAttributes::text(const char* name) const {
  size_t size = 0;  // with the terminating zero
  if (!is_present(api_, api_.KernelInfoGetAttribute_string(info_, name, nullptr, &size), name, "a string")) {
    return std::nullopt;
  }
  std::string value(size, '\0');
  check(api_, api_.KernelInfoGetAttribute_string(info_, name, value.data(), &size));
  return std::string(value.c_str());
}

// Returns the attribute's bytes; empty if it is absent.
std::string InferenceAttributes::read(const char* name, OrtOpAttrType type) const {
  const OrtOpAttr* attribute = nullptr;
  if (OrtStatus* status = api_.ShapeInferContext_GetAttribute(context_, name, &attribute);
      status != nullptr) {
    api_.ReleaseStatus(status);
    return {};
  }
  size_t size = 0;
  if (OrtStatus* status = api_.ReadOpAttr(attribute, type, nullptr, 0, &size); status != nullptr) {
    api_.ReleaseStatus(status);  // the expected error: the buffer is too small
  }
  std::string bytes(size, '\0');
  if (size > 0) check(api_, api_.ReadOpAttr(attribute, type, bytes.data(), size, &size));
  return bytes;
}

std::optional<int64_t> InferenceAttributes::integer(const char* name) const {
  return number_of<int64_t>(read(name, ORT_OP_ATTR_INT));
}

std::optional<float> InferenceAttributes::real(const char* name) const {
  return number_of<float>(read(name, ORT_OP_ATTR_FLOAT));
}

std::vector<int64_t> InferenceAttributes::integers(const char* name) const {
  const std::string bytes = read(name, ORT_OP_ATTR_INTS);
  std::vector<int64_t> values(bytes.size() / sizeof(int64_t));
  // Unlike memcpy, std::copy_n accepts the null data of an absent attribute.
  std::copy_n(bytes.data(), values.size() * sizeof(int64_t), reinterpret_cast<char*>(values.data()));
  return values;
}

std::optional<std::string> InferenceAttributes::text(const char* name) const {
  std::string value = read(name, ORT_OP_ATTR_STRING);
  if (value.empty()) return std::nullopt;
  return std::string(value.c_str());
}

}  // namespace convswap
