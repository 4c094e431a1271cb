// Converts the run's configuration to the options of each room.
#pragma once

#include <string>

#include "config/run_config.h"
#include "data/dataset/dataset_builder.h"
#include "data/packing/loader.h"
#include "dist/exchange/weight_fetcher.h"
#include "optim/optimizer.h"
#include "session/loaded_model.h"

namespace hone {

/// The formats of a run's state.
struct RunPrecision {
  DType weights = DType::kBF16;
  const WeightFormat* experts = &dense_format();
  BaseFormat base = {};  ///< how frozen weights are held
  TrainingFormats formats;
  LayerInputFormat layer_inputs = LayerInputFormat::kDtype;
  bool layers_share_gradients = false;
  OptimizerOptions optimizer = {};
  ZeroStage stage = ZeroStage::kNone;  ///< which of it is sharded over `ranks`
  int64_t ranks = 1;                   ///< in a shard group
};

/// The storage format of routed experts.
const WeightFormat& expert_format_of(const RunConfig& config);
/// Formats as configured; which of them apply to a parameter depends on its optimizer.
TrainingFormats training_formats(const RunConfig& config);
RunPrecision precision_of(const RunConfig& config);

/// Unset LoRA values get their defaults (r 16, alpha 2r, dropout 0).
LoraOptions lora_options(const RunConfig::Lora& lora);
/// Whether the CPU computes the routed experts beside the run's device: experts_device is cpu, or auto with experts of
/// 8 bits beside a GPU. What auto means beyond that is chosen by train/plan/experts_device.h, and is the device until
/// then.
bool computes_experts_on_host(const RunConfig& config, Device device);
/// The device that holds and computes the routed experts, where the run's is `device`; this if only some layers' are on
/// the host.
Device experts_device_of(const RunConfig& config, Device device);
/// How rank `rank` shares a run on `device`.
RankShare rank_share(const RunConfig& config, Device device, int rank);

enum class RunUse { kTraining, kEvaluation };

/// What a run trains. In an evaluation without adapters all weights are frozen, so that the ranks of a host keep those
/// of experts there once.
TrainableOptions trainable_options(const RunConfig& config, Device device, int rank = 0,
                                   RunUse use = RunUse::kTraining);

std::vector<DatasetEntry> dataset_entries(const std::vector<DatasetConfig>& configs);

/// The folder of tokenizer_name_or_path, or the model's.
std::filesystem::path tokenizer_directory(const RunConfig& config, const std::filesystem::path& model_directory);

/// max_length if it is not set: the model's, at most 4096.
int64_t default_max_length(const DecoderConfig& model);

/// add_tokens and add_special_tokens.
NewTokens new_tokens(const RunConfig& config);

/// special_tokens and eot_tokens, and the stop token of a template that chat_template names.
TokenChoice token_choice(const RunConfig::Data& data);

/// Reads chat_template_file. `max_length` must be set. `tokenizer_from`: the folder of the tokenizer. `chat_template`:
/// what choose_template chose (text/named_templates.h).
DataOptions data_options(const RunConfig& config, int64_t vocab_size, const std::filesystem::path& tokenizer_from,
                         const std::string& chat_template);
LoaderOptions train_loader_options(const RunConfig& config);
LoaderOptions eval_loader_options(const RunConfig& config);

/// UserError if optim_args are not arguments of the optimizer (optimizer_options.cpp).
OptimizerOptions optimizer_options(const RunConfig& config);
/// Changes of the run to the model's forward pass and loss. UserError if one concerns routers and the model has none.
TrainingMethods training_methods(const RunConfig& config, const DecoderConfig& model);

/// Whether each rank hands the weights it has stepped to the others, on the device (zero_stage 1 and 2 of a full
/// fine-tuning): cpu_offload cannot have them in host memory then.
bool gathers_stepped_values(const RunConfig& config);
/// What cpu_offload can name without leaving the choice to the plan.
std::vector<OffloadPart> offload_parts();
/// Which data of the parameters these parts move to host memory.
Offload offload_of(const std::vector<OffloadPart>& parts);
/// The values of cpu_offload that advice may propose, the fastest first, as far as they go with a run's other keys
/// (config/rules.h).
const std::vector<std::vector<OffloadPart>>& offload_choices();

/// The effective coefficient: the configured one; else the model's in full fine-tuning with a trained router; else 0.
double aux_loss_coefficient(const RunConfig& config, const DecoderConfig& model);

}  // namespace hone
