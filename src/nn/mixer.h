// Mixer: the first half of a layer, where tokens of a document see each other.
#pragma once

#include <memory>

#include "nn/decoder_config.h"
#include "nn/linear.h"
#include "nn/module_facts.h"

namespace hone {

/// A tensor of a layer's cache for N generated sequences, [N, …].
struct CacheTensor {
  Shape shape;
  DType dtype;
};

/// Maps x [T, H], normalised, to [T, H]. Tokens see only their own document's, and none that follow them.
class Mixer {
 public:
  virtual ~Mixer() = default;
  virtual Var operator()(Tape& tape, Var x, const Forward& forward, const RopeTable& rope) const = 0;
  virtual void collect(std::vector<Parameter*>& group) const = 0;
  /// This layer's tensors of forward.cache->layers, for `sequences` sequences of at most `capacity` tokens.
  virtual std::vector<CacheTensor> cache(int64_t sequences, int64_t capacity) const = 0;
  /// Multiply-adds × 2 of the products of a forward pass; adapters are not counted.
  virtual double flops(const ForwardWork& work) const = 0;
  virtual ModuleSummary summary() const = 0;
};

/// The mixer of config.layers[layer].
std::unique_ptr<Mixer> make_mixer(const DecoderConfig& config, int layer, ParameterStore& store, DType dtype);

}  // namespace hone
