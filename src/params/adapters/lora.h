// LoRA: y += scaling · dropout(x) Aᵀ Bᵀ, for linear weights, the head and routed experts.
// Source: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models" (arXiv:2106.09685); rank-stabilised scaling:
// Kalajdzievski (arXiv:2312.03732).
#pragma once

#include "core/text/json_fwd.h"
#include "params/adapter.h"

namespace hone {

class LoraAdapter : public AttachedAdapter {
 public:
  /// Adds A and B: <module>.lora_A.weight [r, in] and .lora_B.weight [out_count, r]; of experts <module>.lora_A
  /// [E, r, in] and .lora_B [E, out_count, r].
  explicit LoraAdapter(const AdapterSite& site);

  std::vector<AdapterPart> tensors() const override;
  void initialise(const Context& context, const Parameter& adapted, uint64_t seed, LoraInit init) const override;
  Var forward(Tape& tape, Var x, Weight& weight, Weight* bias, const LoraDropoutContext& rows) const override;
  const LowRank* low_rank() const override { return &low_rank_; }

 protected:
  LowRank low_rank_;
};

void describe_lora(const LoraOptions& options, Json& config);
void read_lora(const Json& config, LoraOptions& options);

}  // namespace hone
