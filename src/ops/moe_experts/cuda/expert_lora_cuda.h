// The adapters of one expert weight W [E, out, in] as products in addition to the base product.
//
// With a the input rows [R, in], m an adapter's dropout mask and s' = scaling / (1 - dropout):
//   xa = (m ∘ a) Aᵀ       y += xa (s' B)ᵀ
//   v  = dy (s' B)        da += m ∘ (v A)        dA = vᵀ (m ∘ a)        dB = s' dyᵀ xa
// All adapters of the weight are computed together: the J columns of xa and v are their concatenated ranks, each
// starting at a multiple of 8, and B is zero outside of each adapter's outputs. The zeros cost little compared to
// reading the rows.
#pragma once

#include "ops/moe_experts/cuda/expert_rows_cuda.h"
#include "ops/moe_experts/cuda/rank_products_cuda.h"

namespace hone::cuda {

/// Rows [R, n]: contiguous, or gathered by `index` (i32 [R]) if it is defined.
struct ExpertInput {
  Tensor rows;
  Tensor index = {};
};

/// Whether the rank is the first or the last dimension of a factor.
enum class Ranks { kFirst, kLast };

class ExpertLora {
 public:
  struct Args {
    const ExpertRows& rows;
    const std::vector<ExpertAdapterView>& adapters;
    const LoraDropoutContext& dropout;
    Shape weight;  ///< shape of W
    DType dtype;   ///< dtype of activations, and of all factors here
  };
  /// Draws masks into scratch if all products can share them.
  ExpertLora(const Context& context, ArenaScope& scratch, const Args& args);

  bool any() const { return columns_ > 0; }
  /// Whether any adapter has dropout, so that m ∘ is not the identity.
  bool drops() const { return drops_; }
  /// [R, J]; this and the factors below are undefined without adapters.
  Tensor take_rank_rows(ArenaScope& scratch) const;

  /// A [E, J, in], or with ranks last [E, in, J]: the right operand of da += v A.
  Tensor a(ArenaScope& scratch, Ranks ranks) const;
  /// s' B [E, J, out], or with ranks last [E, out, J]: the right operand of y += xa (s' B)ᵀ.
  Tensor b(ArenaScope& scratch, Ranks ranks) const;

  void project(const ExpertInput& input, const Tensor& xa) const;
  void project_grad(const ExpertInput& dy, const Tensor& v) const;
  /// da [R, in] += m ∘ (v A), for adapters with dropout; without masks it is part of the base product.
  void add_masked_input_grad(const Tensor& v, const Tensor& da) const;
  void lora_a_grad(const Tensor& v, const ExpertInput& input, const std::vector<ExpertAdapterGrad>& grads) const;
  void lora_b_grad(const ExpertInput& dy, const Tensor& xa, const std::vector<ExpertAdapterGrad>& grads) const;

 private:
  /// The part of an adapter in a factor: an [E, rank, features] or [E, features, rank] matrix.
  struct FactorPiece {
    Tensor values;
    int64_t first_feature = 0, features;
    int64_t rank_stride = 1, feature_stride = 1;
    float scale = 1.0f;
  };
  /// [E, J, width] or [E, width, J], zero outside of the pieces unless they fill it.
  Tensor factor(ArenaScope& scratch, Ranks ranks, int64_t width, bool fills,
                const std::vector<FactorPiece>& pieces) const;
  Tensor masked(ArenaScope& scratch, const ExpertInput& input) const;
  void mask(size_t adapter, const ExpertInput& input, const Tensor& masked) const;
  void project_masked(const ExpertInput& input, const Tensor& factor, const Tensor& xa) const;
  void store_lora_a(size_t adapter, const Tensor& all, const GradDest& dest) const;

  const Context& context_;
  Args args_;
  RowGroups groups_;
  std::vector<RankSlice> slices_;      // slices with masks
  std::vector<RankSlice> unmasked_;    // slices without masks
  int64_t columns_ = 0;                // J
  bool drops_ = false, fills_ = true;  // fills_: no column of J is padding
  bool fits_ = false;                  // the kernels of rank_products_cuda.h support it
};

bool wants_lora_a(const std::vector<ExpertAdapterGrad>& grads);
bool wants_lora_b(const std::vector<ExpertAdapterGrad>& grads);

}  // namespace hone::cuda
