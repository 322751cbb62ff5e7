#include "onnx/op.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "conv/error.h"
#include "conv/messages.h"
#include "conv/open_shapes.h"
#include "cuda/runtime/kernel_store.h"
#include "onnx/alignment.h"
#include "onnx/attributes.h"
#include "onnx/entries.h"
#include "onnx/inputs.h"
#include "onnx/kernel_origin.h"
#include "onnx/optimizers.h"
#include "onnx/override.h"
#include "onnx/prepared.h"
#include "onnx/recent_runs.h"
#include "onnx/scratch.h"
#include "plan/background.h"
#include "plan/first_error.h"
#include "plan/kernel_supply.h"
#include "plan/plan_cache.h"
#include "plan/planner.h"
#include "plan/tuning_file.h"

namespace convswap {
namespace {

constexpr char kDomain[] = "convswap";

// The two ops: ONNX's Conv, and Conv with what follows it.
enum class OpKind { conv, fused_conv };

constexpr const char* name_of(OpKind kind) { return kind == OpKind::conv ? "Conv" : "FusedConv"; }

ConvSpec read_spec_of(OpKind kind, const Attributes& attributes, ElementType type, Precision precision) {
  ConvSpec spec = read_spec(attributes, type, precision);
  if (kind == OpKind::fused_conv) {
    spec.epilogue = read_epilogue(attributes, type);
    spec.depthwise = read_depthwise(attributes, type);
  }
  return spec;
}

std::string node_name(const OrtApi& api, const OrtKernelInfo* info) {
  size_t size = 0;
  check(api, api.KernelInfo_GetNodeName(info, nullptr, &size));
  std::string name(size, '\0');
  check(api, api.KernelInfo_GetNodeName(info, name.data(), &size));
  return name.c_str();
}

// ONNX Runtime's thread pool as a ParallelFor.
ParallelFor session_threads(const OrtApi& api, const OrtKernelContext* context) {
  return [&api, context](std::ptrdiff_t tasks, const std::function<void(std::ptrdiff_t)>& body) {
    struct Call {
      const std::function<void(std::ptrdiff_t)>& body;
      FirstError error;
    } call{body, {}};
    const auto run_task = [](void* data, size_t task) {
      Call& running = *static_cast<Call*>(data);
      running.error.guard([&] { running.body(static_cast<std::ptrdiff_t>(task)); });
    };
    check(api, api.KernelContext_ParallelFor(context, run_task, static_cast<size_t>(tasks), 0, &call));
    call.error.rethrow();
  };
}

// The batches that plans are made for ahead of time: that of the shape, or where it is open some that are
// usual; none where another extent is open too.
std::vector<int64_t> batches_to_plan(const Shape& x) {
  const auto is_open = [](int64_t extent) { return extent < 0; };
  if (x.size() < 3 || std::any_of(x.begin() + 1, x.end(), is_open)) return {};
  if (is_open(x[0])) return {1, 8, 64, 512};
  return {x[0]};
}

// One node of one session. Serves concurrent runs.
class ConvKernel {
 public:
  // `origin`: of the session's kernels on a card; may be null.
  ConvKernel(const OrtApiBase& base, const OrtApi& api, const OrtKernelInfo* info, OpKind op, DeviceKind kind,
             ElementType type, Precision precision, const KernelOrigin* origin)
      : base_(base),
        api_(api),
        kind_(kind),
        origin_(origin),
        lends_scratch_(lends_scratch(base)),
        spec_(read_spec_of(op, KernelAttributes(api, info), type, precision)),
        plans_(std::make_shared<PlanCache>(
            KernelAttributes(api, info).text("algorithm").value_or(std::string(kAuto)),
            Preferences(KernelAttributes(api, info).text("tuned").value_or("")))),
        is_tuned_(plans_->algorithm() == kTuned),
        inputs_(api, info),
        prepared_weights_(api) {
    // On a card ONNX Runtime copies constants to memory of its own.
    if (kind == DeviceKind::cpu) aligned_constants_.emplace(api, info, size_of(type));
    check_spec(spec_);
    check_algorithm_name(plans_->algorithm(), kind);
    check_shapes(info);
    if (kind == DeviceKind::cuda) plan_ahead(info);
  }

  void compute(OrtKernelContext* context) {
    const InputTensors tensors = inputs_.of(context);
    const std::shared_ptr<const KnownRun> run = known_run(context, tensors);
    OrtValue* y = nullptr;
    check(api_, api_.KernelContext_GetOutput(context, 0, run->result.data(), run->result.size(), &y));
    if (is_tuned_) log_warning(context, take_tuning_warning());
    if (kind_ == DeviceKind::cuda) log_warning(context, take_kernel_store_warning());
    if (run->plan == nullptr) return;

    const Scratch scratch(base_, api_, context, tensors.x, run->scratch_bytes, kind_);
    Execution execution = execution_of(context, scratch.pointer());
    if (aligned_constants_) {
      AlignedTensors own(api_, *aligned_constants_, size_of(spec_.type));
      run->plan->run({own.input(tensors.x), own.input(tensors.w), own.input(tensors.b), own.output(y),
                      own.input(tensors.z), own.input(tensors.d), own.input(tensors.db)},
                     execution);
      own.finish();
      return;
    }
    const void* const w = aligned_data(tensors.w);
    execution.prepared_weights = prepared(*run, context, tensors.w, w, execution.stream);
    execution.weights_stay = inputs_.has_constants_only(tensors);
    run->plan->run({aligned_data(tensors.x), w, aligned_data(tensors.b), aligned_data(y),
                    aligned_data(tensors.z), aligned_data(tensors.d), aligned_data(tensors.db)},
                   execution);
  }

 private:
  // What is known of runs of such inputs, found out where it is not.
  std::shared_ptr<const KnownRun> known_run(const OrtKernelContext* context, const InputTensors& tensors) {
    const NodeInputs::Keys keys = inputs_.keys(tensors);
    const int index = device_index(tensors.x);
    if (std::shared_ptr<const KnownRun> known = recent_runs_.find(keys, index)) return known;

    const auto shape_or_none = [&](const OrtValue* tensor) {
      return tensor == nullptr ? std::nullopt : std::optional(shape_of(api_, tensor));
    };
    const std::optional<Shape> bias = shape_or_none(tensors.b), residual = shape_or_none(tensors.z);
    const std::optional<Shape> depthwise = shape_or_none(tensors.d), its_bias = shape_or_none(tensors.db);
    const Shape x = shape_of(api_, tensors.x), w = shape_of(api_, tensors.w);
    const ConvProblem problem = make_problem(
        spec_, {x, w, pointer_to(bias), pointer_to(residual), pointer_to(depthwise), pointer_to(its_bias)});
    const Device& device =
        kind_ == DeviceKind::cpu ? cpu_device() : cuda_device(index, origin_, lends_scratch_);
    auto run = std::make_shared<KnownRun>(keys, device, problem.result_shape());
    if (problem.result_elements() > 0) {
      run->plan = plans_->get(problem, device,
                              [&](const Offer& offer) { tell_of_compiling(context, device, offer); });
      run->scratch_bytes = run->plan->scratch_bytes();
      run->takes_prepared_weights =
          kind_ == DeviceKind::cuda && inputs_.has_constant_weights() && run->plan->prepared_form().bytes > 0;
    }
    recent_runs_.add(run);
    return run;
  }

  // Checks what the model tells of the shapes.
  void check_shapes(const OrtKernelInfo* info) const {
    const std::optional<Shape> x = known_shape(info, 0);
    check_open_shapes(spec_, {has_input(info, 4) ? depthwise_result(info, x) : x, known_shape(info, 1),
                              known_shape(info, 2)});
  }

  // Of the depthwise convolution in front, as far as the model tells.
  std::optional<Shape> depthwise_result(const OrtKernelInfo* info, const std::optional<Shape>& x) const {
    const auto is_whole = [](const std::optional<Shape>& shape) {
      return shape && std::find(shape->begin(), shape->end(), kOpen) == shape->end();
    };
    const std::optional<Shape> weights = known_shape(info, 4), bias = known_shape(info, 5);
    if (weights && is_known(*weights, 0) && (*weights)[0] > 0) {
      const ConvSpec alone = depthwise_spec(spec_, (*weights)[0]);
      try {
        check_open_shapes(alone, {x, weights, bias});
        if (is_whole(x) && is_whole(weights))
          return make_problem(alone, *x, *weights, nullptr).result_shape();
      } catch (const InvalidArgument& error) {
        throw InvalidArgument("the depthwise convolution in front: " + std::string(error.what()));
      }
    }
    std::optional<Shape> result = x;
    if (result)
      std::fill(result->begin() + std::min<ptrdiff_t>(2, std::ssize(*result)), result->end(), kOpen);
    return result;
  }

  // The weights as the plan of the run wants them prepared; null where it takes them as they are.
  const void* prepared(const KnownRun& run, const OrtKernelContext* context, const OrtValue* weights,
                       const void* data, void* stream) {
    if (!run.takes_prepared_weights) return nullptr;
    if (const void* const known = run.prepared_weights; known != nullptr) return known;
    return run.prepared_weights =
               prepared_weights_.get(*run.plan, run.device.index, context, weights, data, stream);
  }

  // Has plans made, and their kernels compiled, before the first run asks for them: of the shapes that the
  // model tells, and where its batch is open, of usual ones.
  void plan_ahead(const OrtKernelInfo* info) const {
    const std::optional<int> device = device_of_session(info);
    const std::optional<Shape> x = known_shape(info, 0), w = known_shape(info, 1);
    const std::optional<Shape> bias = known_shape(info, 2), residual = known_shape(info, 3);
    const std::optional<Shape> depthwise = known_shape(info, 4), its_bias = known_shape(info, 5);
    const auto is_unclear = [&](size_t index, const std::optional<Shape>& shape) {
      return !shape && has_input(info, index);
    };
    if (!device || !x || !w || is_unclear(2, bias) || is_unclear(3, residual) || is_unclear(4, depthwise) ||
        is_unclear(5, its_bias)) {
      return;
    }
    for (const int64_t batch : batches_to_plan(*x)) {
      const bool is_open = (*x)[0] != batch;
      const auto make_plan = [node_plans = std::weak_ptr(plans_), spec = spec_, origin = origin_,
                              lends = lends_scratch_, batch, x = *x, w = *w, bias, depthwise, its_bias,
                              has_residual = residual.has_value(), device = *device] {
        const std::shared_ptr<PlanCache> plans = node_plans.lock();
        if (plans == nullptr) return;  // the session has been closed
        Shape shape = x;
        shape[0] = batch;
        InputShapes shapes{shape, w, pointer_to(bias), nullptr, pointer_to(depthwise), pointer_to(its_bias)};
        ConvProblem problem = make_problem(spec, shapes);
        if (has_residual) {
          const Shape z = problem.without_epilogue().result_shape();
          shapes.residual = &z;
          problem = make_problem(spec, shapes);
        }
        if (problem.result_elements() > 0) plans->get(problem, cuda_device(device, origin, lends));
      };
      in_background(is_open ? When::late : When::soon, make_plan);
    }
  }

  // A run that waits for the compiler says so, in the first of a process.
  void tell_of_compiling(const OrtKernelContext* context, const Device& device, const Offer& offer) const {
    static std::atomic<bool> is_told{false};
    if (kind_ == DeviceKind::cpu || is_told) return;
    const std::string what = what_is_compiled(device, offer);
    if (!what.empty() && !is_told.exchange(true)) log_warning(context, what);
  }

  // A line of ONNX Runtime's log, for what costs time and never an answer, such as a damaged tuning table;
  // none where the text is empty.
  void log_warning(const OrtKernelContext* context, const std::string& text) const {
    if (text.empty()) return;
    const OrtLogger* logger = nullptr;
    check(api_, api_.KernelContext_GetLogger(context, &logger));
    check(api_, api_.Logger_LogMessage(logger, ORT_LOGGING_LEVEL_WARNING, text.c_str(), "onnx/op.cc",
                                       __LINE__, "convswap"));
  }

  // The shape of a constant, or what the model declares; none of an input that is left out.
  std::optional<Shape> known_shape(const OrtKernelInfo* info, size_t index) const {
    size_t count = 0;
    check(api_, api_.KernelInfo_GetInputCount(info, &count));
    if (index >= count) return std::nullopt;
    int is_constant = 0;
    const OrtValue* constant = nullptr;
    check(api_, api_.KernelInfoGetConstantInput_tensor(info, index, &is_constant, &constant));
    if (is_constant) return shape_of(api_, constant);
    OrtTypeInfo* raw = nullptr;
    if (OrtStatus* status = api_.KernelInfo_GetInputTypeInfo(info, index, &raw); status != nullptr) {
      api_.ReleaseStatus(status);  // says only that there is no type
      return std::nullopt;
    }
    const TypeInfo type(raw, {&api_});
    const OrtTensorTypeAndShapeInfo* tensor = nullptr;  // the type's: not ours to release
    check(api_, api_.CastTypeInfoToTensorInfo(type.get(), &tensor));
    Shape shape = tensor == nullptr ? Shape{} : shape_of(api_, tensor);
    // Of no known rank; or a scalar, of which ONNX Runtime says the same.
    if (shape.empty()) return std::nullopt;
    return shape;
  }

  // Whether the node has an input of that number; one that is left out has no name.
  bool has_input(const OrtKernelInfo* info, size_t index) const {
    size_t count = 0, bytes = 0;
    check(api_, api_.KernelInfo_GetInputCount(info, &count));
    if (index >= count) return false;
    check(api_, api_.KernelInfo_GetInputName(info, index, nullptr, &bytes));
    return bytes > 1;
  }

  // The card that the session is on: the only one, or that which its weights lie on; nothing where neither
  // tells.
  std::optional<int> device_of_session(const OrtKernelInfo* info) const {
    const int cards = cuda_device_count();
    if (cards <= 1) return cards == 1 ? std::optional<int>(0) : std::nullopt;
    int is_constant = 0, index = 0;
    const OrtValue* weights = nullptr;
    const OrtMemoryInfo* memory = nullptr;
    OrtMemoryInfoDeviceType type = OrtMemoryInfoDeviceType_CPU;
    check(api_, api_.KernelInfoGetConstantInput_tensor(info, 1, &is_constant, &weights));
    if (!is_constant) return std::nullopt;
    check(api_, api_.GetTensorMemoryInfo(weights, &memory));
    api_.MemoryInfoGetDeviceType(memory, &type);
    if (type != OrtMemoryInfoDeviceType_GPU) return std::nullopt;
    check(api_, api_.MemoryInfoGetId(memory, &index));
    return index;
  }

  // Of a card, where no copy is made: memory that a user bound may begin anywhere.
  void* aligned_data(const OrtValue* tensor) const {
    void* const data = data_of(api_, tensor);
    if (!is_aligned(data, size_of(spec_.type))) {
      throw InvalidArgument("a tensor begins at an address that is no multiple of its elements' " +
                            std::to_string(size_of(spec_.type)) + " bytes: bind memory that does");
    }
    return data;
  }

  // The number of the card that a tensor is on; of the processor's, 0.
  int device_index(const OrtValue* tensor) const {
    int index = 0;
    if (kind_ == DeviceKind::cpu) return index;
    const OrtMemoryInfo* memory = nullptr;
    check(api_, api_.GetTensorMemoryInfo(tensor, &memory));
    check(api_, api_.MemoryInfoGetId(memory, &index));
    return index;
  }

  Execution execution_of(OrtKernelContext* context, void* scratch) const {
    Execution execution;
    execution.scratch = scratch;
    if (kind_ == DeviceKind::cpu) {
      execution.parallel_for = session_threads(api_, context);
    } else {
      check(api_, api_.KernelContext_GetGPUComputeStream(context, &execution.stream));
    }
    return execution;
  }

  const OrtApiBase& base_;
  const OrtApi& api_;
  const DeviceKind kind_;
  const KernelOrigin* const origin_;
  const bool lends_scratch_;
  const ConvSpec spec_;
  const std::shared_ptr<PlanCache> plans_;  // which work in the background looks for
  const bool is_tuned_;
  const NodeInputs inputs_;
  RecentRuns recent_runs_;
  std::optional<AlignedConstants> aligned_constants_;  // of the CPU
  PreparedWeights prepared_weights_;
};

// A kernel with what its failures are reported with.
struct NamedKernel {
  const OrtApi& api;
  std::string name;
  ConvKernel kernel;
};

ONNXTensorElementDataType onnx_type(ElementType type) {
  switch (type) {
    case ElementType::float32:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
    case ElementType::float64:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE;
    case ElementType::float16:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16;
    case ElementType::bfloat16:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16;
  }
  return ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
}

// An op as ONNX Runtime sees it: a table of functions, one op object for each kind of device and element
// type.
class ConvOp : public OrtCustomOp {
 public:
  // `precision` is that of nodes which say none; `origin`: of the kernels on a card, may be null.
  ConvOp(const OrtApiBase& base, const OrtApi& api, OpKind op_kind, DeviceKind kind, ElementType type,
         Precision precision, const KernelOrigin* origin)
      : OrtCustomOp{},
        base_(base),
        api_(api),
        op_kind_(op_kind),
        kind_(kind),
        type_(type),
        precision_(precision),
        origin_(origin) {
    version = kApiVersion;
    GetName = [](const OrtCustomOp* op) { return name_of(self(op).op_kind_); };
    GetExecutionProviderType = [](const OrtCustomOp* op) {
      return self(op).kind_ == DeviceKind::cuda ? "CUDAExecutionProvider" : "CPUExecutionProvider";
    };
    GetInputTypeCount = [](const OrtCustomOp* op) -> size_t {
      return self(op).op_kind_ == OpKind::conv ? 3 : NodeInputs::kMost;
    };
    GetInputType = [](const OrtCustomOp* op, size_t) { return onnx_type(self(op).type_); };
    GetInputCharacteristic = [](const OrtCustomOp*, size_t index) {
      return index >= 2 ? INPUT_OUTPUT_OPTIONAL : INPUT_OUTPUT_REQUIRED;
    };
    GetInputMemoryType = [](const OrtCustomOp*, size_t) { return OrtMemTypeDefault; };
    GetOutputTypeCount = [](const OrtCustomOp*) -> size_t { return 1; };
    GetOutputType = [](const OrtCustomOp* op, size_t) { return onnx_type(self(op).type_); };
    GetOutputCharacteristic = [](const OrtCustomOp*, size_t) { return INPUT_OUTPUT_REQUIRED; };
    GetVariadicInputMinArity = [](const OrtCustomOp*) { return 1; };
    GetVariadicInputHomogeneity = [](const OrtCustomOp*) { return 1; };
    GetVariadicOutputMinArity = [](const OrtCustomOp*) { return 1; };
    GetVariadicOutputHomogeneity = [](const OrtCustomOp*) { return 1; };
    GetStartVersion = [](const OrtCustomOp*) { return 1; };
    GetEndVersion = [](const OrtCustomOp*) { return std::numeric_limits<int>::max(); };
    CreateKernelV2 = create_kernel;
    KernelComputeV2 = compute;
    KernelDestroy = [](void* kernel) { delete static_cast<NamedKernel*>(kernel); };
    InferOutputShapeFn = infer_shape;
  }

 private:
  static const ConvOp& self(const OrtCustomOp* op) { return *static_cast<const ConvOp*>(op); }

  static OrtStatus* create_kernel(const OrtCustomOp* op, const OrtApi* api, const OrtKernelInfo* info,
                                  void** kernel) noexcept {
    std::string name;
    try {
      name = std::string("convswap ") + name_of(self(op).op_kind_);
      const std::string node = node_name(*api, info);
      name += " node '" + node + "'";
      const ConvOp& own = self(op);
      *kernel = new NamedKernel{
          *api,
          name,
          {own.base_, *api, info, own.op_kind_, own.kind_, own.type_, own.precision_, own.origin_}};
      note_kernel(node);
      return nullptr;
    } catch (...) {
      return status_of_current_exception(*api, name);
    }
  }

  static OrtStatus* compute(void* kernel, OrtKernelContext* context) noexcept {
    NamedKernel& named = *static_cast<NamedKernel*>(kernel);
    try {
      named.kernel.compute(context);
      return nullptr;
    } catch (...) {
      return status_of_current_exception(named.api, named.name);
    }
  }

  // Always succeeds: ONNX Runtime neither reads nor releases the status. The kernel finds the same fault and
  // reports it with the node's name.
  static OrtStatus* infer_shape(const OrtCustomOp* op, OrtShapeInferContext* context) noexcept {
    try {
      const InferenceAttributes attributes(self(op).api_, context);
      infer_conv_shape(self(op).api_, context,
                       read_spec_of(self(op).op_kind_, attributes, ElementType::float32, Precision::tf32));
    } catch (...) {
    }
    return nullptr;
  }

  const OrtApiBase& base_;
  const OrtApi& api_;
  const OpKind op_kind_;
  const DeviceKind kind_;
  const ElementType type_;
  const Precision precision_;
  const KernelOrigin* const origin_;
};

// The ops and domains of one ONNX Runtime, for sessions whose kernels come from the same place. They are
// never destroyed: sessions use them until the process ends.
class Registry {
 public:
  Registry(const OrtApiBase& base, const OrtApi& api, const KernelOrigin* origin) {
    for (const DeviceKind kind : {DeviceKind::cpu, DeviceKind::cuda}) {
      for (const ElementType type :
           {ElementType::float32, ElementType::float64, ElementType::float16, ElementType::bfloat16}) {
        convs_.emplace_back(base, api, OpKind::conv, kind, type, Precision::tf32, origin);
        ieee_convs_.emplace_back(base, api, OpKind::conv, kind, type, Precision::ieee, origin);
        fused_convs_.emplace_back(base, api, OpKind::fused_conv, kind, type, Precision::tf32, origin);
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
    for (const ConvOp& op : fused_convs_) check(api, api.CustomOpDomain_Add(domain_, &op));
  }

  OrtCustomOpDomain* domain() const { return domain_; }
  OrtCustomOpDomain* onnx_domain(Precision precision) const {
    return precision == Precision::ieee ? ieee_domain_ : tf32_domain_;
  }

 private:
  // Which never move: ONNX Runtime keeps their addresses.
  std::deque<ConvOp> convs_, ieee_convs_, fused_convs_;
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

// ONNX Runtime refuses to make a session with a domain that is there twice, so each leaves a mark.
void add_domain_once(const OrtApi& api, OrtSessionOptions* options, OrtCustomOpDomain* domain,
                     const char* mark) {
  if (has_entry(api, options, mark)) return;
  check(api, api.AddCustomOpDomain(options, domain));
  check(api, api.AddSessionConfigEntry(options, mark, "1"));
}

// The one domain of that name stays what it is, and sessions of these options take their kernels from where
// it does.
void check_same_origin(const OrtApi& api, OrtSessionOptions* options, const KernelOrigin* origin) {
  constexpr char kMark[] = "convswap.registered.origin";
  const std::string own = std::to_string(reinterpret_cast<std::uintptr_t>(origin));
  if (!has_entry(api, options, "convswap.registered")) {
    check(api, api.AddSessionConfigEntry(options, kMark, own.c_str()));
  } else if (entry(api, options, kMark) != own) {
    throw OnnxRuntimeError(ORT_INVALID_ARGUMENT,
                           "these session options were registered with another convswap.pack, "
                           "convswap.compile or convswap.lab: set them before convswap is registered, in new "
                           "options");
  }
}

}  // namespace

void register_ops(const OrtApiBase& base, const OrtApi& api, OrtSessionOptions* options) {
  const KernelOrigin* const origin = kernel_origin_of(api, options);
  check_same_origin(api, options, origin);
  const Registry& registry = registry_of(base, api, origin);
  answer_kernels(api, options);
  add_domain_once(api, options, registry.domain(), "convswap.registered");
  if (!override_requested(api, options)) return disable_optimizers(api, options, {kTakesOurDomain});
  const Precision precision = override_precision(api, options);
  keep_conv_nodes(base, api, options);
  const auto mark_of = [](Precision each) {
    return "convswap.registered.override." + std::string(name_of(each));
  };
  // The one domain of that name stays what it is, and sessions of these options compute as it does.
  const Precision other = precision == Precision::ieee ? Precision::tf32 : Precision::ieee;
  if (has_entry(api, options, mark_of(other).c_str())) {
    throw OnnxRuntimeError(ORT_INVALID_ARGUMENT,
                           "these session options override in precision " + std::string(name_of(other)) +
                               " already: make new ones for " + std::string(name_of(precision)));
  }
  add_domain_once(api, options, registry.onnx_domain(precision), mark_of(precision).c_str());
}

}  // namespace convswap
