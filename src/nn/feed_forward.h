// The second half of a block: a dense MLP, or a router with experts.
#pragma once

#include "nn/decoder_config.h"
#include "nn/linear.h"

namespace hone {

/// Maps x [T, H] to [T, H].
class FeedForward {
 public:
  virtual ~FeedForward() = default;
  virtual Var operator()(Tape& tape, Var x, const Forward& forward) const = 0;
  virtual void collect(std::vector<Parameter*>& group) const = 0;
};

/// down(silu(gate(x)) * up(x))
class Mlp : public FeedForward {
 public:
  Mlp(const DecoderConfig& config, int layer, ParameterStore& store, DType dtype);
  Var operator()(Tape& tape, Var x, const Forward& forward) const override;
  void collect(std::vector<Parameter*>& group) const override;

 private:
  Linear gate_proj_, up_proj_, down_proj_;
};

/// Σ over the chosen experts of weight × expert(x). `moe_index` counts the MoE layers from 0.
class MixtureOfExperts : public FeedForward {
 public:
  MixtureOfExperts(const DecoderConfig& config, int layer, int64_t moe_index, ParameterStore& store, DType dtype);
  Var operator()(Tape& tape, Var x, const Forward& forward) const override;
  void collect(std::vector<Parameter*>& group) const override;

 private:
  int64_t top_k_, moe_index_;
  bool norm_topk_prob_;
  Parameter* router_;
  Parameter* gate_up_;
  Parameter* down_;
};

}  // namespace hone
