// What an op sees of a parameter: its bytes while they are resident, and where its gradient goes. Ops know nothing of
// names, optimizers, sharding or offload.
#pragma once

#include <cstdint>

#include "core/context.h"
#include "core/error.h"
#include "core/tensor.h"
#include "formats/weight_format.h"

namespace hone {

/// A weight's bytes at the moment an op runs.
struct WeightView {
  Tensor payload;
  const WeightFormat* format = &dense_format();
  Tensor scales = {};  ///< undefined where the format has none

  bool is_dense() const { return format->dense(); }

  /// The payload, for ops that know no other format.
  const Tensor& dense() const {
    HONE_ASSERT(is_dense());
    return payload;
  }
};

/// Where a gradient is written: dst = gradient + beta * dst, with beta 0 (dst is not read) or 1. Not wanted: undefined.
struct GradDest {
  Tensor dst;
  float beta = 0.0f;

  bool wanted() const { return dst.defined(); }
};

/// A weight as tape nodes hold it: asked for its bytes and its gradient at each use, never before.
class Weight {
 public:
  virtual ~Weight() = default;
  virtual const Shape& shape() const = 0;
  virtual WeightView view() const = 0;
  virtual bool wants_grad() const = 0;
  /// The destination for one use's gradient: the first use of an optimizer step gets beta 0, later ones 1; undefined
  /// where none is wanted. Ask exactly once per use, and write all of it (zeros where nothing flowed).
  virtual GradDest grad() = 0;
};

/// A low-rank adapter of one weight W [out, in] (or of each expert's W): y += scaling · dropout(x) Aᵀ Bᵀ.
/// lora_a [r, in] or [E, r, in]; lora_b [out, r] or [E, out, r]. Source: Hu et al., "LoRA" (arXiv:2106.09685).
struct Adapter {
  Weight* lora_a = nullptr;
  Weight* lora_b = nullptr;
  Weight* magnitude = nullptr;  ///< [out] of DoRA (ops/dora), which rescales the rows of W and adapter; null: LoRA
  float scaling = 1.0f;         ///< alpha / r, or alpha / sqrt(r) for rsLoRA
  float dropout = 0.0f;         ///< probability of zeroing an input feature; kept ones are scaled by 1 / (1 - p)
  uint32_t stream_id = 0;       ///< separates this adapter's random numbers from all others

  bool wants_grad() const {
    return lora_a->wants_grad() || lora_b->wants_grad() || (magnitude != nullptr && magnitude->wants_grad());
  }
};

/// How a group of parameters is used between acquire() and release().
struct Use {
  bool backward = false;     ///< by nodes' backward, or their forward again for it
  bool reads_values = true;  ///< false: gradients are written, but no values are read
};

/// A group of parameters that ops use together. What an op reads must be present on the device from acquire() to
/// release(), for the work that is queued between the two: gathered from shards, streamed from elsewhere, or there.
class Residency {
 public:
  virtual ~Residency() = default;
  /// Called again before release() where a first use read no values and a later one does. In a dry pass, as the context
  /// says, nothing is brought.
  virtual void acquire(const Context& context, Use use) = 0;
  virtual void release(const Context& context, Use use) = 0;
};

}  // namespace hone
