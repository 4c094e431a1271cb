#include "train/router_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace hone {

namespace {

std::span<const float> row(const RoutingLoad& load, int64_t layer) {
  return {load.counts.data() + layer * load.experts, static_cast<size_t>(load.experts)};
}

double sum_of(std::span<const float> counts) { return std::accumulate(counts.begin(), counts.end(), 0.0); }

/// a · into + load.
void accumulate(RoutingLoad& into, const RoutingLoad& load, float a) {
  if (into.layers == 0) {
    into = load;
    return;
  }
  for (size_t i = 0; i < load.counts.size(); ++i) into.counts[i] = a * into.counts[i] + load.counts[i];
  for (size_t i = 0; i < load.entropy.size(); ++i) into.entropy[i] = a * into.entropy[i] + load.entropy[i];
}

/// With the entropies as means over `steps`.
std::vector<LayerLoad> loads_of(const RoutingLoad& sums, double steps) {
  std::vector<LayerLoad> loads = layer_loads(sums);
  for (LayerLoad& load : loads) load.entropy /= steps;
  return loads;
}

/// "3, 7 and 12".
std::string list_of(const std::vector<int64_t>& layers) {
  constexpr size_t kShown = 8;
  std::string text;
  for (size_t i = 0; i < std::min(layers.size(), kShown); ++i) {
    const bool last = i + 1 == layers.size();
    text += (i == 0 ? "" : last ? " and " : ", ") + std::to_string(layers[i]);
  }
  if (layers.size() > kShown) text += fmt::format(" and {} more", layers.size() - kShown);
  return text;
}

Json load_json(const RoutingLoad& load) { return {{"counts", load.counts}, {"entropy", load.entropy}}; }

bool read_load(const Json& json, int64_t layers, int64_t experts, RoutingLoad& load) {
  load = {layers, experts, json.at("counts").get<std::vector<float>>(), json.at("entropy").get<std::vector<float>>()};
  return load.counts.size() == static_cast<size_t>(layers * experts) &&
         load.entropy.size() == static_cast<size_t>(layers);
}

}  // namespace

std::vector<LayerLoad> layer_loads(const RoutingLoad& load) {
  std::vector<LayerLoad> loads;
  for (int64_t layer = 0; layer < load.layers; ++layer) {
    const std::span<const float> counts = row(load, layer);
    const double total = std::max(sum_of(counts), 1e-30);
    LayerLoad result{.entropy = static_cast<double>(load.entropy[static_cast<size_t>(layer)])};
    double entropy = 0;
    for (const float count : counts) {
      const double share = static_cast<double>(count) / total;
      result.max_over_mean = std::max(result.max_over_mean, share * static_cast<double>(load.experts));
      result.dead += count == 0.0f;
      if (share > 0) entropy -= share * std::log(share);
    }
    result.effective_experts = std::exp(entropy);
    loads.push_back(result);
  }
  return loads;
}

bool RouterWatch::has_baseline() const {
  if (baseline_.layers == 0) return false;
  return sum_of(row(baseline_, 0)) >= kLeastTokens * static_cast<double>(baseline_.experts);
}

int64_t RouterWatch::newly_dead(int64_t layer) const {
  constexpr double kLeastExpected = 20;  // of a Poisson number, chance leaves a twentieth or less once in 10^7
  const std::span<const float> first = row(baseline_, layer), now = row(recent_, layer);
  const double before = sum_of(first), since = sum_of(now);
  int64_t dead = 0;
  for (size_t e = 0; e < first.size(); ++e) {
    const double expected = static_cast<double>(first[e]) / before * since;
    dead += expected >= kLeastExpected && static_cast<double>(now[e]) <= 0.05 * expected;
  }
  return dead;
}

std::vector<int64_t> RouterWatch::layers_with(Alarm alarm, const std::vector<LayerLoad>& first,
                                              const std::vector<LayerLoad>& now) const {
  std::vector<int64_t> layers;
  const auto least = static_cast<double>(options_.experts_per_token);
  for (size_t l = 0; l < now.size(); ++l) {
    const LayerLoad &a = first[l], &b = now[l];
    const double spare = a.effective_experts - least;
    const bool raised = alarm == kDead        ? newly_dead(static_cast<int64_t>(l)) > 0
                        : alarm == kImbalance ? b.max_over_mean >= 2 * a.max_over_mean
                        : alarm == kCollapse  ? spare > 0 && b.effective_experts - least <= 0.25 * spare
                                              : a.entropy > 0 && b.entropy <= 0.5 * a.entropy;
    if (raised) layers.push_back(static_cast<int64_t>(l));
  }
  return layers;
}

std::string RouterWatch::advice() const {
  if (!options_.trains_router)
    return "the routers are frozen, so their inputs moved: lower learning_rate, or train for fewer steps";
  const double coefficient = options_.aux_loss_coef;
  const std::string balance =
      coefficient <= 0 ? "set router_aux_loss_coef: 0.001"
                       : fmt::format("raise router_aux_loss_coef from {:g} to {:g}", coefficient, 10 * coefficient);
  return balance + ", lower learning_rate, or set freeze_router: true";
}

std::string RouterWatch::describe(Alarm alarm, const std::vector<int64_t>& layers, const std::vector<LayerLoad>& first,
                                  const std::vector<LayerLoad>& now) const {
  const auto worst = [&](auto ratio) {
    return static_cast<size_t>(*std::max_element(layers.begin(), layers.end(), [&](int64_t a, int64_t b) {
      return ratio(static_cast<size_t>(a)) < ratio(static_cast<size_t>(b));
    }));
  };
  const std::string where = fmt::format("MoE layer{} {}", layers.size() == 1 ? "" : "s", list_of(layers));
  if (alarm == kDead) {
    int64_t dead = 0;
    for (const int64_t layer : layers) dead += newly_dead(layer);
    return fmt::format("routers: {} expert{} died in {}: in use at the start, hardly chosen now", dead,
                       dead == 1 ? "" : "s", where);
  }
  if (alarm == kImbalance) {
    const size_t l = worst([&](size_t i) { return now[i].max_over_mean / first[i].max_over_mean; });
    return fmt::format(
        "routers: imbalance in {}: the busiest expert of layer {} has {:.1f} times the mean, {:.1f} at the start",
        where, l, now[l].max_over_mean, first[l].max_over_mean);
  }
  if (alarm == kCollapse) {
    const size_t l = worst([&](size_t i) { return first[i].effective_experts / now[i].effective_experts; });
    return fmt::format("routers: expert collapse in {}: layer {} uses as if {:.1f} of {} experts, {:.1f} at the start",
                       where, l, now[l].effective_experts, recent_.experts, first[l].effective_experts);
  }
  const size_t l = worst([&](size_t i) { return first[i].entropy / std::max(now[i].entropy, 1e-9); });
  return fmt::format("routers: the entropy dropped in {}: {:.2f} nats in layer {}, {:.2f} at the start", where,
                     now[l].entropy, l, first[l].entropy);
}

std::vector<std::string> RouterWatch::add(const RoutingLoad& load) {
  std::vector<std::string> alarms;
  if (load.layers == 0) return alarms;
  ++steps_;
  const bool compares = has_baseline();
  if (!compares) {
    accumulate(baseline_, load, 1.0f);
    ++baseline_steps_;
  }
  constexpr double kept = 1 - 1 / kWindow;
  accumulate(recent_, load, static_cast<float>(kept));
  recent_steps_ = kept * recent_steps_ + 1;
  if (!compares) return alarms;
  const std::vector<LayerLoad> first = loads_of(baseline_, baseline_steps_), now = loads_of(recent_, recent_steps_);
  for (const Alarm alarm : {kCollapse, kDead, kImbalance, kEntropy}) {
    if (steps_ < quiet_until_[alarm]) continue;
    const std::vector<int64_t> layers = layers_with(alarm, first, now);
    if (layers.empty()) continue;
    quiet_until_[alarm] = steps_ + kQuietSteps;
    alarms.push_back(describe(alarm, layers, first, now) + ". " + advice());
  }
  return alarms;
}

HeatMap RouterWatch::heat_map() const {
  constexpr int64_t kMostRows = 24;
  const int64_t group = (recent_.layers + kMostRows - 1) / kMostRows;
  double top = 1;
  for (const LayerLoad& load : layer_loads(recent_)) top = std::max(top, load.max_over_mean);
  HeatMap map{.title = "expert utilization: tokens of an expert over the mean of its layer, in the last steps",
              .row_labels = {},
              .columns = static_cast<int>(recent_.experts),
              .values = {},
              .column_title = "expert",
              .low_label = "0",
              .high_label = fmt::format("{:.1f} times the mean", top)};
  for (int64_t begin = 0; begin < recent_.layers; begin += group) {
    const int64_t end = std::min(begin + group, recent_.layers);
    map.row_labels.push_back(group == 1 ? fmt::format("layer {}", begin) : fmt::format("layers {}-{}", begin, end - 1));
    for (int64_t e = 0; e < recent_.experts; ++e) {
      double largest = 0;
      for (int64_t layer = begin; layer < end; ++layer) {
        const std::span<const float> counts = row(recent_, layer);
        const double mean = std::max(sum_of(counts), 1e-30) / static_cast<double>(recent_.experts);
        largest = std::max(largest, static_cast<double>(counts[static_cast<size_t>(e)]) / mean);
      }
      map.values.push_back(largest / top);
    }
  }
  return map;
}

Json RouterWatch::state() const {
  if (empty()) return nullptr;
  return {{"baseline", load_json(baseline_)},
          {"baseline_steps", baseline_steps_},
          {"recent", load_json(recent_)},
          {"recent_steps", recent_steps_},
          {"steps", steps_},
          {"quiet_until", quiet_until_}};
}

void RouterWatch::restore(const Json& state, int64_t layers, int64_t experts) {
  if (!state.is_object()) return;
  RouterWatch read(options_);
  try {
    const bool fits = read_load(state.at("baseline"), layers, experts, read.baseline_) &&
                      read_load(state.at("recent"), layers, experts, read.recent_);
    if (!fits) return;
    state.at("baseline_steps").get_to(read.baseline_steps_);
    state.at("recent_steps").get_to(read.recent_steps_);
    state.at("steps").get_to(read.steps_);
    state.at("quiet_until").get_to(read.quiet_until_);
  } catch (const nlohmann::json::exception&) {
    return;
  }
  *this = std::move(read);
}

}  // namespace hone
