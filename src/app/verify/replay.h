// Replay: runs a reference case's model in Hone.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/verify/golden_case.h"
#include "app/verify/reference_tensor.h"
#include "dist/transport/mesh.h"
#include "session/loaded_model.h"
#include "session/pass_companions.h"
#include "train/step/engine.h"

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
  std::filesystem::path adapter = {};  ///< if given, only the adapter is trained; else the whole model
  Communicator* ranks = nullptr;       ///< the ranks that train together; null: one rank
  /// How they share, and what is not in the device's memory. Ranks, rank and the three that follow are set beside it.
  RankShare share = {};
  int host_ranks = 0;                  ///< as in RankShare; 0: all ranks are on one host
  int64_t least_sharded_elements = 0;  ///< the same, like the next one; small, since models of cases are small
  int64_t least_bucket_bytes = 0;
  int64_t expert_round_tokens = 32;                                 ///< small, so that a case has several rounds
  std::optional<int64_t> moe_token_tile = {}, mlp_token_tile = {};  ///< as in EngineOptions
  TrainingFormats formats = {};
  std::string base = "dtype";  ///< base_weight_dtype
  Fp8Products fp8 = {};
  std::vector<std::string> fp8_keep = {};
  const ValueFormat* layer_inputs = nullptr;  ///< as in EngineOptions
  bool offload_activations = false;
  FetchWay weight_fetch = FetchWay::kAuto;
  bool map_values = true;  ///< maps values that ranks shard: as on a GPU, on a CPU too
  bool optimizer_in_backward = false;
  OptimizerOptions optimizer = {};  ///< the optimizer whose state is allocated
};

class Replay {
 public:
  /// Loads <case>/model. `capacity` is an upper bound of all micro-batches.
  Replay(const std::filesystem::path& model, Stream& stream, const BatchCapacity& capacity,
         const ReplayOptions& options);

  const DecoderConfig& config() const { return model_.decoder().config(); }
  /// An engine with this coefficient of the auxiliary loss; 0: no auxiliary loss.
  std::unique_ptr<Engine> make_engine(double router_aux_loss_coef, const OptimizerOptions& optimizer = {});

  /// The logits [T, V] of all tokens, without an engine beside. `choices`, if given, receives the chosen experts.
  std::vector<float> logits(const MicroBatch& batch, ExpertChoices* choices = nullptr);

  /// The losses of the supervised tokens of a micro-batch.
  std::vector<double> token_losses(Engine& engine, const MicroBatch& batch);

  /// Greedy continuation of a prompt by `count` tokens, through the key-value cache, likewise without an engine.
  std::vector<int32_t> generate(const std::vector<int32_t>& prompt, int64_t count);

  /// Trainable values with the names of a case: canonical names of parameters, and PEFT's names of adapters (experts by
  /// their in-memory module).
  HostTensors values() const;
  /// The bytes of a dense value. All ranks that keep parts of it must call it.
  std::vector<std::byte> whole_value(const Parameter& parameter) const;
  HostTensors gradients() const;
  ParameterStore& store() { return model_.store(); }
  /// Null with one rank.
  const RankMesh* mesh() const { return mesh_ ? &*mesh_ : nullptr; }

 private:
  /// For passes that no engine runs.
  PassCompanions companions();
  /// The elements of a float32 tensor on the device or on the host.
  std::vector<float> downloaded(const Tensor& tensor) const;
  HostTensors collect(const std::function<std::vector<float>(const Parameter&)>& values_of) const;

  Stream& stream_;
  BatchCapacity capacity_;
  std::optional<RankMesh> mesh_;
  const ValueFormat* layer_inputs_;
  bool offload_activations_;
  FetchWay weight_fetch_;
  int64_t expert_round_tokens_;
  std::optional<int64_t> moe_token_tile_, mlp_token_tile_;
  mutable LoadedModel model_;
};

}  // namespace hone
