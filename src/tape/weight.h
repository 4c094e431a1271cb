// An op's view of a parameter: its bytes while they are resident, and the destination of its gradient. Ops do not
// depend on names, optimizers, sharding or offloading.
#pragma once

#include <cstdint>
#include <optional>

#include "core/base/error.h"
#include "core/base/tensor.h"
#include "core/stream/context.h"
#include "formats/packed_weights.h"
#include "formats/weight_format.h"

namespace hone {

/// A weight that is stored as chunks (formats/packed_weights.h), one chunk per matrix.
struct PackedWeight {
  PackedLayout layout;
  Tensor chunks;  ///< u8 [matrices, layout.bytes]
  DType dtype;    ///< the dtype of its unpacked values
  const WeightFormat* format;
};

/// A weight's bytes; valid while an op runs.
struct WeightView {
  Tensor payload;
  const WeightFormat* format = &dense_format();
  Tensor scales = {};  ///< undefined if the format has none
  /// Set for a packed weight whose product reads the codes (WeightFormat::read_in_place); the payload then has the
  /// shape and the dtype of the values, but no memory.
  std::optional<PackedWeight> packed = {};

  bool is_dense() const { return format->dense(); }

  /// The payload, for ops that read dense weights only.
  const Tensor& dense() const {
    HONE_ASSERT(is_dense());
    return payload;
  }
};

/// The destination of a gradient: dst = gradient + beta * dst, with beta 0 (dst is not read) or 1. dst is undefined if
/// the gradient is not wanted.
struct GradDest {
  Tensor dst;
  float beta = 0.0f;

  bool wanted() const { return dst.defined(); }
};

/// A weight as tape nodes hold it. They request its bytes and its gradient at each use, not in advance.
class Weight {
 public:
  virtual ~Weight() = default;
  virtual const Shape& shape() const = 0;
  /// The shape of what ops on this rank read and write: shape(), or [E / N, ...] of a weight [E, ...] of experts that
  /// are spread over N ranks.
  virtual const Shape& local_shape() const { return shape(); }
  virtual WeightView view() const = 0;
  /// The chunks of a packed weight, which has no view(); nullopt for other weights. Products read either kind through
  /// UnpackedWeight (ops/unpack_weights/unpacked_weight.h).
  virtual std::optional<PackedWeight> packed_view() const { return std::nullopt; }
  /// The 8-bit floats in which its products are computed where an op can (ops/linear).
  virtual Fp8Products fp8() const { return {}; }
  virtual bool wants_grad() const = 0;
  /// The destination for one use's gradient: beta is 0 for the first use of an optimizer step and 1 for later ones;
  /// undefined if unwanted. Call it exactly once per use, and write all elements (zeros where there is no gradient).
  virtual GradDest grad() = 0;
};

/// A low-rank adapter of one weight W [out, in] (or of each expert's W): y += scaling · dropout(x) Aᵀ Bᵀ.
/// lora_a [r, in] or [E, r, in]; lora_b [out, r] or [E, out, r]. Source: Hu et al., "LoRA" (arXiv:2106.09685).
struct Adapter {
  Weight* lora_a = nullptr;
  Weight* lora_b = nullptr;
  Weight* magnitude = nullptr;  ///< [out], DoRA's norms of the rows of W plus adapter (ops/dora); null: LoRA
  float scaling = 1.0f;         ///< alpha / r, or alpha / sqrt(r) for rsLoRA
  float dropout = 0.0f;         ///< probability of zeroing an input feature; kept ones are scaled by 1 / (1 - p)
  uint32_t stream_id = 0;       ///< separates this adapter's random numbers from all others

  bool wants_grad() const {
    return lora_a->wants_grad() || lora_b->wants_grad() || (magnitude != nullptr && magnitude->wants_grad());
  }
};

/// How a group of parameters is used between acquire() and release().
struct Use {
  bool backward = false;     ///< used by backward, or by a recomputation for it
  bool reads_values = true;  ///< false: gradients are written, but no values are read
};

/// A group of parameters that ops use together. Their values are present on the device for the work that is queued
/// between acquire() and release(): permanently, or gathered from shards, or copied from other memory.
class Residency {
 public:
  virtual ~Residency() = default;
  /// Called a second time before release() if the first use read no values and a later one does. Moves no data in a dry
  /// pass (Context::dry()).
  virtual void acquire(const Context& context, Use use) = 0;
  virtual void release(const Context& context, Use use) = 0;
};

}  // namespace hone
