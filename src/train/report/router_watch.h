// RouterWatch: compares how evenly a run's routers spread tokens over experts with how they did once the run had
// settled.
#pragma once

#include <array>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "core/text/json_fwd.h"
#include "train/step/routing_load.h"

namespace hone {

/// Load of one layer's experts over some tokens.
struct LayerLoad {
  double max_over_mean = 0;      ///< tokens of the busiest expert over the mean of all; 1 is even
  double effective_experts = 0;  ///< exp(entropy of the shares)
  double entropy = 0;            ///< mean entropy of the router's distribution, nats
  int64_t dead = 0;              ///< experts without a token
};

std::vector<LayerLoad> layer_loads(const RoutingLoad& load);
/// The mean of max_over_mean.
double mean_max_over_mean(const std::vector<LayerLoad>& loads);

struct RouterWatchOptions {
  int64_t experts_per_token = 1;
  bool trains_router = false;
  double aux_loss_coef = 0;
};

/// Compares how routers spread tokens now with how they did when the run had settled. Absolute limits mislead, since
/// with many experts a good model uses them unevenly. So does the start of the run: a model from scratch, or one on new
/// data, moves its tokens for some hundred steps while it learns, and loses experts without harm.
///
/// Steps are counted in blocks of kBlockSteps, or more until an expert has kLeastTokens on average. A layer is calm if
/// the shares of its last four blocks differ from their mean by no more than steps within a block explain (kNoise
/// standard errors in total variation, plus kSlack), the entropies by no more than kEntropyDrift of their mean, and the
/// mean loss of two blocks is at least kFalling times that of the two before. After kCalmBlocks calm blocks the layer
/// has a reference, the mean of the four blocks, which is updated while it stays calm. The constants were tuned to
/// raise no alarm in 300 steps from scratch on text with learning rates of 1e-3 and 3e-3, with and without a balancing
/// loss, nor in runs continued from there, and to report changes of a settled layer within two blocks.
class RouterWatch {
 public:
  explicit RouterWatch(const RouterWatchOptions& options) : options_(options) {}

  /// Called after an optimizer step with its loss. Returns alarms, each with its layers, numbers and advice:
  ///   collapse      the layer lost three quarters of the effective experts beyond experts_per_token; or it
  ///                 sends all tokens to experts_per_token experts, settled or not
  ///   dead experts  an expert has a twentieth of its share in the reference, which was at least a quarter of the mean,
  ///                 and chance cannot explain it
  ///   imbalance     max_over_mean doubled
  ///   entropy drop  the entropy halved; or fell to a quarter of the first step's, settled or not
  /// Each is raised once per run; in one block a layer is reported only by the first of them. The run is never stopped.
  std::vector<std::string> add(const RoutingLoad& load, double loss);

  /// The load of the last steps: for each layer each expert's share of its tokens, in millionths.
  Json shares() const;
  /// The same as a line: the busiest and the least loaded expert with their layers, and the dead ones, whose share is
  /// 0. Needs at least one step.
  std::string balance() const;

  /// Whether there has been no step.
  bool empty() const { return recent_.layers == 0; }
  /// State for a checkpoint; null before the first step.
  Json state() const;
  /// Restores the state; ignores a state that does not match these sizes.
  void restore(const Json& state, int64_t layers, int64_t experts);

  static constexpr double kLeastTokens = 64, kWindow = 16;
  static constexpr int64_t kBlockSteps = 8, kCalmBlocks = 3;
  static constexpr double kNoise = 1.2, kSlack = 0.02, kFalling = 0.97, kEntropyDrift = 0.2, kSaturated = 0.25;

 private:
  enum Alarm { kCollapse, kDead, kImbalance, kEntropy, kAlarms };
  static constexpr size_t kCompared = 4;  // blocks

  /// A block of steps; layers × experts unless stated otherwise.
  struct Block {
    std::vector<float> counts, shares, squares;  ///< sums over steps; shares of a layer's tokens, and their squares
    std::vector<float> entropy;                  ///< layers: sum over steps
    double loss = 0;                             ///< sum over steps
    int64_t steps = 0;
  };
  /// Means of a finished block.
  struct Means {
    std::vector<float> shares;
    std::vector<float> entropy, noise;  ///< per layer; noise of the shares in total variation
    double loss = 0;
  };
  struct Reference {
    std::vector<float> shares;  ///< experts
    float entropy = 0;
    int64_t calm = 0;  ///< consecutive calm blocks; < kCalmBlocks: no reference yet
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
  RoutingLoad recent_;  // exponentially decayed sum over steps, decay 1 - 1 / kWindow
  Block block_;
  std::deque<Means> blocks_;
  std::vector<Reference> references_;  // per layer
  std::vector<float> first_entropy_;   // per layer, of the first step
  std::array<bool, kAlarms> said_{};
};

}  // namespace hone
