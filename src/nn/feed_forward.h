// The second half of a layer: a dense MLP, or a router with experts and optionally a shared expert.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "nn/decoder_config.h"
#include "nn/linear.h"
#include "nn/module_facts.h"
#include "ops/moe_experts/moe_experts.h"
#include "ops/router/router.h"
#include "ops/row_tiles/bounded_tile.h"

namespace hone {

/// Both [T, H].
struct FeedForwardInput {
  Var x;         ///< the residual sum after this half's norm
  Var residual;  ///< the layer's residual sum, which is read only with MoeConfig::reads_residual
};

/// Maps its input to [T, H].
class FeedForward {
 public:
  virtual ~FeedForward() = default;
  virtual Var operator()(Tape& tape, const FeedForwardInput& in, const Forward& forward) const = 0;
  virtual void collect(std::vector<Parameter*>& group) const = 0;
  /// Multiply-adds × 2 of the products of a forward pass, with the chosen experts only and without adapters.
  virtual double flops(const ForwardWork& work) const = 0;
  virtual ModuleSummary summary() const = 0;
};

/// The tile of Forward::mlp_token_tile for at most `tokens` tokens of MLPs of `width`: 0, all tokens at once, where
/// their rows have up to kUntiledMlp elements; beyond, the tokens of kMlpTile elements, a multiple of 128. Products are
/// then at full speed: they have 10,368 rows at a width of 25,600.
inline constexpr int64_t kUntiledMlp = int64_t{1} << 29, kMlpTile = int64_t{1} << 28;
constexpr int64_t bounded_mlp_tile(int64_t tokens, int64_t width) {
  return bounded_tile(tokens, width, kUntiledMlp, kMlpTile);
}

struct MlpSizes {
  int64_t hidden = 0, intermediate = 0;
  bool bias = false;
  MlpActivation activation;
};

/// down(activation(gate(x), up(x))): MODULE.gate_proj, .up_proj and .down_proj; without a gate MODULE.up_proj and
/// .down_proj.
class Mlp : public FeedForward {
 public:
  Mlp(ParameterStore& store, const std::string& module, const MlpSizes& sizes, int layer, DType dtype);
  Var operator()(Tape& tape, const FeedForwardInput& in, const Forward& forward) const override;
  void collect(std::vector<Parameter*>& group) const override;
  double flops(const ForwardWork& work) const override;
  ModuleSummary summary() const override;

 private:
  std::vector<const Linear*> linears() const;

  MlpActivation activation_;
  std::optional<Linear> gate_proj_;
  Linear up_proj_, down_proj_;
};

/// The same with gate and up in one weight: MODULE.input_linear [2I, H], gate rows first, and .output_linear.
class FusedMlp : public FeedForward {
 public:
  FusedMlp(ParameterStore& store, const std::string& module, const MlpSizes& sizes, int layer, DType dtype);
  Var operator()(Tape& tape, const FeedForwardInput& in, const Forward& forward) const override;
  void collect(std::vector<Parameter*>& group) const override;
  double flops(const ForwardWork& work) const override;
  ModuleSummary summary() const override;

 private:
  MlpActivation activation_;
  Linear input_linear_, output_linear_;
};

/// The shared expert: its MLP's output, with a gate multiplied by sigmoid(x · gateᵀ). flops() does not count the gate's
/// product, one value per token.
class SharedExpert : public FeedForward {
 public:
  SharedExpert(const DecoderConfig& config, int layer, ParameterStore& store, DType dtype);
  Var operator()(Tape& tape, const FeedForwardInput& in, const Forward& forward) const override;
  void collect(std::vector<Parameter*>& group) const override;
  double flops(const ForwardWork& work) const override;
  ModuleSummary summary() const override;

 private:
  std::unique_ptr<FeedForward> mlp_;
  std::optional<Linear> gate_;
};

/// Σ over the chosen experts of weight × expert(x), plus the shared expert's output if there is one. `moe_index` is the
/// index among the MoE layers, from 0.
class MixtureOfExperts : public FeedForward {
 public:
  MixtureOfExperts(const DecoderConfig& config, int layer, int64_t moe_index, ParameterStore& store, DType dtype);
  Var operator()(Tape& tape, const FeedForwardInput& in, const Forward& forward) const override;
  void collect(std::vector<Parameter*>& group) const override;
  double flops(const ForwardWork& work) const override;
  ModuleSummary summary() const override;

 private:
  /// What the router reads of the experts' source.
  Var router_input(Tape& tape, Var x) const;
  /// The outputs of experts and of the shared expert, each with its norm if it has one.
  Var of_experts(Tape& tape, Var y) const;
  Var of_shared(Tape& tape, Var x, const Forward& forward) const;
  /// The experts of each token. A router with an adapter computes logits as any linear weight does, and then chooses by
  /// them.
  RoutedTokens route(Tape& tape, Var x, const Forward& forward) const;
  /// The same as operator() from the routed tokens on, with experts on the host.
  Var on_host(Tape& tape, Var x, Var shared_x, const RoutedTokens& routed, const ExpertWeights& weights,
              const ExpertAdapters& adapters, const Forward& forward) const;

  /// With MoeConfig::reads_residual.
  struct Norms {
    Parameter *router_scale, *before_experts, *after_experts, *after_shared;
    float eps;
    NormWeighting weighting;
  };

  int64_t top_k_, moe_index_;
  RouterRule rule_;
  float jitter_noise_;
  uint32_t layer_;
  Parameter* router_;
  Parameter* router_bias_ = nullptr;
  Parameter* selection_bias_ = nullptr;
  Parameter* gate_up_;  ///< or up alone
  Parameter* down_;
  Parameter* gate_up_bias_ = nullptr;
  Parameter* down_bias_ = nullptr;
  MlpActivation activation_;
  std::optional<Norms> norms_;
  Parameter* expert_scale_ = nullptr;
  std::unique_ptr<SharedExpert> shared_expert_;
};

/// The feed-forward half of config.layers[layer]; null if it has none.
std::unique_ptr<FeedForward> make_feed_forward(const DecoderConfig& config, int layer, ParameterStore& store,
                                               DType dtype);

}  // namespace hone
