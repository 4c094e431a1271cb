// Replay: a case's model on our side, and the runs that a case asks for.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "app/verify/golden_case.h"
#include "app/verify/reference_tensor.h"
#include "session/loaded_model.h"
#include "train/engine.h"

namespace hone {

/// Documents packed into one micro-batch, every loss weight 1.
MicroBatch pack_documents(const std::vector<LabelledDocument>& documents);

/// The experts that routers chose, i32 [T, k] for each MoE layer.
struct ExpertChoices {
  std::vector<Tensor> ids;
  Buffer memory;
};

struct ReplayOptions {
  DType dtype = DType::kF32;
  std::filesystem::path adapter = {};  ///< trained alone if given; else the whole model is
  Communicator* ranks = nullptr;       ///< that train together; null: one alone
  ZeroStage stage = ZeroStage::kNone;
  int64_t least_sharded_elements = 0;  ///< RankShare's, as the next: models of cases are small
  int64_t least_bucket_bytes = 0;
  TrainingFormats formats = {};
  std::string base = "dtype";  ///< base_weight_dtype
  Offload offload = {};
  bool offload_activations = false;
  bool optimizer_in_backward = false;
  OptimizerOptions optimizer = {};  ///< whose state is kept
};

class Replay {
 public:
  /// Loads <case>/model; no micro-batch will be larger than `capacity`.
  Replay(const std::filesystem::path& model, Stream& stream, const BatchCapacity& capacity,
         const ReplayOptions& options);

  const DecoderConfig& config() const { return model_.decoder().config(); }
  /// The auxiliary loss counts with this coefficient; 0: not at all.
  std::unique_ptr<Engine> make_engine(double router_aux_loss_coef, const OptimizerOptions& optimizer = {});

  /// Logits [T, V] of every token. `choices`, if given, receives the experts that were chosen.
  std::vector<float> logits(const MicroBatch& batch, ExpertChoices* choices = nullptr);

  /// Losses of the supervised tokens of a micro-batch.
  std::vector<double> token_losses(Engine& engine, const MicroBatch& batch);

  /// Greedy continuation of a prompt by `count` tokens, through the key-value cache.
  std::vector<int32_t> generate(const std::vector<int32_t>& prompt, int64_t count);

  /// Trainable values and their gradients under the names of a case: parameters by canonical name, adapters as PEFT
  /// files name them (experts by their in-memory module).
  HostTensors values() const;
  /// The bytes of a dense value. Ranks that keep parts of it call this together.
  std::vector<std::byte> whole_value(const Parameter& parameter) const;
  HostTensors gradients() const;
  ParameterStore& store() { return model_.store(); }

 private:
  HostTensors collect(const std::function<std::vector<float>(const Parameter&)>& values_of) const;

  Stream& stream_;
  BatchCapacity capacity_;
  Communicator* ranks_;
  bool offload_activations_;
  mutable LoadedModel model_;
};

}  // namespace hone
