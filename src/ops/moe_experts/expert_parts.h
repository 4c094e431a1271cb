// A layer's experts over some tokens at a time, which are a part: a tile (tiled_experts.h), or a round of several ranks
// (spread_experts.h). Nothing of a part is kept. Backward computes h of a part again, and adds up the gradients of
// weights over the parts, in their order.
#pragma once

#include <array>
#include <vector>

#include "kernels/weight_gradient/weight_gradient.h"
#include "ops/moe_experts/expert_half.h"
#include "ops/unpack_weights/unpacked_weight.h"

namespace hone {

/// The experts of a layer, as a node holds them.
struct LayerExperts {
  ExpertHalf gate_up, down;
  MlpActivation function;
  LoraDropoutContext dropout;
  int64_t first_expert = 0;  ///< the layer's expert that is the first here

  bool wants_grad() const { return gate_up.wants_grad() || down.wants_grad(); }
  /// For so many choices of experts, wherever they are multiplied.
  double flops(int64_t choices) const {
    return 2.0 * static_cast<double>(choices * (gate_up.products_of_a_row() + down.products_of_a_row()));
  }
};

/// Asserts that the shapes agree.
LayerExperts layer_experts(const Tape& tape, Var x, const RoutedTokens& routed, const ExpertWeights& weights,
                           const ExpertAdapters& adapters, const LoraDropoutContext& dropout);

/// Some tokens, or all of a rank.
struct TokenRows {
  Tensor x;        ///< [T, H]
  Tensor ids;      ///< i32 [T, k]
  Tensor weights;  ///< [T, k]
  Tensor dout;     ///< [T, H]; undefined in forward
  /// Undefined without dropout of adapters.
  Tensor sample_ids, positions;

  std::array<Tensor*, 6> all() { return {&x, &ids, &weights, &dout, &sample_ids, &positions}; }
  int64_t count() const { return x.shape[0]; }
};

/// The rows of a part at the experts that are here, after gate and up; in scratch memory.
struct PartRows {
  ExpertRows rows;
  Tensor h, activation, xa;
  LoraDropoutContext dropout;
};

/// The destinations of weights' gradients in a node's backward, which all parts add to.
class PartGradients {
 public:
  PartGradients(const Context& context, const LayerExperts& experts);
  /// After the last part.
  void store() const;

 private:
  friend class ExpertsPass;
  /// After a part: the next ones add to what it wrote.
  void keep();

  NarrowGradient gate_up_, down_;
  GradDest gate_up_bias_, down_bias_;
  std::vector<ExpertAdapterGrad> gate_up_adapters_, down_adapters_;
};

/// Forward or backward of a node: its weights, unpacked once for all parts.
class ExpertsPass {
 public:
  /// `fp8`: whether halves that multiply in 8-bit floats do so here.
  ExpertsPass(const Tape& tape, const LayerExperts& experts, bool fp8);

  /// The node's tokens; `dout` is undefined in forward.
  TokenRows tokens(const Tensor& x, const Tensor& ids, const Tensor& weights, const Tensor& dout) const;
  /// Sorts a part's choices, and computes gate and up.
  PartRows rows(ArenaScope& scratch, const TokenRows& part) const;
  void down(const PartRows& rows, const TokenRows& part, const Tensor& out) const;
  /// Overwrites h.
  void differentiate(const PartRows& rows, const TokenRows& part, const GradDest& dx, const GradDest& dweights,
                     PartGradients& gradients) const;

 private:
  const Context& context_;
  const LayerExperts& experts_;
  bool training_;
  UnpackedWeight gate_up_, down_;
};

}  // namespace hone
