#include "train/report/router_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "core/base/printable.h"
#include "core/text/json.h"
#include "core/text/untrusted_json.h"

namespace hone {

namespace {

std::span<const float> row(const RoutingLoad& load, int64_t layer) {
  return {load.counts.data() + layer * load.experts, static_cast<size_t>(load.experts)};
}

double sum_of(std::span<const float> counts) { return std::accumulate(counts.begin(), counts.end(), 0.0); }

/// The tokens of a layer, never 0.
double token_total(std::span<const float> counts) { return std::max(sum_of(counts), 1e-30); }

/// An expert's share of its layer's tokens, in millionths.
double rounded_share(float count, double total) { return std::round(1e6 * static_cast<double>(count) / total) / 1e6; }

/// into = a * into + load.
void accumulate(RoutingLoad& into, const RoutingLoad& load, float a) {
  if (into.layers == 0) {
    into = load;
    return;
  }
  for (size_t i = 0; i < load.counts.size(); ++i) into.counts[i] = a * into.counts[i] + load.counts[i];
  for (size_t i = 0; i < load.entropy.size(); ++i) into.entropy[i] = a * into.entropy[i] + load.entropy[i];
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

/// exp(entropy): the number of evenly used experts with the same entropy.
double effective_experts(std::span<const float> shares) {
  double entropy = 0;
  for (const float share : shares) entropy -= share > 0 ? share * std::log(static_cast<double>(share)) : 0;
  return std::exp(entropy);
}

double largest(std::span<const float> shares) { return *std::max_element(shares.begin(), shares.end()); }

/// One layer's part of a layers × experts array.
std::span<const float> layer_of(const std::vector<float>& all, size_t layer, size_t experts) {
  return std::span(all).subspan(layer * experts, experts);
}

bool has_size(const std::vector<float>& values, int64_t size) { return values.size() == static_cast<size_t>(size); }

}  // namespace

double mean_max_over_mean(const std::vector<LayerLoad>& loads) {
  double sum = 0;
  for (const LayerLoad& load : loads) sum += load.max_over_mean;
  return sum / static_cast<double>(loads.size());
}

std::vector<LayerLoad> layer_loads(const RoutingLoad& load) {
  std::vector<LayerLoad> loads;
  for (int64_t layer = 0; layer < load.layers; ++layer) {
    const std::span<const float> counts = row(load, layer);
    const double total = token_total(counts);
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

int64_t RouterWatch::newly_dead(size_t layer, const Means& now) const {
  constexpr double kLeastExpected = 20;  // a Poisson count of this mean falls to a twentieth with probability 1e-7
  constexpr double kLeastShare = 0.25;   // a share of the mean; the load of rarer experts fluctuates
  const auto experts = static_cast<size_t>(recent_.experts);
  const std::span<const float> shares = layer_of(now.shares, layer, experts);
  const double tokens = sum_of(layer_of(block_.counts, layer, experts));
  int64_t dead = 0;
  for (size_t e = 0; e < experts; ++e) {
    const double before = references_[layer].shares[e];
    const bool in_use = before * static_cast<double>(experts) >= kLeastShare && before * tokens >= kLeastExpected;
    dead += in_use && shares[e] <= 0.05 * before;
  }
  return dead;
}

bool RouterWatch::raised(Alarm alarm, size_t layer, const Means& now) const {
  const std::span<const float> shares = layer_of(now.shares, layer, static_cast<size_t>(recent_.experts));
  const auto least = static_cast<double>(options_.experts_per_token);
  const double effective = effective_experts(shares);
  const Reference& reference = references_[layer];
  const bool settled = reference.calm >= kCalmBlocks;
  if (alarm == kCollapse) {
    if (effective <= 1.02 * least && static_cast<double>(recent_.experts) > 1.02 * least) return true;
    const double spare = settled ? effective_experts(reference.shares) - least : 0;
    return spare > 0 && effective - least <= 0.25 * spare;
  }
  if (alarm == kEntropy && now.entropy[layer] <= kSaturated * first_entropy_[layer]) return true;
  if (!settled) return false;
  if (alarm == kDead) return newly_dead(layer, now) > 0;
  if (alarm == kImbalance) return largest(shares) >= 2 * largest(reference.shares);
  return reference.entropy > 0 && now.entropy[layer] <= 0.5 * reference.entropy;
}

/// Whether the variation of steps explains how much the last blocks differ.
bool RouterWatch::is_calm(size_t layer) const {
  if (blocks_.size() < kCompared) return false;
  const double before = blocks_[0].loss + blocks_[1].loss, after = blocks_[2].loss + blocks_[3].loss;
  if (after < kFalling * before) return false;
  const auto experts = static_cast<size_t>(recent_.experts);
  std::vector<double> mean(experts);
  double noise = 0, entropy = 0;
  for (const Means& block : blocks_) {
    const std::span<const float> shares = layer_of(block.shares, layer, experts);
    for (size_t e = 0; e < experts; ++e) mean[e] += shares[e] / static_cast<double>(kCompared);
    noise += static_cast<double>(block.noise[layer]) / static_cast<double>(kCompared);
    entropy += static_cast<double>(block.entropy[layer]) / static_cast<double>(kCompared);
  }
  return std::all_of(blocks_.begin(), blocks_.end(), [&](const Means& block) {
    const std::span<const float> shares = layer_of(block.shares, layer, experts);
    double distance = 0;
    for (size_t e = 0; e < experts; ++e) distance += 0.5 * std::abs(shares[e] - mean[e]);
    return distance <= kNoise * noise + kSlack && std::abs(block.entropy[layer] - entropy) <= kEntropyDrift * entropy;
  });
}

/// Sets the reference of a calm layer to the mean of the last blocks.
void RouterWatch::follow(size_t layer) {
  Reference& reference = references_[layer];
  const bool settled = reference.calm >= kCalmBlocks;
  if (!is_calm(layer)) {
    if (!settled) reference.calm = 0;
    return;
  }
  if (!settled && ++reference.calm < kCalmBlocks) return;
  const auto experts = static_cast<size_t>(recent_.experts);
  reference.shares.assign(experts, 0);
  reference.entropy = 0;
  for (const Means& block : blocks_) {
    const std::span<const float> shares = layer_of(block.shares, layer, experts);
    for (size_t e = 0; e < experts; ++e) reference.shares[e] += shares[e] / static_cast<float>(kCompared);
    reference.entropy += block.entropy[layer] / static_cast<float>(kCompared);
  }
}

Json RouterWatch::shares() const {
  Json layers = Json::array();
  for (int64_t layer = 0; layer < recent_.layers; ++layer) {
    const std::span<const float> counts = row(recent_, layer);
    const double total = token_total(counts);
    Json shares = Json::array();
    for (const float count : counts) shares.push_back(rounded_share(count, total));
    layers.push_back(std::move(shares));
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

std::string RouterWatch::describe(Alarm alarm, const std::vector<int64_t>& layers, const Means& now) const {
  const auto experts = static_cast<size_t>(recent_.experts);
  const auto shares_of = [&](size_t layer) { return layer_of(now.shares, layer, experts); };
  const auto worst = [&](auto badness) {
    return static_cast<size_t>(*std::max_element(layers.begin(), layers.end(), [&](int64_t a, int64_t b) {
      return badness(static_cast<size_t>(a)) < badness(static_cast<size_t>(b));
    }));
  };
  const std::string where = fmt::format("MoE layer{} {}", layers.size() == 1 ? "" : "s", list_of(layers));
  if (alarm == kDead) {
    int64_t dead = 0;
    for (const int64_t layer : layers) dead += newly_dead(static_cast<size_t>(layer), now);
    return fmt::format("routers: {} expert{} died in {}: in use before, hardly chosen now", dead, dead == 1 ? "" : "s",
                       where);
  }
  if (alarm == kCollapse) {
    const size_t l = worst([&](size_t i) { return -effective_experts(shares_of(i)); });
    const bool settled = references_[l].calm >= kCalmBlocks;
    const std::string before =
        settled ? fmt::format(", {:.1f} before", effective_experts(references_[l].shares)) : std::string();
    return fmt::format("routers: expert collapse in {}: layer {} uses as if {:.1f} of {} experts{}", where, l,
                       effective_experts(shares_of(l)), recent_.experts, before);
  }
  if (alarm == kImbalance) {
    const auto times = [&](std::span<const float> shares) { return largest(shares) * static_cast<double>(experts); };
    const size_t l = worst([&](size_t i) { return largest(shares_of(i)) / largest(references_[i].shares); });
    return fmt::format(
        "routers: imbalance in {}: the busiest expert of layer {} has {:.1f} times the mean, {:.1f} before", where, l,
        times(shares_of(l)), times(references_[l].shares));
  }
  const size_t l = worst([&](size_t i) { return -now.entropy[i]; });
  const bool settled = references_[l].calm >= kCalmBlocks;
  return fmt::format("routers: the entropy dropped in {}: {:.2f} nats in layer {}, {:.2f} {}", where, now.entropy[l], l,
                     settled ? references_[l].entropy : first_entropy_[l], settled ? "before" : "at the start");
}

void RouterWatch::add_to_block(const RoutingLoad& load, double loss) {
  const auto experts = static_cast<size_t>(load.experts);
  for (std::vector<float>* sums : {&block_.counts, &block_.shares, &block_.squares}) sums->resize(load.counts.size());
  block_.entropy.resize(load.entropy.size());
  for (size_t layer = 0; layer < load.entropy.size(); ++layer) {
    const double total = token_total(layer_of(load.counts, layer, experts));
    for (size_t i = layer * experts; i < (layer + 1) * experts; ++i) {
      const auto share = static_cast<float>(load.counts[i] / total);
      block_.counts[i] += load.counts[i];
      block_.shares[i] += share;
      block_.squares[i] += share * share;
    }
    block_.entropy[layer] += load.entropy[layer];
  }
  block_.loss += loss;
  ++block_.steps;
}

RouterWatch::Means RouterWatch::finished_block() const {
  const auto steps = static_cast<float>(block_.steps);
  const auto experts = static_cast<size_t>(recent_.experts);
  Means means{.shares = block_.shares,
              .entropy = block_.entropy,
              .noise = std::vector<float>(block_.entropy.size()),
              .loss = block_.loss / static_cast<double>(block_.steps)};
  for (float& entropy : means.entropy) entropy /= steps;
  for (size_t i = 0; i < means.shares.size(); ++i) {
    means.shares[i] /= steps;
    const float variance = block_.squares[i] / steps - means.shares[i] * means.shares[i];
    means.noise[i / experts] += 0.5f * std::sqrt(std::max(variance, 0.0f) / (steps - 1));
  }
  return means;
}

/// Returns the alarms of `now`, then updates the references of all other layers.
std::vector<std::string> RouterWatch::compare(const Means& now) {
  std::vector<std::string> alarms;
  std::vector<bool> named(references_.size());
  for (const Alarm alarm : {kCollapse, kDead, kImbalance, kEntropy}) {
    std::vector<int64_t> layers;
    for (size_t layer = 0; layer < references_.size(); ++layer) {
      if (named[layer] || !raised(alarm, layer, now)) continue;
      named[layer] = true;
      layers.push_back(static_cast<int64_t>(layer));
    }
    if (layers.empty() || std::exchange(said_[alarm], true)) continue;
    alarms.push_back(describe(alarm, layers, now) + ". " + advice());
  }
  for (size_t layer = 0; layer < references_.size(); ++layer) {
    if (!named[layer]) follow(layer);
  }
  return alarms;
}

std::vector<std::string> RouterWatch::add(const RoutingLoad& load, double loss) {
  if (load.layers == 0) return {};
  accumulate(recent_, load, static_cast<float>(1 - 1 / kWindow));
  add_to_block(load, loss);
  references_.resize(static_cast<size_t>(load.layers));
  if (first_entropy_.empty()) first_entropy_ = load.entropy;
  const double tokens = sum_of(layer_of(block_.counts, 0, static_cast<size_t>(load.experts)));
  if (block_.steps < kBlockSteps || tokens < kLeastTokens * static_cast<double>(load.experts)) return {};
  blocks_.push_back(finished_block());
  if (blocks_.size() > kCompared) blocks_.pop_front();
  std::vector<std::string> alarms = compare(blocks_.back());
  block_ = {};
  return alarms;
}

std::string RouterWatch::balance() const {
  struct Extreme {
    double load = 0;  // times the mean of its layer
    int64_t layer = 0, expert = 0;
  };
  Extreme most, least{.load = static_cast<double>(recent_.experts)};
  std::vector<int64_t> dead_layers;
  int64_t dead = 0;
  for (int64_t layer = 0; layer < recent_.layers; ++layer) {
    const std::span<const float> counts = row(recent_, layer);
    const double total = token_total(counts);
    int64_t dead_here = 0;
    for (int64_t expert = 0; expert < recent_.experts; ++expert) {
      const double share = rounded_share(counts[static_cast<size_t>(expert)], total);
      const double load = share * static_cast<double>(recent_.experts);
      if (load > most.load) most = {load, layer, expert};
      if (load < least.load) least = {load, layer, expert};
      dead_here += share == 0;
    }
    if (dead_here > 0) dead_layers.push_back(layer);
    dead += dead_here;
  }
  const std::string dead_text = dead == 0 ? "no dead experts"
                                          : fmt::format("{} dead expert{} in layer{} {}", dead, plural(dead),
                                                        plural(std::ssize(dead_layers)), list_of(dead_layers));
  return fmt::format(
      "routers: a layer's busiest expert has {:.1f} times the mean load on average, {:.1f} at most (expert {} of layer "
      "{}), the least loaded {:.2f} (expert {} of layer {}); {}",
      mean_max_over_mean(layer_loads(recent_)), most.load, most.expert, most.layer, least.load, least.expert,
      least.layer, dead_text);
}

Json RouterWatch::state() const {
  if (empty()) return nullptr;
  Json blocks = Json::array(), references = Json::array();
  for (const Means& block : blocks_) {
    blocks.push_back(
        {{"shares", block.shares}, {"entropy", block.entropy}, {"noise", block.noise}, {"loss", block.loss}});
  }
  for (const Reference& reference : references_) {
    references.push_back({{"shares", reference.shares}, {"entropy", reference.entropy}, {"calm", reference.calm}});
  }
  return {{"recent", {{"counts", recent_.counts}, {"entropy", recent_.entropy}}},
          {"block",
           {{"counts", block_.counts},
            {"shares", block_.shares},
            {"squares", block_.squares},
            {"entropy", block_.entropy},
            {"loss", block_.loss},
            {"steps", block_.steps}}},
          {"blocks", std::move(blocks)},
          {"references", std::move(references)},
          {"first_entropy", first_entropy_},
          {"said", said_}};
}

void RouterWatch::restore(const Json& state, int64_t layers, int64_t experts) {
  if (!state.is_object()) return;
  RouterWatch read(options_);
  const int64_t all = layers * experts;
  try {
    const Json &recent = state.at("recent"), &block = state.at("block");
    read.recent_ = {layers, experts, recent.at("counts").get<std::vector<float>>(),
                    recent.at("entropy").get<std::vector<float>>()};
    bool fits = has_size(read.recent_.counts, all) && has_size(read.recent_.entropy, layers);
    block.at("counts").get_to(read.block_.counts);
    block.at("shares").get_to(read.block_.shares);
    block.at("squares").get_to(read.block_.squares);
    block.at("entropy").get_to(read.block_.entropy);
    block.at("loss").get_to(read.block_.loss);
    const std::optional<int64_t> steps = whole_number<int64_t>(block.at("steps"));
    if (!steps) return;
    read.block_.steps = *steps;
    const int64_t begun = read.block_.steps > 0 ? 1 : 0;
    for (const auto* values : {&read.block_.counts, &read.block_.shares, &read.block_.squares})
      fits &= has_size(*values, begun * all);
    fits &= has_size(read.block_.entropy, begun * layers) && read.block_.steps >= 0;
    for (const Json& one : state.at("blocks")) {
      Means& means = read.blocks_.emplace_back();
      one.at("shares").get_to(means.shares);
      one.at("entropy").get_to(means.entropy);
      one.at("noise").get_to(means.noise);
      one.at("loss").get_to(means.loss);
      fits &= has_size(means.shares, all) && has_size(means.entropy, layers) && has_size(means.noise, layers);
    }
    for (const Json& one : state.at("references")) {
      Reference& reference = read.references_.emplace_back();
      one.at("shares").get_to(reference.shares);
      one.at("entropy").get_to(reference.entropy);
      const auto calm = whole_number<decltype(reference.calm)>(one.at("calm"));
      if (!calm) return;
      reference.calm = *calm;
      fits &= reference.calm < kCalmBlocks || has_size(reference.shares, experts);
    }
    fits &= read.blocks_.size() <= kCompared && read.references_.size() == static_cast<size_t>(layers);
    state.at("first_entropy").get_to(read.first_entropy_);
    fits &= has_size(read.first_entropy_, layers);
    state.at("said").get_to(read.said_);
    if (!fits) return;
  } catch (const nlohmann::json::exception&) {
    return;
  }
  *this = std::move(read);
}

}  // namespace hone
