// Mixer: the first half of a layer, which mixes the tokens of a document.
#pragma once

#include <memory>

#include "nn/decoder_config.h"
#include "nn/linear.h"
#include "nn/module_facts.h"

namespace hone {

/// The shape [N, …] and dtype of a tensor of a layer's cache for N generated sequences.
struct CacheTensor {
  Shape shape;
  DType dtype;
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
  /// This layer's tensors of forward.cache->layers, for `sequences` sequences of at most `capacity` tokens.
  virtual std::vector<CacheTensor> cache(int64_t sequences, int64_t capacity) const = 0;
  /// Multiply-adds × 2 of the products of a forward pass, without adapters.
  virtual double flops(const ForwardWork& work) const = 0;
  virtual ModuleSummary summary() const = 0;
};

/// The mixer of config.layers[layer]; null if it has none.
std::unique_ptr<Mixer> make_mixer(const DecoderConfig& config, int layer, ParameterStore& store, DType dtype);

}  // namespace hone
