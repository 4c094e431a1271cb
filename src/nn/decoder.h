// Decoder: a decoder-only transformer, as a list of blocks.
#pragma once

#include <memory>
#include <vector>

#include "core/memory/buffer.h"
#include "nn/feed_forward.h"
#include "nn/mixer.h"
#include "params/placement.h"

namespace hone {

class Decoder {
 public:
  /// Adds the model's parameters to `store`. Activations and weights have `dtype` (float32 or bfloat16).
  Decoder(DecoderConfig config, ParameterStore& store, Placement& placement, DType dtype);

  const DecoderConfig& config() const { return config_; }
  DType dtype() const { return dtype_; }
  Placement& placement() const { return placement_; }
  /// See ParameterStore::values_arrived().
  bool values_arrived() const { return store_.values_arrived(); }
  /// See ParameterStore::experts_on_host(): tapes then need a host side.
  bool experts_on_host() const { return store_.experts_on_host(); }

  /// Computes the RoPE tables for sequences of at most `max_length` tokens. Call it before the first forward.
  void prepare(Stream& stream, int64_t max_length);

  /// The cache of generation, layer by layer.
  std::vector<std::vector<CacheTensor>> cache() const;

  /// Multiply-adds × 2 of a forward pass: products of mixers, MLPs or chosen experts, routers and head, causal
  /// attention within its windows, and the recurrence of linear attention and Mamba-2, without adapters. Backward costs
  /// twice as much, or as much as forward if only adapters are trained.
  double flops(const ForwardWork& work) const;
  /// Summaries of the layers' modules, each kind once: mixers, then feed-forwards.
  std::vector<ModuleSummary> summary() const;

  /// Runs forward and the head's loss: adds to forward.step.totals, and leaves the tape ready for backward.
  /// `token_loss` f32 [S], if defined, receives the loss of each supervised token.
  void loss(Tape& tape, const Forward& forward, Tensor token_loss = {}) const;

  /// Runs forward and the head: logits [rows, V] of the tokens whose indices are in `rows` (i32), in the model's dtype.
  Var logits(Tape& tape, const Forward& forward, Tensor rows) const;

 private:
  /// A half that the layer lacks is null, and so are its norm and group.
  struct Layer {
    Parameter *mixer_norm = nullptr, *feed_forward_norm = nullptr;
    Parameter *norm_after_mixer = nullptr, *norm_after_feed_forward = nullptr;  // null: none
    Parameter* scalar = nullptr;                                                // null: none
    bool windowed = false;
    std::unique_ptr<Mixer> mixer;
    std::unique_ptr<FeedForward> feed_forward;
    ParameterGroup *mixer_group = nullptr, *feed_forward_group = nullptr;
  };

  Var hidden_states(Tape& tape, const Forward& forward) const;
  /// The norm of the last layer's output.
  Var normed(Tape& tape, Var x) const;
  Var layer_forward(Tape& tape, const Layer& layer, Var x, const Forward& forward) const;

  DecoderConfig config_;
  const ParameterStore& store_;
  Placement& placement_;
  DType dtype_;
  Parameter* embedding_;
  Parameter* final_norm_;
  Parameter* head_;  // the embedding if they are tied
  std::vector<Layer> layers_;
  ParameterGroup *embedding_group_, *final_norm_group_, *head_group_;
  Buffer rope_memory_;
  RopeTables rope_, window_rope_;  // the second for layers with a window, where config_ has window_rope
};

}  // namespace hone
