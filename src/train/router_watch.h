// RouterWatch: how evenly a run's routers spread tokens over experts, against how they did at its start.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "core/json.h"
#include "report/heat_map.h"
#include "train/routing_load.h"

namespace hone {

/// One layer's experts over some tokens.
struct LayerLoad {
  double max_over_mean = 0;      ///< tokens of the busiest expert over the mean of all; 1 is even
  double effective_experts = 0;  ///< exp(entropy of the shares): as many experts, evenly used, are as uneven
  double entropy = 0;            ///< mean entropy of the router's distribution, nats
  int64_t dead = 0;              ///< experts without a token
};

std::vector<LayerLoad> layer_loads(const RoutingLoad& load);

struct RouterWatchOptions {
  int64_t experts_per_token = 1;
  bool trains_router = false;
  double aux_loss_coef = 0;
};

/// Compares the last steps with the first ones: absolute limits mislead, since with many experts a good model uses them
/// unevenly. The baseline is of the first steps, until an expert has had kLeastTokens in the mean; what is compared
/// with it is a sum over all steps in which each counts less by a factor of 1 - 1 / kWindow than the next.
class RouterWatch {
 public:
  explicit RouterWatch(const RouterWatchOptions& options) : options_(options) {}

  /// After an optimizer step: alarms, each with its layers, numbers and advice. In a layer that has
  ///   dead experts  one with a twentieth of its share at the start, where chance cannot explain it
  ///   imbalance     max_over_mean doubled
  ///   collapse      lost three quarters of the effective experts beyond experts_per_token
  ///   entropy drop  the entropy halved
  /// The same alarm is not raised again for kQuietSteps steps. Nothing is ever stopped.
  std::vector<std::string> add(const RoutingLoad& load);

  /// The last steps: layers × experts, as tokens over the mean of the layer. Layers that are too many to show share a
  /// row, which has their largest values. Needs a step.
  HeatMap heat_map() const;

  /// Before the first step.
  bool empty() const { return recent_.layers == 0; }
  /// What a resumed run goes on with; null before the first step.
  Json state() const;
  /// Whatever is not the state of a model of these sizes is forgotten.
  void restore(const Json& state, int64_t layers, int64_t experts);

  static constexpr double kLeastTokens = 64, kWindow = 16;
  static constexpr int64_t kQuietSteps = 100;

 private:
  enum Alarm { kDead, kImbalance, kCollapse, kEntropy, kAlarms };

  bool has_baseline() const;
  std::vector<int64_t> layers_with(Alarm alarm, const std::vector<LayerLoad>& first,
                                   const std::vector<LayerLoad>& now) const;
  int64_t newly_dead(int64_t layer) const;
  std::string describe(Alarm alarm, const std::vector<int64_t>& layers, const std::vector<LayerLoad>& first,
                       const std::vector<LayerLoad>& now) const;
  std::string advice() const;

  RouterWatchOptions options_;
  RoutingLoad baseline_, recent_;  // sums of counts; entropies weighted in the same way
  double baseline_steps_ = 0, recent_steps_ = 0;
  int64_t steps_ = 0;
  std::array<int64_t, kAlarms> quiet_until_{};
};

}  // namespace hone
