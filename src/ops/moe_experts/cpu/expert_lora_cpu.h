// The products of one expert adapter, inside launched CPU work.
//
// With a the adapter's input rows [R, in], m the dropout mask and s' = scaling / (1 - dropout):
//   xa = (m ∘ a) Aᵀ        y += s' · xa Bᵀ
//   v  = dy B              da += s' · m ∘ (v A)      dB = s' · dyᵀ xa      dA = s' · vᵀ (m ∘ a)
// With bfloat16 activations, a CPU with AMX rounds float32 operands of these products to bfloat16.
#pragma once

#include "ops/moe_experts/cpu/expert_rows_cpu.h"

namespace hone::cpu {

class ExpertLora {
 public:
  /// `wide` f32 [R, in] receives masked rows; undefined without dropout. `dtype` is that of the activations.
  ExpertLora(ThreadPool& pool, const ExpertRows& rows, const ExpertAdapterView& adapter,
             const LoraDropoutContext& dropout, const Tensor& wide, DType dtype)
      : pool_(pool),
        rows_(rows),
        adapter_(adapter),
        dropout_(dropout),
        wide_(wide),
        may_round_(dtype == DType::kBF16) {}

  /// The adapter's input: m ∘ a, written to `wide` with dropout, else a itself.
  RowMatrix masked(const RowMatrix& a) const;
  /// Computes the first r columns of xa from masked input.
  void project(const RowMatrix& masked_input, const RowMatrix& xa) const;
  /// y[:, out_begin...] = s' · xa Bᵀ + beta · y[:, out_begin...].
  void expand(const RowMatrix& xa, const Tensor& y, float beta) const;
  /// Computes the first r columns of v = dy B; dy has all outputs of the base weight.
  void project_grad(const RowMatrix& dy, const RowMatrix& v) const;
  /// da f32 [R, in] += s' · m ∘ (v A); overwrites `wide`.
  void add_input_grad(const RowMatrix& v, const Tensor& da) const;
  void lora_a_grad(const RowMatrix& v, const RowMatrix& masked_input, const GradDest& dest) const;
  void lora_b_grad(const RowMatrix& dy, const RowMatrix& xa, const GradDest& dest) const;

 private:
  RowMatrix outputs(RowMatrix y) const {
    y.col_begin += adapter_.out_begin;
    return y;
  }
  /// dst row = mask · src row + beta · dst row for all rows; src is f32 or bf16.
  template <class T>
  void mask_rows(const RowMatrix& src, const Tensor& dst, float beta) const;

  ThreadPool& pool_;
  const ExpertRows& rows_;
  const ExpertAdapterView& adapter_;
  const LoraDropoutContext& dropout_;
  Tensor wide_;
  bool may_round_;
};

/// y [R, n] = the products of all adapters with xa [R, J], zero where none has outputs.
void expand_all(ThreadPool& pool, const ExpertRows& rows, const std::vector<ExpertAdapterView>& adapters,
                const Tensor& xa, DType activations, const Tensor& y);

/// Whether any adapter has dropout, so that `wide` is needed.
bool any_dropout(const std::vector<ExpertAdapterView>& adapters);

/// The columns of xa or v [R, J] that belong to adapter i.
RowMatrix rank_columns(const std::vector<ExpertAdapterView>& adapters, size_t i, const Tensor& xa);

/// Allocates scratch [R, J] for xa or v of all adapters; undefined without adapters.
Tensor take_rank_rows(ArenaScope& scratch, const std::vector<ExpertAdapterView>& adapters, int64_t rows, DType dtype);

/// Zeroes the padding columns of [R, J], which no adapter's rank uses.
void clear_rank_padding(ThreadPool& pool, const std::vector<ExpertAdapterView>& adapters, const Tensor& xa);

}  // namespace hone::cpu
