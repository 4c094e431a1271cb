// RouterWatch: how evenly a run's routers spread tokens over experts, against how they did when it had settled.
#pragma once

#include <array>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "core/json_fwd.h"
#include "report/chart.h"
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

/// Compares how routers spread tokens now with how they did when the run had settled. Absolute limits mislead, since
/// with many experts a good model uses them unevenly; so does the run's start, since a model from scratch, or one that
/// meets new data, moves its tokens for some hundred steps while it learns, and loses experts on the way without harm.
///
/// Steps are counted in blocks of kBlockSteps, or more until an expert has kLeastTokens in the mean. A layer is calm
/// where the shares of its last four blocks differ from their mean by no more than steps within a block explain
/// (kNoise standard errors in total variation, and kSlack), the entropies by no more than kEntropyDrift of their mean,
/// and the mean loss of two blocks is at least kFalling times
/// that of the two before. After kCalmBlocks of them the layer has a reference, the mean of the four blocks, which
/// follows while it stays calm. The constants are such that no alarm is raised in 300 steps from scratch on text with
/// learning rates of 1e-3 and 3e-3, with and without a balancing loss, nor in runs from there; and that what
/// happens to a settled layer is told within two blocks.
class RouterWatch {
 public:
  explicit RouterWatch(const RouterWatchOptions& options) : options_(options) {}

  /// After an optimizer step with this loss: alarms, each with its layers, numbers and advice. In a layer that has
  ///   collapse      lost three quarters of the effective experts beyond experts_per_token; or sends all tokens to as
  ///                 many experts as a token has, settled or not
  ///   dead experts  one with a twentieth of its share in the reference, which was a quarter of the mean or more, where
  ///                 chance cannot explain it
  ///   imbalance     max_over_mean doubled
  ///   entropy drop  the entropy halved; or fell to a quarter of the first step's, settled or not
  /// Each is raised once in a run; of one block a layer is named by the first of them alone. Nothing is ever stopped.
  std::vector<std::string> add(const RoutingLoad& load, double loss);

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
  static constexpr int64_t kBlockSteps = 8, kCalmBlocks = 3;
  static constexpr double kNoise = 1.2, kSlack = 0.02, kFalling = 0.97, kEntropyDrift = 0.2, kSaturated = 0.25;

 private:
  enum Alarm { kCollapse, kDead, kImbalance, kEntropy, kAlarms };
  static constexpr size_t kCompared = 4;  // blocks

  /// A block of steps, layers × experts where not said otherwise.
  struct Block {
    std::vector<float> counts, shares, squares;  ///< sums over steps; shares of a layer's tokens, and their squares
    std::vector<float> entropy;                  ///< layers: sum over steps
    double loss = 0;                             ///< sum over steps
    int64_t steps = 0;
  };
  /// The same, finished.
  struct Means {
    std::vector<float> shares;
    std::vector<float> entropy, noise;  ///< layers; noise: of the shares, in total variation
    double loss = 0;
  };
  struct Reference {
    std::vector<float> shares;  ///< experts
    float entropy = 0;
    int64_t calm = 0;  ///< blocks in a row; < kCalmBlocks: there is none yet
  };

  void add_to_block(const RoutingLoad& load, double loss);
  Means finished_block() const;
  std::vector<std::string> compare(const Means& now);
  bool raised(Alarm alarm, size_t layer, const Means& now) const;
  int64_t newly_dead(size_t layer, const Means& now) const;
  bool is_calm(size_t layer) const;
  void follow(size_t layer);
  std::string describe(Alarm alarm, const std::vector<int64_t>& layers, const Means& now) const;
  std::string advice() const;

  RouterWatchOptions options_;
  RoutingLoad recent_;  // sum over all steps in which each counts less by a factor of 1 - 1 / kWindow than the next
  Block block_;
  std::deque<Means> blocks_;
  std::vector<Reference> references_;  // of each layer
  std::vector<float> first_entropy_;   // layers: of the first step
  std::array<bool, kAlarms> said_{};
};

}  // namespace hone
