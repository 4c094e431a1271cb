// The adapters of one expert weight W [E, out, in] as products beside the base product.
//
// With a the input rows [R, in], m an adapter's dropout mask and s' = scaling / (1 - dropout):
//   xa = (m ∘ a) Aᵀ       y += xa (s' B)ᵀ
//   v  = dy (s' B)        da += m ∘ (v A)        dA = vᵀ (m ∘ a)        dB = s' dyᵀ xa
// All adapters of the weight are computed as one: the J columns of xa and v are their ranks side by side, each from a
// multiple of 8 on, and B is zero outside of each adapter's outputs. The zeros cost little beside reading the rows.
#pragma once

#include "ops/moe_experts/cuda/expert_rows_cuda.h"
#include "ops/moe_experts/cuda/rank_products_cuda.h"

namespace hone::cuda {

/// Rows [R, n]: stored so, or where `index` (i32 [R]) is defined gathered by it.
struct ExpertInput {
  Tensor rows;
  Tensor index = {};
};

/// Whether the ranks of a factor come before or after its features.
enum class Ranks { kFirst, kLast };

class ExpertLora {
 public:
  struct Args {
    const ExpertRows& rows;
    const std::vector<ExpertAdapterView>& adapters;
    const LoraDropoutContext& dropout;
    Shape weight;  ///< of W
    DType dtype;   ///< of activations, and of all factors here
  };
  /// Draws masks into scratch where they are drawn once for all products.
  ExpertLora(const Context& context, ArenaScope& scratch, const Args& args);

  bool any() const { return columns_ > 0; }
  /// Some adapter drops features, so that m ∘ is more than the identity.
  bool drops() const { return drops_; }
  /// [R, J]; this and the factors below are undefined without adapters.
  Tensor take_rank_rows(ArenaScope& scratch) const;

  /// A [E, J, in], or with ranks last [E, in, J]: the second operand of da += v A.
  Tensor a(ArenaScope& scratch, Ranks ranks) const;
  /// s' B [E, J, out], or with ranks last [E, out, J]: the second operand of y += xa (s' B)ᵀ.
  Tensor b(ArenaScope& scratch, Ranks ranks) const;

  void project(const ExpertInput& input, const Tensor& xa) const;
  void project_grad(const ExpertInput& dy, const Tensor& v) const;
  /// da [R, in] += m ∘ (v A), for adapters that drop features; without masks it belongs into the base product.
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
  std::vector<RankSlice> slices_;      // with masks
  std::vector<RankSlice> unmasked_;    // the same without
  int64_t columns_ = 0;                // J
  bool drops_ = false, fills_ = true;  // fills_: no column of J is padding
  bool fits_ = false;                  // the kernels of rank_products_cuda.h take it
};

bool wants_lora_a(const std::vector<ExpertAdapterGrad>& grads);
bool wants_lora_b(const std::vector<ExpertAdapterGrad>& grads);

}  // namespace hone::cuda
