// Registers the library's ops with an application's session options. RegisterCustomOps, which ONNX Runtime
// calls, is the only exported symbol.

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "onnx/op.h"
#include "onnx/session_options.h"
#include "onnx/stage_op.h"

namespace convswap {
namespace {

constexpr char kDomain[] = "convswap";

// The ops and domains of one ONNX Runtime for one origin of kernels. They are never destroyed: sessions use
// them until the process ends.
class Registry {
 public:
  Registry(const OrtApiBase& base, const OrtApi& api, const KernelOrigin* origin) {
    for (const DeviceKind kind : {DeviceKind::cpu, DeviceKind::cuda}) {
      for (const ElementType type :
           {ElementType::float32, ElementType::float64, ElementType::float16, ElementType::bfloat16}) {
        convs_.emplace_back(OpVariant{base, api, OpKind::conv, kind, type, type, Precision::tf32, origin});
        ieee_convs_.emplace_back(
            OpVariant{base, api, OpKind::conv, kind, type, type, Precision::ieee, origin});
        for (const OpKind op : {OpKind::fused, OpKind::layout}) {
          extended_convs_.emplace_back(OpVariant{base, api, op, kind, type, type, Precision::tf32, origin});
        }
        stage_ops_.push_back(layer_norm_op({base, api, kind, type, origin}));
        stage_ops_.push_back(mul_op({base, api, kind, type, origin}));
      }
      for (const ElementType x : {ElementType::int8, ElementType::uint8}) {
        for (const ElementType y :
             {ElementType::int8, ElementType::uint8, ElementType::float32, ElementType::float16}) {
          extended_convs_.emplace_back(
              OpVariant{base, api, OpKind::quant, kind, x, y, Precision::tf32, origin});
        }
      }
      for (const ElementType type : {ElementType::float32, ElementType::float64, ElementType::float16,
                                     ElementType::bfloat16, ElementType::int8, ElementType::uint8}) {
        stage_ops_.push_back(layout_pool_op({base, api, kind, type, origin}));
      }
    }
    check(api, api.CreateCustomOpDomain(kDomain, &domain_));
    check(api, api.CreateCustomOpDomain("", &tf32_domain_));
    check(api, api.CreateCustomOpDomain("", &ieee_domain_));
    for (const ConvOp& op : convs_) {
      check(api, api.CustomOpDomain_Add(domain_, &op));
      check(api, api.CustomOpDomain_Add(tf32_domain_, &op));
    }
    for (const ConvOp& op : ieee_convs_) check(api, api.CustomOpDomain_Add(ieee_domain_, &op));
    for (const ConvOp& op : extended_convs_) check(api, api.CustomOpDomain_Add(domain_, &op));
    for (const StageOp& op : stage_ops_) check(api, api.CustomOpDomain_Add(domain_, &op));
  }

  OrtCustomOpDomain* domain() const { return domain_; }
  OrtCustomOpDomain* onnx_domain(Precision precision) const {
    return precision == Precision::ieee ? ieee_domain_ : tf32_domain_;
  }

 private:
  // Deques, because ONNX Runtime keeps the addresses of ops.
  std::deque<ConvOp> convs_, ieee_convs_, extended_convs_;
  std::deque<StageOp> stage_ops_;
  OrtCustomOpDomain* domain_ = nullptr;
  OrtCustomOpDomain *tf32_domain_ = nullptr, *ieee_domain_ = nullptr;  // ONNX's own
};

const Registry& registry_of(const OrtApiBase& base, const OrtApi& api, const KernelOrigin* origin) {
  static std::mutex mutex;
  static auto& registries =
      *new std::map<std::pair<const OrtApi*, const KernelOrigin*>, std::unique_ptr<Registry>>;
  const std::lock_guard<std::mutex> lock(mutex);
  std::unique_ptr<Registry>& registry = registries[{&api, origin}];
  if (!registry) registry = std::make_unique<Registry>(base, api, origin);
  return *registry;
}

// Adds a domain once: ONNX Runtime creates no session with a duplicate domain. The config entry `mark`
// records it.
void add_domain_once(const OrtApi& api, OrtSessionOptions* options, OrtCustomOpDomain* domain,
                     const char* mark) {
  if (has_entry(api, options, mark)) return;
  check(api, api.AddCustomOpDomain(options, domain));
  check(api, api.AddSessionConfigEntry(options, mark, "1"));
}

// Throws if the options were registered before with another kernel origin, because the domain that was added
// first stays in use.
void check_same_origin(const OrtApi& api, OrtSessionOptions* options, const KernelOrigin* origin) {
  constexpr char kMark[] = "convswap.registered.origin";
  const std::string address = std::to_string(reinterpret_cast<std::uintptr_t>(origin));
  if (!has_entry(api, options, "convswap.registered")) {
    check(api, api.AddSessionConfigEntry(options, kMark, address.c_str()));
  } else if (entry(api, options, kMark) != address) {
    throw OnnxRuntimeError(ORT_INVALID_ARGUMENT,
                           "these session options were registered with another " + kernel_origin_entries() +
                               ": set them before convswap is registered, in new options");
  }
}

// Adds the domain `convswap` with its ops Conv, FusedConv, LayoutConv, QuantConv, LayoutPool,
// LayerNormalization and Mul to the session options. In the override mode it also adds our op as Conv of the
// ONNX domain, which replaces ONNX Runtime's own. Throws.
void register_ops(const OrtApiBase& base, const OrtApi& api, OrtSessionOptions* options) {
  const KernelOrigin* const origin = kernel_origin_of(api, options);
  check_same_origin(api, options, origin);
  const Registry& registry = registry_of(base, api, origin);
  handle_kernel_recording(api, options);
  add_domain_once(api, options, registry.domain(), "convswap.registered");
  if (!override_requested(api, options)) return disable_optimizers(api, options, {kWeightBiasQuantization});
  const Precision precision = override_precision(api, options);
  keep_conv_nodes(base, api, options);
  const auto mark_of = [](Precision each) {
    return "convswap.registered.override." + std::string(name_of(each));
  };
  // The first domain of that name stays, and with it its precision.
  const Precision other = precision == Precision::ieee ? Precision::tf32 : Precision::ieee;
  if (has_entry(api, options, mark_of(other).c_str())) {
    throw OnnxRuntimeError(ORT_INVALID_ARGUMENT,
                           "these session options override in precision " + std::string(name_of(other)) +
                               " already: make new ones for " + std::string(name_of(precision)));
  }
  add_domain_once(api, options, registry.onnx_domain(precision), mark_of(precision).c_str());
}

}  // namespace
}  // namespace convswap

extern "C" __attribute__((visibility("default"))) OrtStatus* ORT_API_CALL
RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) {
  const OrtApi* api = base->GetApi(convswap::kApiVersion);
  if (api == nullptr) {
    // Every ONNX Runtime has version 1 of the API, which can create a status.
    const std::string message = "convswap needs ONNX Runtime 1." + std::to_string(convswap::kApiVersion) +
                                " or newer and this is " + base->GetVersionString() +
                                ": install a newer onnxruntime or onnxruntime-gpu";
    return base->GetApi(1)->CreateStatus(ORT_FAIL, message.c_str());
  }
  try {
    convswap::register_ops(*base, *api, options);
    return nullptr;
  } catch (...) {
    return convswap::status_of_current_exception(*api, "convswap");
  }
}
