// The closed sets of RunConfig: enums that only a configuration has, and the names of these and of other rooms' enums.
// dtype and the like take some of DType: the schema lists these values.
#pragma once

#include <array>
#include <optional>

#include "core/base/named_choice.h"
#include "core/stream/graph_cache.h"
#include "data/formats/chat_encoder.h"
#include "dist/exchange/weight_fetcher.h"
#include "formats/fp8_names.h"
#include "optim/schedule.h"
#include "params/bucket.h"
#include "params/lora.h"
#include "report/report_target.h"
#include "tape/tape.h"
#include "weights/adapter.h"

namespace hone {

enum class FinetuningType { kFull, kLora };
template <>
inline constexpr auto kChoiceNames<FinetuningType> =
    std::to_array<ChoiceName<FinetuningType>>({{FinetuningType::kFull, "full"}, {FinetuningType::kLora, "lora"}});

/// Unset: by the memory plan.
using Checkpointing = std::optional<RecomputeLevel>;
template <>
inline constexpr auto kChoiceNames<Checkpointing> =
    std::to_array<ChoiceName<Checkpointing>>({{std::nullopt, "auto"},
                                              {RecomputeLevel::kEverything, "true"},
                                              {RecomputeLevel::kNone, "false"},
                                              {RecomputeLevel::kNorms, "norms"},
                                              {RecomputeLevel::kActivations, "activations"},
                                              {RecomputeLevel::kExperts, "experts"},
                                              {RecomputeLevel::kAllButAttention, "all_but_attention"}});

/// How what enters a layer is kept for backward.
enum class LayerInputFormat {
  kDtype,  ///< as it is
  kFp8,    ///< fp8_value_format()
};
template <>
inline constexpr auto kChoiceNames<LayerInputFormat> =
    std::to_array<ChoiceName<LayerInputFormat>>({{LayerInputFormat::kDtype, "dtype"}, {LayerInputFormat::kFp8, "fp8"}});

/// What the auxiliary loss of an optimizer step is, over its micro-batches.
enum class AuxLossReduction {
  kMean,   ///< by tokens
  kHfSum,  ///< the sum that Hugging Face's trainer makes of it
};
template <>
inline constexpr auto kChoiceNames<AuxLossReduction> = std::to_array<ChoiceName<AuxLossReduction>>(
    {{AuxLossReduction::kMean, "mean"}, {AuxLossReduction::kHfSum, "hf_sum"}});

/// What an exclusion that matches nothing does to the run.
enum class UnmatchedExclusion { kRefuse, kWarn };
template <>
inline constexpr auto kChoiceNames<UnmatchedExclusion> = std::to_array<ChoiceName<UnmatchedExclusion>>(
    {{UnmatchedExclusion::kRefuse, "refuse"}, {UnmatchedExclusion::kWarn, "warn"}});

/// Modules that are trained whole beside adapters.
enum class WholeModule { kRouter, kEmbedding, kHead };
template <>
inline constexpr auto kChoiceNames<WholeModule> = std::to_array<ChoiceName<WholeModule>>(
    {{WholeModule::kRouter, "router"}, {WholeModule::kEmbedding, "embed_tokens"}, {WholeModule::kHead, "lm_head"}});

template <>
inline constexpr auto kChoiceNames<LoraInit> = std::to_array<ChoiceName<LoraInit>>({{LoraInit::kKaiming, "true"},
                                                                                    {LoraInit::kGaussian, "gaussian"},
                                                                                    {LoraInit::kRandom, "false"}});

template <>
inline constexpr auto kChoiceNames<ExpertLora> =
    std::to_array<ChoiceName<ExpertLora>>({{ExpertLora::kSplit, "split"}, {ExpertLora::kShared, "shared"}});

/// kAsTrained is what nothing stated means.
template <>
inline constexpr auto kChoiceNames<AdapterLayout> =
    std::to_array<ChoiceName<AdapterLayout>>({{AdapterLayout::kSplit, "split"},
                                              {AdapterLayout::kTargetParameters, "target_parameters"},
                                              {AdapterLayout::kKt, "kt"},
                                              {AdapterLayout::kSglang, "sglang"}});

template <>
inline constexpr auto kChoiceNames<HistoryRewrites> = std::to_array<ChoiceName<HistoryRewrites>>(
    {{HistoryRewrites::kExpand, "expand"}, {HistoryRewrites::kMask, "mask"}, {HistoryRewrites::kError, "error"}});

/// What is done about data that is no ground to train on.
enum class DataChecks { kStop, kWarn };
template <>
inline constexpr auto kChoiceNames<DataChecks> = std::to_array<ChoiceName<DataChecks>>({{DataChecks::kStop, "stop"},
                                                                                        {DataChecks::kWarn, "warn"}});

/// Learning rate schedules as configurations name them; several are one ScheduleType (config/schedule_options.h).
enum class LrScheduler {
  kCosine,
  kCosineWithMinLr,
  kCosineWithRestarts,
  kLinear,
  kConstant,
  kConstantWithWarmup,
  kWarmupStableDecay,
  kPolynomial,
  kInverseSqrt,
  kOneMinusSqrt,  ///< resolved: kWarmupStableDecay with this decay
};
template <>
inline constexpr auto kChoiceNames<LrScheduler> =
    std::to_array<ChoiceName<LrScheduler>>({{LrScheduler::kCosine, "cosine"},
                                            {LrScheduler::kCosineWithMinLr, "cosine_with_min_lr"},
                                            {LrScheduler::kCosineWithRestarts, "cosine_with_restarts"},
                                            {LrScheduler::kLinear, "linear"},
                                            {LrScheduler::kConstant, "constant"},
                                            {LrScheduler::kConstantWithWarmup, "constant_with_warmup"},
                                            {LrScheduler::kWarmupStableDecay, "warmup_stable_decay"},
                                            {LrScheduler::kPolynomial, "polynomial"},
                                            {LrScheduler::kInverseSqrt, "inverse_sqrt"},
                                            {LrScheduler::kOneMinusSqrt, "1-sqrt"}});

template <>
inline constexpr auto kChoiceNames<DecayShape> = std::to_array<ChoiceName<DecayShape>>(
    {{DecayShape::kLinear, "linear"}, {DecayShape::kCosine, "cosine"}, {DecayShape::kOneMinusSqrt, "1-sqrt"}});

enum class OptimizerName { kAdamw, kAdamw8bit, kAdafactor, kLion, kSgd, kMuon };
template <>
inline constexpr auto kChoiceNames<OptimizerName> =
    std::to_array<ChoiceName<OptimizerName>>({{OptimizerName::kAdamw, "adamw"},
                                              {OptimizerName::kAdamw8bit, "adamw_8bit"},
                                              {OptimizerName::kAdafactor, "adafactor"},
                                              {OptimizerName::kLion, "lion"},
                                              {OptimizerName::kSgd, "sgd"},
                                              {OptimizerName::kMuon, "muon"}});

/// What a loss or gradient that is not finite does.
enum class NanPolicy { kStop, kSkip };
template <>
inline constexpr auto kChoiceNames<NanPolicy> = std::to_array<ChoiceName<NanPolicy>>({{NanPolicy::kStop, "stop"},
                                                                                      {NanPolicy::kSkip, "skip"}});

template <>
inline constexpr auto kChoiceNames<GraphUse> = std::to_array<ChoiceName<GraphUse>>({{GraphUse::kAuto, "auto"},
                                                                                    {GraphUse::kAlways, "true"},
                                                                                    {GraphUse::kNever, "false"}});

template <>
inline constexpr auto kChoiceNames<ZeroStage> = std::to_array<ChoiceName<ZeroStage>>(
    {{ZeroStage::kNone, "0"}, {ZeroStage::kState, "1"}, {ZeroStage::kGradients, "2"}, {ZeroStage::kValues, "3"}});

/// What cpu_offload can name. kExperts are a part of kParams, kAuto chooses.
enum class OffloadPart { kAuto, kOptimizer, kParams, kExperts, kActivations };
template <>
inline constexpr auto kChoiceNames<OffloadPart> =
    std::to_array<ChoiceName<OffloadPart>>({{OffloadPart::kAuto, "auto"},
                                            {OffloadPart::kOptimizer, "optimizer"},
                                            {OffloadPart::kParams, "params"},
                                            {OffloadPart::kExperts, "experts"},
                                            {OffloadPart::kActivations, "activations"}});

/// Where the values of frozen weights of layers are between uses.
enum class FrozenWeights {
  kMemory,  ///< where the other keys say
  kFile,    ///< in the files of the model
};
template <>
inline constexpr auto kChoiceNames<FrozenWeights> =
    std::to_array<ChoiceName<FrozenWeights>>({{FrozenWeights::kMemory, "memory"}, {FrozenWeights::kFile, "file"}});

/// What computes routed experts.
enum class ExpertsOn {
  kDevice,  ///< the run's, as all else
  kCpu,     ///< the CPU beside it
  kAuto,    ///< the fastest that fits (train/plan/experts_device.h)
};
template <>
inline constexpr auto kChoiceNames<ExpertsOn> = std::to_array<ChoiceName<ExpertsOn>>({{ExpertsOn::kDevice, "gpu"},
                                                                                      {ExpertsOn::kCpu, "cpu"},
                                                                                      {ExpertsOn::kAuto, "auto"}});

template <>
inline constexpr auto kChoiceNames<FetchWay> = std::to_array<ChoiceName<FetchWay>>(
    {{FetchWay::kAuto, "auto"}, {FetchWay::kPeers, "peer"}, {FetchWay::kCollectives, "collective"}});

template <>
inline constexpr auto kChoiceNames<ReportTarget> =
    std::to_array<ChoiceName<ReportTarget>>({{ReportTarget::kJsonl, "jsonl"},
                                             {ReportTarget::kTensorboard, "tensorboard"},
                                             {ReportTarget::kMlflow, "mlflow"},
                                             {ReportTarget::kWandb, "wandb"},
                                             {ReportTarget::kTrackio, "trackio"},
                                             {ReportTarget::kPrometheus, "prometheus"}});

/// When a run evaluates and saves; kBest: saves only.
enum class Cadence { kNo, kSteps, kEpoch, kBest };
template <>
inline constexpr auto kChoiceNames<Cadence> = std::to_array<ChoiceName<Cadence>>(
    {{Cadence::kNo, "no"}, {Cadence::kSteps, "steps"}, {Cadence::kEpoch, "epoch"}, {Cadence::kBest, "best"}});

/// What makes a checkpoint the best.
enum class ModelMetric { kLoss, kPerplexity, kMeanTokenAccuracy };
template <>
inline constexpr auto kChoiceNames<ModelMetric> =
    std::to_array<ChoiceName<ModelMetric>>({{ModelMetric::kLoss, "eval_loss"},
                                            {ModelMetric::kPerplexity, "eval_perplexity"},
                                            {ModelMetric::kMeanTokenAccuracy, "eval_mean_token_accuracy"}});

}  // namespace hone
