#include "train/plan/base_cost.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "config/run_options.h"
#include "core/base/contains.h"
#include "params/frozen_weights.h"
#include "report/humanise.h"
#include "session/device_facts.h"

namespace hone {

namespace {

/// A run reads files up to this size once more for each of its two models: seconds beside a page cache.
constexpr int64_t kMostBytesOfRun = 20'000'000'000;
/// Below this share of the dense loss, rounding of sums may be all of a difference.
constexpr double kSame = 1e-6;
/// Groups that win back less of the cost are not worth a line.
constexpr double kLeastGain = 0.1;
constexpr size_t kMostGroups = 4;

std::string signed_percent(double share) {
  return std::isfinite(share) ? fmt::format("{:+.1f} %", 100 * share) : short_number(share);
}

/// Frozen weights as a model holds them.
struct HeldBase {
  std::map<std::string, const PackedFormat*> packed;  ///< by base_weight_dtype; the names of parameters
  const WeightFormat* experts = &dense_format();      ///< by expert_weight_dtype
};

bool packs_experts(const RunConfig& config) { return !expert_format_of(config).dense(); }

HeldBase held_by(const DescribedRun& run) {
  HeldBase held{.packed = {}, .experts = &expert_format_of(run.config)};
  for (const Parameter& p : run.model->store().all()) {
    if (packs_experts(run.config) && is_experts(p)) continue;
    if (const auto* format = dynamic_cast<const PackedFormat*>(&p.value().format()))
      held.packed.emplace(p.name(), format);
  }
  return held;
}

/// The weights of the files, in memory as precise as they are there: with base_weight_dtype auto that is how the run
/// holds them.
HeldBase dense_base(const HeldBase& run, const RunConfig& config) {
  return config.model.base_weight_dtype.as_stored() ? HeldBase{.packed = run.packed} : HeldBase{};
}

std::string formats_text(const RunConfig& config) {
  const PackedFormat* const base = config.model.base_weight_dtype.packed();
  const std::string name(base == nullptr ? "" : base->name());
  if (!packs_experts(config)) return name;
  return fmt::format("{}{}experts {}", name, name.empty() ? "" : ", ", config.model.expert_weight_dtype.name());
}

/// What is measured: the loss, and the bytes of weights.
struct BaseLoss {
  double loss = 0;
  int64_t bytes = 0;
};

class BaseMeasurement {
 public:
  explicit BaseMeasurement(const PlannedRun& planned)
      : run_(planned.described),
        group_(planned.group),
        batch_({run_.loader->step(0).micro_batches.front()}),
        config_(run_.config) {}

  /// None if it does not fit in memory, even if its layers are in host memory and come one at a time.
  std::optional<BaseLoss> measure(const HeldBase& held) {
    if (std::optional<BaseLoss> loss = measure(held, run_.config)) return loss;
    const bool streams = contains(run_.config.machine.cpu_offload, OffloadPart::kParams);
    if (streams || group_.context().device().kind == DeviceKind::kCpu) return std::nullopt;
    RunConfig streamed = run_.config;
    streamed.machine.cpu_offload.push_back(OffloadPart::kParams);
    return measure(held, streamed);
  }

 private:
  /// The base alone, or with an adapter that the run continues: a new one changes nothing yet.
  TrainableOptions options_for(const HeldBase& held, const RunConfig& config) const {
    const RunContext& context = group_.context();
    TrainableOptions options = trainable_options(config, context.device(), context.ranks.rank, RunUse::kEvaluation);
    if (options.adapter.empty()) {
      options.train_base = options.train_router = options.train_embedding = options.train_head = false;
      options.lora.reset();
      options.freeze.clear();
      options.unfreeze.clear();
    }
    options.optimizer_in_backward = options.base_as_stored = false;
    options.base_keep.clear();
    options.base_format = {};
    if (!held.packed.empty()) {
      options.base_format = [packed = held.packed](const Parameter& p) {
        const auto found = packed.find(p.name());
        return found == packed.end() ? nullptr : found->second;
      };
    }
    return options;
  }

  std::optional<BaseLoss> measure(const HeldBase& held, const RunConfig& config) {
    RunContext& context = group_.context();
    const MemoryLimit limit = group_.least_memory_limit();
    auto loaded = std::make_unique<LoadedModel>(run_.model->directory(), config.model.dtype, *held.experts,
                                                config.model.vocab_rows);
    loaded->set_trainable(options_for(held, config));
    const DescribedModel described = describe_model(config, std::move(loaded));
    LoadedModel& model = *described.model;
    model.store().allocate_dry(context.device());
    const BatchCapacity capacity = run_.loader->capacity();
    EngineOptions options = engine_options(described, capacity, context.device());
    options.training = false;
    options.ranks = group_.mesh();
    model.decoder().prepare(context.stream, capacity.max_seqlen);
    Engine engine(model.decoder(), model.store(), context.stream, options);
    if (!limit.fits(engine.plan())) return std::nullopt;
    int64_t total = 0;
    for (const auto& [name, tensor] : model.checkpoint().tensors()) total += static_cast<int64_t>(tensor.entry->bytes);
    Console& console = context.logger.console();
    model.load(context.device(), context.pool, static_cast<uint64_t>(config.machine.seed), true, [&](int64_t bytes) {
      console.set_progress({.label = "first batch: load weights", .done = bytes, .total = total});
    });
    console.clear_progress();
    engine.reserve();
    const double loss = engine.evaluate(batch_).loss;
    return BaseLoss{loss, model.store().bytes(false).weights};
  }

  const DescribedRun& run_;
  RankGroup& group_;
  const std::vector<MicroBatch> batch_;
  const RunConfig& config_;
};

/// The module of a layer that has a weight: "mlp.experts" of model.layers.3.mlp.experts.gate_up_proj, and of a weight
/// that the layer itself has, its own name; "" outside the layers.
std::string place_in_layer(const Parameter& p) {
  const std::string layer = fmt::format("layers.{}.", p.spec().layer);
  const size_t begin = p.name().find(layer);
  if (p.spec().layer < 0 || begin == std::string::npos) return "";
  std::string_view name = std::string_view(p.name()).substr(begin + layer.size());
  if (constexpr std::string_view kWeight = ".weight"; name.ends_with(kWeight)) name.remove_suffix(kWeight.size());
  return std::string(name.substr(0, name.rfind('.')));
}

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) result += c == '.' ? "\\." : std::string(1, c);
  return result;
}

/// `base_weight_keep` with the configuration's patterns and one more.
std::string keep_setting(const RunConfig& config, const std::string& pattern) {
  std::vector<std::string> patterns = config.model.base_weight_keep;
  patterns.push_back(pattern);
  std::string list;
  for (const std::string& one : patterns) {
    std::string quoted;
    for (const char c : one) quoted += c == '\'' ? "''" : std::string(1, c);
    list += (list.empty() ? "'" : ", '") + quoted + "'";
  }
  return "base_weight_keep: [" + list + "]";
}

/// The run's base without what a group leaves dense.
HeldBase without(HeldBase held, const KeptGroup& group, const DescribedRun& run) {
  for (const std::string& name : group.weights) {
    if (held.packed.erase(name) > 0) continue;
    const Parameter* p = run.model->store().find(name);
    if (p != nullptr && is_experts(*p)) held.experts = &dense_format();
  }
  return held;
}

/// Keeps memory that is given back again out of what the run reports as its most.
class ForgottenPeak {
 public:
  explicit ForgottenPeak(Device device) : device_(device) {}
  ForgottenPeak(const ForgottenPeak&) = delete;
  ForgottenPeak& operator=(const ForgottenPeak&) = delete;
  ~ForgottenPeak() { forget_peak_memory(device_); }

 private:
  Device device_;
};

void measure_groups(const BaseCost& cost, const HeldBase& held, int64_t packed_bytes, BaseMeasurement& measurement,
                    const DescribedRun& run, Logger& logger) {
  std::vector<KeptGroup> measured;
  for (KeptGroup& group : groups_of_base(run)) {
    const std::optional<BaseLoss> kept = measurement.measure(without(held, group, run));
    if (!kept) continue;
    group.loss = kept->loss;
    group.bytes = kept->bytes - packed_bytes;
    measured.push_back(std::move(group));
  }
  for (const std::string& line : kept_group_texts(cost, std::move(measured))) logger.info("{}", line);
}

}  // namespace

std::vector<KeptGroup> groups_of_base(const DescribedRun& run) {
  const RunConfig& config = run.config;
  const HeldBase held = held_by(run);
  std::map<std::string, KeptGroup> places;
  std::map<int, std::vector<std::string>> layers;
  std::set<std::string> whole;  // places that are modules with weights, not weights of the layer itself
  size_t all = held.packed.size();
  KeptGroup experts{.setting = "expert_weight_dtype: auto", .weights = {}};
  for (const Parameter& p : std::as_const(run.model->store()).all()) {
    if (packs_experts(config) && is_experts(p)) {
      experts.weights.push_back(p.name());
      ++all;
      continue;
    }
    if (!held.packed.contains(p.name())) continue;
    const std::string place = place_in_layer(p);
    if (place.empty()) continue;
    places[place].weights.push_back(p.name());
    layers[p.spec().layer].push_back(p.name());
    if (p.name().find("." + place + ".") != std::string::npos) whole.insert(place);
  }
  std::vector<KeptGroup> groups;
  const auto add = [&](KeptGroup group) {
    const bool there = std::any_of(groups.begin(), groups.end(),
                                   [&](const KeptGroup& other) { return other.weights == group.weights; });
    if (!there && !group.weights.empty() && group.weights.size() < all) groups.push_back(std::move(group));
  };
  if (!config.model.base_weight_dtype.as_stored()) {
    for (auto& [place, group] : places) {
      // The weights of a module, not those of modules in it: "mlp" is not "mlp.experts".
      const std::string pattern = whole.contains(place) ? fmt::format("re:\\.{}\\.[^.]+$", escaped(place))
                                                        : fmt::format("re:\\.{}$", escaped(place));
      group.setting = keep_setting(config, pattern);
      add(std::move(group));
    }
    if (layers.size() > 1) {
      for (const auto& [layer, names] : {*layers.begin(), *layers.rbegin()}) {
        add({.setting = keep_setting(config, fmt::format("re:layers\\.{}\\.", layer)), .weights = names});
      }
    }
  }
  // Without base_weight_dtype's own, they would be packed by it.
  if (config.model.base_weight_dtype.packed() == nullptr) add(std::move(experts));
  return groups;
}

std::string base_cost_text(const BaseCost& cost, const RunConfig& config) {
  const std::string beginning =
      fmt::format("first batch: loss {} on the packed base ({})", fixed_number(cost.packed, 4), cost.formats);
  if (std::abs(cost.share()) < kSame) return beginning + ", the same on the dense one: packing it loses nothing";
  std::string text =
      fmt::format("{}, {} on the dense one: {}", beginning, fixed_number(cost.dense, 4), signed_percent(cost.share()));
  if (!cost.is_dear()) return text;
  const RunConfig::Model& model = config.model;
  const bool base = model.base_weight_dtype.packed() != nullptr;
  const WeightFormat* const format = base ? model.base_weight_dtype.packed() : &model.expert_weight_dtype.format();
  const char* const key = base ? "base_weight_dtype" : "expert_weight_dtype";
  const bool fp8 = format == &fp8_format();
  const bool eight = fp8 || format->name() == packed_int8_format().name();
  const bool four = !eight && format != &nf4_format() && format != &nf4_float_scales_format();
  std::vector<std::string> ways;
  if (four) {
    ways.push_back(
        fmt::format("{}: nf4 mostly loses less in as little memory, int8 or fp8 little in twice as much", key));
  } else if (!eight) {
    ways.push_back(fmt::format("{}: int8 or fp8 loses little in twice the memory", key));
  }
  if (fp8) ways.push_back(fmt::format("{}: int8 loses less in as much memory", key));
  if (base) ways.push_back("base_weight_keep leaves the weights that matter most as they are");
  if (!base) ways.push_back("expert_weight_dtype: auto leaves the experts as they are");
  text += fmt::format(", more than {:.0f} %: ", 100 * kDearBase);
  for (size_t i = 0; i < ways.size(); ++i) text += (i == 0 ? "" : "; ") + ways[i];
  return text;
}

std::vector<std::string> kept_group_texts(const BaseCost& cost, std::vector<KeptGroup> groups) {
  if (groups.empty()) return {};
  const double least = kLeastGain * (cost.packed - cost.dense);
  std::erase_if(groups, [&](const KeptGroup& group) { return !(cost.packed - group.loss >= least); });
  std::stable_sort(groups.begin(), groups.end(),
                   [](const KeptGroup& a, const KeptGroup& b) { return a.loss < b.loss; });
  groups.resize(std::min(groups.size(), kMostGroups));
  if (groups.empty()) return {"first batch: no group of weights alone wins back a tenth of that"};
  std::vector<std::string> lines;
  for (const KeptGroup& group : groups) {
    lines.push_back(fmt::format("first batch: with {}   loss {} instead of {}, {} more", group.setting,
                                signed_percent(group.loss / cost.dense - 1), signed_percent(cost.share()),
                                human_bytes(group.bytes)));
  }
  return lines;
}

std::optional<BaseCost> measure_base_cost(const PlannedRun& planned, bool tries) {
  const DescribedRun& run = planned.described;
  Logger& logger = planned.group.context().logger;
  const std::string formats = formats_text(run.config);
  if (formats.empty()) return std::nullopt;
  int64_t bytes = 0;
  for (const auto& [name, tensor] : run.model->checkpoint().tensors()) {
    bytes += static_cast<int64_t>(tensor.entry->bytes);
  }
  if (!tries && bytes > kMostBytesOfRun) {
    logger.info("first batch: `hone train --dry-run` measures what the packed base ({}) costs", formats);
    return std::nullopt;
  }
  const ForgottenPeak peak(planned.group.context().device());
  BaseMeasurement measurement(planned);
  const HeldBase held = held_by(run);
  const std::optional<BaseLoss> dense = measurement.measure(dense_base(held, run.config));
  if (!dense) {
    logger.info("first batch: not compared with the dense base, which does not fit in memory");
    return std::nullopt;
  }
  const std::optional<BaseLoss> packed = measurement.measure(held);
  if (!packed || !std::isfinite(dense->loss)) return std::nullopt;
  const BaseCost cost{.packed = packed->loss, .dense = dense->loss, .formats = formats};
  logger.log(cost.is_dear() ? LogLevel::kWarning : LogLevel::kInfo, base_cost_text(cost, run.config));
  if (tries && cost.is_dear()) measure_groups(cost, held, packed->bytes, measurement, run, logger);
  return cost;
}

}  // namespace hone
