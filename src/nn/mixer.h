// Mixer: the first half of a layer, which mixes the tokens of a document.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "nn/decoder_config.h"
#include "nn/linear.h"
#include "nn/module_facts.h"

namespace hone {

/// A tensor of a layer's cache: what it has for a sequence, or for a page of kCachePage positions.
struct CacheTensor {
  Shape shape;  ///< [kCachePage, …] for a page
  DType dtype;
  /// For pages: a token attends to so many positions, its own included; 0: to all. Unset: for a sequence.
  std::optional<int64_t> window = {};
};

/// The RoPE tables of a model.
struct RopeTables {
  RopeTable turned;          ///< for the rotated dimensions
  RopeTable scaled_queries;  ///< scaled_query_table(); undefined without QueryScaling
  RopeTable unturned;        ///< rotates whole heads by 0; undefined unless a norm follows RoPE
};

/// Maps normalised x [T, H] to [T, H]. A token's output depends on its document's tokens up to itself only.
class Mixer {
 public:
  virtual ~Mixer() = default;
  virtual Var operator()(Tape& tape, Var x, const Forward& forward, const RopeTables& rope) const = 0;
  virtual void collect(std::vector<Parameter*>& group) const = 0;
  /// This layer's tensors of forward.cache->layers, which have all pages or all sequences as a first dimension.
  virtual std::vector<CacheTensor> cache() const = 0;
  /// Multiply-adds × 2 of the products of a forward pass, without adapters.
  virtual double flops(const ForwardWork& work) const = 0;
  virtual ModuleSummary summary() const = 0;
};

/// The mixer of config.layers[layer]; null if it has none.
std::unique_ptr<Mixer> make_mixer(const DecoderConfig& config, int layer, ParameterStore& store, DType dtype);

}  // namespace hone
