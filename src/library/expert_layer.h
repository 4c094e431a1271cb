// The routed experts of one layer, computed by the CPU for another program: what a mixture-of-experts block does after
// its router (ops/moe_experts). Frozen weights in any format, with or without LoRA.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/cpu/thread_pool.h"
#include "core/stream/stream.h"
#include "core/text/json_value.h"
#include "ops/moe_experts/moe_experts.h"
#include "tape/tape.h"

namespace hone {

/// A weight in memory of its own.
class LayerWeight : public Weight {
 public:
  /// A frozen weight of experts [E, n · rows, columns]: E · n matrices.
  LayerWeight(Shape shape, Shape matrices, DType dtype, const WeightFormat& format);
  /// A trained float32 weight of zeros.
  explicit LayerWeight(Shape shape);

  /// Encodes whole matrices from row `row`, counted through all.
  void fill(int64_t row, int64_t count, const float* values) const;

  const WeightFormat& format() const { return *format_; }
  const Shape& shape() const override { return shape_; }
  WeightView view() const override;
  std::optional<PackedWeight> packed_view() const override;
  bool wants_grad() const override { return gradient_.size() > 0; }
  GradDest grad() override;

  Tensor value() const { return payload_.tensor(shape_, DType::kF32); }
  Tensor gradient() const { return gradient_.tensor(shape_, DType::kF32); }
  /// The next gradient overwrites.
  void zero_grad();
  /// A dry pass has taken the gradient, and written nothing.
  void restore_written(bool written) { written_ = written; }
  bool written() const { return written_; }

 private:
  Tensor payload() const;
  Tensor scales() const;  ///< undefined if the format has none

  Shape shape_, matrices_;
  DType dtype_ = DType::kF32;
  const WeightFormat* format_;
  Buffer payload_, scales_, gradient_;
  bool written_ = false;  // the gradient
};

/// What the memory of a pass depends on.
struct PassSizes {
  int64_t tokens = 0, choices = 0, experts = 0, hidden = 0, intermediate = 0, lora_r = 0;
  const WeightFormat* format = nullptr;
  DType dtype = DType::kBF16;
  bool training = false;

  bool operator==(const PassSizes&) const = default;
};

/// Threads and a queue that all layers of a process with the same number of threads share, and memory of passes.
class ExpertWorkers;

struct ExpertTokens {
  int64_t tokens = 0, choices = 0;
  const void* x = nullptr;         ///< [tokens, hidden], the layer's dtype
  const int64_t* ids = nullptr;    ///< [tokens, choices], read before forward() returns
  const float* weights = nullptr;  ///< the same
};

class ExpertLayer {
 public:
  struct Pass;

  /// Settings as hone_experts_create() takes them. Throws UserError.
  explicit ExpertLayer(const JsonValue& settings);
  ~ExpertLayer();

  /// Sets the frozen weights of an expert, in the layer's dtype.
  void set(int64_t expert, const void* gate, const void* up, const void* down);
  /// A float32 tensor "gate.lora_a", …, or its gradient "gate.lora_a.grad", for the caller's optimizer. Throws
  /// UserError for another name.
  Tensor tensor(const std::string& name) const;
  void zero_grad();

  /// Queues out [tokens, hidden] = the experts' outputs. With `training`, backward() follows. Memory of the caller must
  /// stay until synchronize(). Throws UserError for ids of no expert.
  void forward(const ExpertTokens& in, void* out, bool training);
  /// Queues the gradients of the last forward() in training: dx like x, dweights float32 (each may be null), and those
  /// of adapters, which are added to what is there since zero_grad().
  void backward(const void* dout, void* dx, float* dweights);
  /// Waits for the queue; throws what has failed.
  void synchronize();

 private:
  void add_adapters(int64_t rank, double alpha);
  void begin_tape(Pass& pass) const;
  /// Records the layer on a pass's tape.
  void record(Pass& pass) const;
  /// Gives a pass memory for its sizes.
  void plan(Pass& pass) const;

  std::shared_ptr<ExpertWorkers> workers_;
  int64_t experts_ = 0, hidden_ = 0, intermediate_ = 0, lora_r_ = 0;
  DType dtype_ = DType::kBF16;
  std::unique_ptr<LayerWeight> gate_up_, down_;
  std::map<std::string, std::unique_ptr<LayerWeight>> factors_;  // "gate.lora_a", …
  ExpertAdapters adapters_;
  std::unique_ptr<Pass> pending_;  // the last forward in training
};

}  // namespace hone
