// An op's view of a parameter: its bytes while they are resident, and the destination of its gradient. Ops are
// independent of names, optimizers, sharding and offloading.
#pragma once

#include <cstdint>
#include <optional>

#include "core/context.h"
#include "core/error.h"
#include "core/tensor.h"
#include "formats/packed_weights.h"
#include "formats/weight_format.h"

namespace hone {

/// A weight's bytes at the moment an op runs.
struct WeightView {
  Tensor payload;
  const WeightFormat* format = &dense_format();
  Tensor scales = {};  ///< undefined if the format has none

  bool is_dense() const { return format->dense(); }

  /// The payload, for ops that read dense weights only.
  const Tensor& dense() const {
    HONE_ASSERT(is_dense());
    return payload;
  }
};

/// A weight that is stored as chunks (formats/packed_weights.h), one for each of its matrices.
struct PackedWeight {
  PackedLayout layout;
  Tensor chunks;  ///< u8 [matrices, layout.bytes]
  DType dtype;    ///< of its unpacked values
};

/// The destination of a gradient: dst = gradient + beta * dst, with beta 0 (dst is not read) or 1. Undefined if
/// unwanted.
struct GradDest {
  Tensor dst;
  float beta = 0.0f;

  bool wanted() const { return dst.defined(); }
};

/// A weight as tape nodes hold it: they ask for its bytes and its gradient at each use, never before.
class Weight {
 public:
  virtual ~Weight() = default;
  virtual const Shape& shape() const = 0;
  virtual WeightView view() const = 0;
  /// The chunks of a weight that is stored packed, which has no view(); nullopt for others. Products take both through
  /// UnpackedWeight (ops/unpack_weights/unpacked_weight.h).
  virtual std::optional<PackedWeight> packed_view() const { return std::nullopt; }
  virtual bool wants_grad() const = 0;
  /// The destination for one use's gradient: the first use of an optimizer step gets beta 0, later ones 1; undefined if
  /// unwanted. Ask exactly once per use, and write all of it (zeros where no gradient flowed).
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

/// A group of parameters that ops use together. Their values must be present on the device for the work that is queued
/// between acquire() and release(): always, or gathered from shards, or copied from elsewhere.
class Residency {
 public:
  virtual ~Residency() = default;
  /// Called again before release() if the first use read no values and a later one does. Moves no data in a dry pass
  /// (Context::dry()).
  virtual void acquire(const Context& context, Use use) = 0;
  virtual void release(const Context& context, Use use) = 0;
};

}  // namespace hone
