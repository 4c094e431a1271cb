#include "session/loaded_model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <utility>

#include "core/base/error.h"
#include "core/text/json.h"
#include "kernels/cuda/tiers.h"
#include "params/adapter_kind.h"
#include "params/adapter_targets.h"
#include "params/expert_parts.h"
#include "params/frozen_weights.h"
#include "params/lora_patterns.h"
#include "weights/promised_layers.h"
#include "weights/quantization.h"
#include "weights/stored_tensor.h"

namespace hone {

namespace {

constexpr const char* kBaseWeightKey = "base_weight_dtype";
constexpr const char* kExpertWeightKey = "expert_weight_dtype";

}  // namespace

void hold_base_as(TrainableOptions& options, const BaseFormat& format, std::vector<std::string> keep) {
  options.base_keep = std::move(keep);
  options.base_as_stored = format.as_stored();
  if (const PackedFormat* packed = format.packed()) options.base_format = [packed](const Parameter&) { return packed; };
}

namespace {

bool can_be_packed(const Parameter& p) { return is_base_weight(p) && !p.trainable() && p.value().format().dense(); }

}  // namespace

std::map<const Parameter*, const PackedFormat*> packed_weights(
    ParameterStore& store, const std::function<const PackedFormat*(const Parameter&)>& format,
    const std::vector<std::string>& keep) {
  std::set<const Parameter*> kept;
  for (const Parameter* p : store.select(keep, "base_weight_keep")) kept.insert(p);
  std::map<const Parameter*, const PackedFormat*> formats;
  for (const Parameter& p : store.all()) {
    if (!can_be_packed(p) || kept.contains(&p)) continue;
    const PackedFormat* of = format(p);
    if (of != nullptr && of->fits(p.spec().stack())) formats.emplace(&p, of);
  }
  return formats;
}

UserError experts_need_cpu(const std::string& where, const std::string& fix) {
  return UserError("experts of 8 bits are computed by a CPU, but the device is a GPU", where,
                   fix + "; base_weight_dtype: int8 holds them in 8 bits on a GPU");
}

void check_expert_format(const WeightFormat& experts, Device device, const std::string& where, const std::string& fix) {
  if (!experts.movable() && !experts.read_in_place(WeightProduct::kExperts, device)) throw experts_need_cpu(where, fix);
}

void check_fp8(Fp8Recipe recipe, const Stream& stream) {
  if (recipe == Fp8Recipe::kOff || stream.device().kind == DeviceKind::kCpu) return;
  if (cuda::kernel_tiers(stream).fp8 == KernelTier::kSm90) return;
  throw UserError("products of 8-bit floats need a GPU of compute capability 9.0 (H100, H200), and this is none", "fp8",
                  "leave it out; base_weight_dtype: fp8 holds frozen weights in 8 bits on any GPU");
}

LoadedModel::LoadedModel(HfConfig config, std::filesystem::path directory, DType dtype, const WeightFormat& experts,
                         int64_t vocab_rows)
    : directory_(std::move(directory)), config_(std::move(config)) {
  DecoderConfig decoder = read_decoder_config(config_);
  if (vocab_rows > decoder.vocab_size) {
    config_ = config_.with_vocab_size(vocab_rows);
    decoder = read_decoder_config(config_);
    added_vocab_rows_ = vocab_rows;
  }
  decoder_ = std::make_unique<Decoder>(std::move(decoder), store_, placement_, dtype);
  if (!experts.dense()) hold_experts_in(store_, experts, kExpertWeightKey);
}

LoadedModel::LoadedModel(std::filesystem::path directory, DType dtype, const WeightFormat& experts, int64_t vocab_rows)
    : LoadedModel(HfConfig::read(directory), directory, dtype, experts, vocab_rows) {
  checkpoint_ = Checkpoint::open(directory_);
  if (added_vocab_rows_ > 0) {
    std::vector<std::string> names;
    for (const Parameter& p : store_.all()) {
      if (p.spec().kind != ParameterKind::kEmbedding && p.spec().kind != ParameterKind::kHead) continue;
      for (const FileLayout& layout : p.spec().all_layouts()) names.push_back(layout.front().name);
    }
    checkpoint_.grow(names, added_vocab_rows_);
  }
  map_ = map_of(checkpoint_);
}

namespace {

/// What is trained whole beside adapters.
std::set<ParameterKind> whole_kinds(const ParameterStore& store, const TrainableOptions& options) {
  std::set<ParameterKind> kinds;
  const bool tied = std::none_of(store.all().begin(), store.all().end(),
                                 [](const Parameter& p) { return p.spec().kind == ParameterKind::kHead; });
  if (options.train_router) kinds.insert(ParameterKind::kRouter);
  if (options.train_embedding || (options.train_head && tied)) kinds.insert(ParameterKind::kEmbedding);
  if (options.train_head && !tied) kinds.insert(ParameterKind::kHead);
  return kinds;
}

/// Adapters can hold what trainable_parameters adds to them, and a weight is trained in one way.
void check_whole(const ParameterStore& store) {
  for (const Parameter& p : store.all()) {
    if (!p.trainable() || p.spec().kind == ParameterKind::kLora) continue;
    if (!can_be_saved_whole(p.spec().kind)) {
      throw UserError(fmt::format("'{}' would be trained beside the adapters, which cannot hold it", p.name()),
                      "trainable_parameters",
                      "routers, norms, the embedding and the head can be trained whole beside adapters");
    }
    if (!p.adapters().empty()) {
      throw UserError(fmt::format("'{}' would have an adapter and be trained whole", p.name()), "lora_modules_to_save",
                      "leave it out there, or in lora_target_modules");
    }
  }
}

/// Sets the formats of frozen weights of layers.
void pack_base(ParameterStore& store, const TrainableOptions& options) {
  const auto formats = packed_weights(store, options.base_format, options.base_keep);
  for (Parameter& p : store.all()) {
    const auto format = formats.find(&p);
    if (format != formats.end()) hold_frozen_in(p, *format->second);
  }
  if (!formats.empty() || options.base_as_stored) return;
  if (std::none_of(store.all().begin(), store.all().end(), can_be_packed)) {
    throw UserError("no matrix of a layer is frozen, and frozen weights alone are packed", kBaseWeightKey,
                    "write finetuning_type: lora, which trains adapters beside them, or leave it out");
  }
  throw UserError("no frozen weight is packed: base_weight_keep has them all, or their sizes do not fit the format",
                  kBaseWeightKey, "use nf4 or int8, which take any sizes, or leave it out");
}

/// Sets the 8-bit floats of products.
void multiply_in_fp8(ParameterStore& store, const TrainableOptions& options) {
  if (options.fp8.recipe == Fp8Recipe::kOff) return;
  std::vector<Parameter*> chosen;
  for (Parameter& p : store.all()) {
    if (can_multiply_in_fp8(p)) chosen.push_back(&p);
  }
  std::set<const Parameter*> kept;
  for (const Parameter* p : store.select(options.fp8_keep, "fp8_keep")) kept.insert(p);
  if (options.fp8_keep.empty() && !chosen.empty()) kept.insert(chosen.front());
  std::erase_if(chosen, [&](const Parameter* p) { return kept.contains(p); });
  if (chosen.empty()) {
    throw UserError(
        "no matrix of a layer is multiplied in 8-bit floats: fp8_keep has them all, or their sizes are no "
        "multiples of 16",
        "fp8", "leave it out");
  }
  for (Parameter* p : chosen) p->value().multiply_in(options.fp8);
}

/// What is not dense is frozen.
void check_formats(const ParameterStore& store) {
  for (const Parameter& p : store.all()) {
    if (!p.trainable() || p.value().format().dense()) continue;
    throw UserError(fmt::format("'{}' is held in {} and would be trained", p.name(), p.value().format().name()),
                    kExpertWeightKey, "leave expert_weight_dtype out, or train adapters alone beside the experts");
  }
}

/// Experts divide evenly, and 8-bit moments keep whole blocks on each rank.
void check_spread(const ParameterStore& store, const RankShare& share) {
  if (share.expert_ranks == 1) return;
  constexpr const char* kKey = "expert_parallel_size";
  bool any = false;
  for (const Parameter& p : store.all()) {
    if (!p.spec().of_experts) continue;
    any = true;
    const int64_t experts = p.shape()[0], block = p.shape().numel() / share.expert_ranks;
    if (experts % share.expert_ranks != 0) {
      throw UserError(fmt::format("{} experts do not spread evenly over {} ranks", experts, share.expert_ranks), kKey,
                      fmt::format("choose a divisor of {}", experts));
    }
    const TrainingFormats formats = p.state().formats;
    const bool coded = size_of(formats.m) == 1 || size_of(formats.v) == 1;
    if (p.trainable() && coded && block % Bucket::kAlignment != 0) {
      throw UserError(fmt::format("a rank's experts of '{}' have {} elements, and moments of 8 bits take multiples of "
                                  "{}",
                                  p.name(), block, Bucket::kAlignment),
                      kKey, "use opt_m_dtype and opt_v_dtype: bfloat16, or fewer expert ranks");
    }
  }
  if (!any) {
    throw UserError("the model has no routed experts to spread over ranks", kKey,
                    "leave it out; zero_stage: 3 shards all weights");
  }
}

void check_expert_layers(const ParameterStore& store, const RankShare& share) {
  const auto count = static_cast<int64_t>(layers_with_experts(store).size());
  if (count == 0 && share.host_expert_layers > 0) {
    throw UserError("the model has no routed experts to compute on the CPU", "experts_device",
                    "leave it out; cpu_offload: params has the weights of layers in host memory");
  }
  const int64_t on_host = std::min(share.host_expert_layers, count);
  if (share.host_expert_layers != kAllLayers && share.host_expert_layers > count) {
    throw UserError(
        fmt::format("the CPU is to compute the experts of {} layers, and {} have any", share.host_expert_layers, count),
        "cpu_expert_layers", "lower it, or leave it out, which means all");
  }
  if (share.offload.expert_layers != kAllLayers && share.offload.expert_layers > count - on_host) {
    throw UserError(fmt::format("the experts of {} layers are to be in host memory until the device uses them, and it "
                                "computes those of {}",
                                share.offload.expert_layers, count - on_host),
                    "offload_expert_layers", "lower it, or leave it out, which means all");
  }
}

}  // namespace

namespace {

/// The weights and the parts of experts' weights that options select.
std::set<std::pair<const Parameter*, int64_t>> selected_parts(ParameterStore& store, const LoraOptions& options) {
  const AdapterTargets targets = select_targets(store, options);
  std::set<std::pair<const Parameter*, int64_t>> parts;
  for (const Parameter* p : targets.linear) parts.insert({p, 0});
  for (const Parameter* p : targets.fused_experts) {
    for (const ExpertPart& part : parts_of(*p)) parts.insert({p, part.out_begin});
  }
  for (const auto& [p, begins] : targets.expert_parts) {
    for (const int64_t begin : begins) parts.insert({p, begin});
  }
  return parts;
}

/// What is stated beside a continued adapter is what the adapter has.
void check_stated(ParameterStore& store, const StatedLora& stated, const LoraOptions& lora,
                  const std::filesystem::path& adapter) {
  std::vector<std::string> keys, differences;
  const auto differs = [&](const std::string& key, const std::string& difference) {
    keys.push_back(key);
    differences.push_back(key + difference);
  };
  const auto compare = [&](const char* key, const auto& value, const auto& own) {
    if (value && *value != own) differs(key, fmt::format(" is {}, and the adapter to continue has {}", *value, own));
  };
  compare("lora_r", stated.r, lora.r);
  compare("lora_alpha", stated.alpha, lora.alpha);
  compare("lora_dropout", stated.dropout, lora.dropout);
  const auto is_stated = [](bool value) { return value ? std::optional(true) : std::nullopt; };
  compare("use_rslora", is_stated(stated.others.use_rslora), lora.use_rslora);
  compare("use_dora", is_stated(stated.others.use_dora), lora.use_dora);
  const auto own_parts = selected_parts(store, lora);
  const auto compare_patterns = [&](const char* key, const std::vector<LoraPattern>& value, double usual,
                                    const std::vector<LoraPattern>& own, double own_usual) {
    if (value.empty()) return;
    LoraPatterns here(value, key), there(own, key);
    for (const auto& [p, begin] : own_parts) {
      const bool shared = std::find(lora.target_parameters.begin(), lora.target_parameters.end(), p->name()) !=
                          lora.target_parameters.end();
      const AdapterNames names = adapter_names(*p, is_experts(*p) && !shared ? std::optional(begin) : std::nullopt);
      const double a = here.find(names).value_or(usual), b = there.find(names).value_or(own_usual);
      if (a == b) continue;
      return differs(key, fmt::format(" gives '{}' {}, and the adapter to continue has {}", p->name(), a, b));
    }
  };
  const auto r = static_cast<double>(lora.r);
  compare_patterns("lora_rank_pattern", stated.others.rank_pattern, r, lora.rank_pattern, r);
  compare_patterns("lora_alpha_pattern", stated.others.alpha_pattern, lora.alpha, lora.alpha_pattern, lora.alpha);
  if (stated.selects()) {
    LoraOptions with = stated.others;
    if (with.target_modules.empty() && with.target_parameters.empty()) {
      with.target_modules = lora.target_modules;
      with.target_parameters = lora.target_parameters;
    }
    if (selected_parts(store, with) != own_parts) {
      differs("lora_target_modules", " and the like select other modules than the adapter to continue has");
    }
  }
  if (differences.empty()) return;
  throw UserError(fmt::format("{}", fmt::join(differences, "; ")), adapter.string(),
                  fmt::format("leave {} out, the adapter has its own; or merge the adapter and train a new one",
                              fmt::join(keys, ", ")));
}

}  // namespace

UserError rows_are_sharded(const AdapterKind& kind) {
  return UserError(
      fmt::format("{} {}, which zero_stage 3 shards", kind.name, kind.reads_whole_rows), "zero_stage",
      fmt::format("use zero_stage: 2, or leave {} out; a trained adapter can be merged first (hone merge)", kind.key));
}

UserError rows_are_in_files(const AdapterKind& kind) {
  return UserError(
      fmt::format("{} {}, which frozen_weights: file leaves in files", kind.name, kind.reads_whole_rows),
      "frozen_weights",
      fmt::format("leave one of the two out; a trained adapter can be merged first (hone merge), or leave {} "
                  "out",
                  kind.key));
}

std::optional<LoraOptions> set_trainable(ParameterStore& store, const TrainableOptions& options,
                                         std::vector<std::string>* warnings) {
  std::optional<LoraOptions> lora = options.lora;
  std::set<ParameterKind> whole = whole_kinds(store, options);
  if (!options.adapter.empty()) {
    AdapterDescription description = describe_adapter(options.adapter, store);
    if (options.stated.any()) check_stated(store, options.stated, description.lora, options.adapter);
    if (warnings) *warnings = std::move(description.warnings);
    lora = description.lora;
    whole.merge(description.whole);
  }
  if (lora) {
    const AdapterKind& kind = adapter_kind(*lora);
    if (!kind.reads_whole_rows.empty()) {
      if (options.ranks.ranks > 1 && options.ranks.stage == ZeroStage::kValues) throw rows_are_sharded(kind);
      if (options.ranks.frozen_in_files) throw rows_are_in_files(kind);
    }
    attach_lora(store, *lora);
    for (Parameter& parameter : store.all()) {
      if (whole.contains(parameter.spec().kind)) parameter.set_trainable(true);
    }
  } else {
    for (Parameter& parameter : store.all()) {
      const bool router = parameter.spec().kind == ParameterKind::kRouter;
      parameter.set_trainable(options.train_base && (options.train_router || !router));
    }
  }
  for (Parameter* parameter : store.select(options.freeze, "freeze_parameters")) parameter->set_trainable(false);
  for (Parameter* parameter : store.select(options.unfreeze, "trainable_parameters")) parameter->set_trainable(true);
  if (lora) check_whole(store);
  check_formats(store);
  if (options.base_format) pack_base(store, options);
  multiply_in_fp8(store, options);
  for (Parameter& parameter : store.all()) {
    parameter.set_formats(options.state_of ? options.state_of(parameter, options.formats) : options.formats);
  }
  check_spread(store, options.ranks);
  check_expert_layers(store, options.ranks);
  store.share_layer_gradients(options.optimizer_in_backward);
  store.share_among(options.ranks);
  return lora;
}

namespace {

UserError holds_whole(const std::filesystem::path& adapter) {
  return UserError(
      "the adapter holds weights of the model whole, such as routers or the embedding, so no other adapter "
      "can share the base with it",
      adapter.string(), "serve it alone, or merge it (hone merge) and serve the merged model");
}

}  // namespace

const PackedFormat* LoadedModel::format_as_stored(const Parameter& parameter) const {
  const auto layout = map_.layouts.find(&parameter);
  if (layout != map_.layouts.end() && !layout->second.empty()) {
    std::vector<std::string> missing;
    const auto stored = StoredTensor::find(checkpoint_, layout->second.front(), missing);
    return stored ? stored->packed_format() : nullptr;
  }
  const std::optional<Quantization> quantization = read_quantization(config_.json(), config_.file());
  return quantization ? quantization->packed_format(parameter.name(), is_experts(parameter)) : nullptr;
}

std::vector<std::string> LoadedModel::differences() const {
  std::vector<std::string> sentences;
  bool promised = false;
  if (!checkpoint_.tensors().empty()) {
    promised = promises_layers(config_.json());
    for (const LayerPromise& promise : broken_promises(config_.json(), checkpoint_)) {
      sentences.push_back(
          fmt::format("{} promises {} layers that predict further tokens ({}), the files have {}: a full model that is "
                      "saved says {}",
                      config_.file(), promise.promised, promise.field, promise.found, promise.found));
    }
  }
  std::set<int64_t> later;
  for (const std::string& name : map_.carried) {
    const int64_t layer = decoder_->config().carried.later_layer(name);
    if (layer >= 0) later.insert(layer);
  }
  if (!later.empty() && !promised) {
    sentences.push_back(
        fmt::format("the files have layers {} beyond num_hidden_layers ({}): they are kept as they are, and neither "
                    "computed nor trained",
                    fmt::join(later, ", "), decoder_->config().layers.size()));
  }
  return sentences;
}

bool holds_whole_weights(const ParameterStore& store) {
  return std::any_of(store.all().begin(), store.all().end(),
                     [](const Parameter& p) { return p.trainable() && p.spec().kind != ParameterKind::kLora; });
}

void LoadedModel::attach_further(const std::filesystem::path& adapter) {
  AdapterDescription description = describe_adapter(adapter, store_);
  if (!description.whole.empty()) throw holds_whole(adapter);
  description.lora.mark = fmt::format(".{}", forms_.count() + 1);
  attach_lora(store_, description.lora);
  forms_.take(store_);
  adapter_warnings_.insert(adapter_warnings_.end(), description.warnings.begin(), description.warnings.end());
}

void LoadedModel::set_trainable(const TrainableOptions& options) {
  TrainableOptions with_formats = options;
  if (options.base_as_stored) {
    with_formats.base_format = [this](const Parameter& p) { return format_as_stored(p); };
  }
  std::vector<std::string> warnings;
  for (const std::filesystem::path& adapter : options.further_adapters) attach_further(adapter);
  lora_ = hone::set_trainable(store_, with_formats, &warnings);
  adapter_warnings_.insert(adapter_warnings_.begin(), warnings.begin(), warnings.end());
  if (options.adapter.empty()) return;
  adapters_ = {options.adapter};
  adapters_.insert(adapters_.end(), options.further_adapters.begin(), options.further_adapters.end());
  if (adapters_.size() > 1 && holds_whole_weights(store_)) throw holds_whole(options.adapter);
  forms_.take_first(store_);
  forms_.use(store_, 0);
  if (map_.layouts.empty()) return;
  for (const std::filesystem::path& adapter : adapters_) check_copies(adapter, store_, checkpoint_, map_);
}

void LoadedModel::load(Device device, ThreadPool& pool, uint64_t seed, bool inference,
                       const std::function<void(int64_t)>& progress) {
  store_.allocate(device, inference);
  if (store_.keeps_values_in_files() && !file_values_) {
    file_values_ = std::make_unique<FileValues>(checkpoint_, map_);
    store_.read_values_with(file_values_.get());
  }
  load_parameters(checkpoint_, map_, store_, pool, progress);
  const auto initialise = [&] {
    Stream stream(device, pool);
    Arena scratch(device, "initialise");
    scratch.reserve(0);
    initialise_lora(Context(stream, scratch), store_, seed, lora_->init);
    stream.synchronize();
  };
  if (lora_ && adapters_.empty()) initialise();
  for (size_t i = adapters_.size(); i-- > 0;) {  // the first one stays in use
    forms_.use(store_, i);
    initialise();
    load_adapter(adapters_[i], store_);
  }
}

}  // namespace hone
