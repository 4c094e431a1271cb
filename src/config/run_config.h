// What a run is told to do, typed: one struct per room, filled from the schema table (schema.h) by resolve.h.
//
// Names, meanings and defaults are those of the schema (docs/config.md is generated from it). A closed set of values is
// an enum, whose names config/choices.h has. The default of an unset optional depends on the model or on the data, and
// is filled in before the run starts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/choices.h"
#include "config/resume_from.h"
#include "core/base/dtype.h"
#include "core/text/json_value.h"
#include "data/dataset/block_builder.h"
#include "session/frozen_formats.h"
#include "text/chat_mask.h"

namespace hone {

/// One entry of `datasets` or `eval_datasets`.
struct DatasetConfig {
  std::string path;                              ///< a file, or a folder of files
  std::string type = "auto";                     ///< auto, a format (data/formats/sample_format.h), or code
  std::optional<int64_t> samples;                ///< use only the first N samples (also written path#N)
  std::string name;                              ///< its name in logs and metrics; "" = from the path
  std::string revision = {};                     ///< a repository's; resolved: a part of path
  std::string split = {};                        ///< the part of a folder with several; "" = none
  std::optional<double> weight = {};             ///< share in the mixture, in relation to the others'
  JsonObject column_mapping = {};                ///< ours → the data's (data/formats/column_mapping.h)
  std::vector<std::string> ignore_columns = {};  ///< columns of the data that are as good as absent
  std::string delimiter = {};                    ///< between fields of CSV: a character or "tab"; "" = recognised
  JsonObject code = {};              ///< with type code: which samples (data/readers/code/code_repository.h)
  JsonValue prompt_template = {};    ///< a name or a mapping (data/formats/prompt_template.h); null: the chat template
  bool drop_system_message = false;  ///< leaves it out of the rows, which are chats

  /// Source code, whose samples `code` describes.
  bool is_code() const { return type == "code"; }

  bool operator==(const DatasetConfig&) const = default;
};

struct RunConfig {
  struct Model {
    std::string model_name_or_path;
    std::string model_revision;                   ///< a repository's; resolved: a part of model_name_or_path
    std::string adapter_name_or_path;             ///< adapter to continue; "" = none
    std::string tokenizer_name_or_path;           ///< folder of the tokenizer; "" = the model's
    std::vector<std::string> add_tokens;          ///< plain tokens for the tokenizer, with rows of their own
    std::vector<std::string> add_special_tokens;  ///< the same, which text for people leaves out
    bool resize_vocab = false;                    ///< as many rows as the tokenizer has tokens
    int64_t vocab_rows = 0;                       ///< that the embedding needs, from describe_vocabulary; 0: its own
    FinetuningType finetuning_type = FinetuningType::kFull;
    DType dtype = DType::kBF16;                     ///< weights and activations: bfloat16 | float32
    ExpertFormat expert_weight_dtype;               ///< frozen experts'
    BaseFormat base_weight_dtype;                   ///< frozen weights'
    bool nested_scales = true;                      ///< nf4 has scales of 8 bits; false: float32 (nf4_float_scales)
    std::vector<std::string> base_weight_keep;      ///< patterns of frozen weights that stay in dtype
    Fp8Recipe fp8 = Fp8Recipe::kOff;                ///< in which matrices of layers multiply
    bool fp8_weight_gradients = true;               ///< dW of those, too
    std::vector<std::string> fp8_keep;              ///< patterns of those that do not; none: the first one
    DType grad_dtype = DType::kF32;                 ///< float32 | bfloat16
    DType master_dtype = DType::kF32;               ///< float32 | bfloat16: the weights themselves are stepped
    DType opt_m_dtype = DType::kF32;                ///< float32 | bfloat16 | int8
    DType opt_v_dtype = DType::kF32;                ///< float32 | bfloat16 | int8
    Checkpointing gradient_checkpointing;           ///< what is recomputed; unset: by the memory plan
    LayerInputFormat layer_input_dtype{};           ///< how what enters a layer is kept for backward
    std::optional<int64_t> moe_token_tile;          ///< tokens that experts take at a time; 0: all; unset: by the plan
    std::optional<int64_t> mlp_token_tile;          ///< the same of dense MLPs and shared experts
    bool freeze_router = false;                     ///< resolved: true with LoRA unless stated otherwise
    std::vector<std::string> freeze_parameters;     ///< patterns over parameter names
    std::vector<std::string> trainable_parameters;  ///< patterns that win over freeze_parameters
    std::optional<double> router_aux_loss_coef;     ///< unset: the model's in full fine-tuning, else 0
    AuxLossReduction aux_loss_reduction = AuxLossReduction::kMean;
    double router_z_loss_coef = 0;              ///< 0: measured only
    std::optional<double> router_jitter_noise;  ///< in [0, 1); unset: the model's
    bool moe_log_expert_load = false;           ///< a map of the experts' load, and metrics of each layer

    bool operator==(const Model&) const = default;
  };

  /// Used only when finetuning_type is lora. r, alpha and dropout are unset only if the adapter that is continued
  /// (adapter_name_or_path) is to say them.
  struct Lora {
    std::optional<int64_t> r;                  ///< default 16
    std::optional<double> alpha;               ///< default 2 r
    std::optional<double> dropout;             ///< default 0; in [0, 1)
    std::vector<std::string> target_modules;   ///< attention, all-linear, all-experts, names, globs, re:…
    std::vector<std::string> exclude_modules;  ///< as target_modules: these get none
    UnmatchedExclusion exclude_unmatched = UnmatchedExclusion::kRefuse;
    std::vector<std::string> target_parameters;  ///< PEFT target_parameters: fused expert tensors
    std::vector<WholeModule> modules_to_save;    ///< trained and saved whole
    std::vector<std::string> layers;             ///< "3" or "4-7": only these get adapters; empty: all
    JsonObject rank_pattern = {};                ///< pattern of modules → rank
    JsonObject alpha_pattern = {};               ///< pattern of modules → alpha
    LoraInit init = LoraInit::kKaiming;
    bool use_rslora = false;       ///< scaling alpha / sqrt(r) instead of alpha / r
    bool use_dora = false;         ///< a trained magnitude for each output (ops/dora)
    double loraplus_lr_ratio = 1;  ///< learning rate of B over that of A
    ExpertLora expert_lora = ExpertLora::kSplit;
    AdapterLayout adapter_layout = AdapterLayout::kAsTrained;  ///< for experts, at the end

    bool operator==(const Lora&) const = default;
  };

  struct Data {
    std::vector<DatasetConfig> datasets;
    std::vector<DatasetConfig> eval_datasets;
    std::vector<std::string> interleave_probs;  ///< resolved: moved into the weights of datasets
    JsonObject column_mapping = {};             ///< resolved: moved into the data sets without one
    std::vector<std::string> ignore_columns;    ///< resolved: moved into the data sets without any
    double val_split = 0;                       ///< < 1: fraction of the samples, >= 1: their number, 0: none
    std::optional<int64_t> max_length;          ///< tokens; unset: min(the model's, 4096)
    Overlength overlength = Overlength::kDrop;
    bool packing = true;
    bool shuffle = true;
    TrainOn train_on = TrainOn::kAssistant;
    HistoryRewrites history_rewrites = HistoryRewrites::kExpand;
    std::string chat_template;  ///< a built-in name or Jinja text; "" = the model's own, or _file
    std::string chat_template_file;
    JsonObject chat_template_kwargs = {};  ///< variables for the template, any JSON
    bool learn_empty_thinking = false;     ///< learn a think block that the template puts in empty
    bool split_special_tokens = false;     ///< special tokens in the text of messages are text
    JsonObject special_tokens = {};        ///< bos_token, eos_token, pad_token, unk_token in other roles
    std::vector<std::string> eot_tokens;   ///< further tokens that end a turn
    std::optional<bool> add_bos_token;     ///< for text that is no chat; unset: as the tokenizer has it
    bool add_eos_token = true;             ///< for text that is no chat
    JsonObject code_samples = {};          ///< resolved: moved into the data sets of type code
    std::string tokenized_cache;           ///< folder in which tokenized data sets are kept; "" = none
    DataChecks data_checks = DataChecks::kStop;

    bool operator==(const Data&) const = default;
  };

  /// The three batch numbers always agree: global_batch_size = per_device_train_batch_size ×
  /// gradient_accumulation_steps × machine.ranks.
  struct Schedule {
    std::string preset;  ///< whose defaults the others are; "" = none
    double num_train_epochs = 3;
    std::optional<int64_t> max_steps;  ///< optimizer steps; wins over num_train_epochs
    int64_t per_device_train_batch_size = 1;
    int64_t gradient_accumulation_steps = 1;
    int64_t global_batch_size = 1;
    std::optional<int64_t> tokens_per_step;  ///< if stated: global_batch_size × max_length
    double learning_rate = 1e-5;             ///< resolved: 1e-5 full, 1e-4 LoRA
    LrScheduler lr_scheduler_type = LrScheduler::kCosine;
    std::optional<double> num_cycles;             ///< cosine 0.5, cosine_with_restarts 1 (whole)
    double power = 1;                             ///< polynomial
    double num_decay_steps = 0.1;                 ///< warmup_stable_decay: < 1 is a share of all steps
    std::optional<int64_t> num_stable_steps;      ///< warmup_stable_decay; unset: what is left
    DecayShape decay_type = DecayShape::kCosine;  ///< warmup_stable_decay
    std::optional<int64_t> timescale;             ///< inverse_sqrt; unset: the warm-up, or 10000
    std::optional<double> min_lr;                 ///< absolute floor; at most one of min_lr and min_lr_ratio is set
    std::optional<double> min_lr_ratio;           ///< floor as a fraction of learning_rate; both unset = 0
    std::optional<int64_t> warmup_steps;          ///< set: warmup_ratio is 0 and not used
    double warmup_ratio = 0.03;                   ///< fraction of all optimizer steps, rounded up

    bool operator==(const Schedule&) const = default;
  };

  struct Optim {
    OptimizerName name = OptimizerName::kAdamw;  ///< kAdamw8bit is kAdamw with int8 moments
    JsonObject args = {};                        ///< optim_args: further arguments of the optimizer
    bool optimizer_in_backward = false;          ///< each layer is stepped as soon as backward has its gradients
    double adam_beta1 = 0.9;
    double adam_beta2 = 0.999;
    double adam_epsilon = 1e-8;
    double weight_decay = 0;
    double max_grad_norm = 1;             ///< 0 = no clipping
    bool decay_norms_and_biases = false;  ///< false: no decay on tensors of fewer than two dimensions
    NanPolicy nan_policy = NanPolicy::kStop;
    double label_smoothing_factor = 0;  ///< in [0, 1); of training's loss
    double neftune_noise_alpha = 0;     ///< 0: no noise on the embeddings

    bool operator==(const Optim&) const = default;
  };

  struct Machine {
    std::string device = "auto";        ///< auto (a GPU if there is one) | cpu | cuda | cuda:N
    bool auto_find_batch_size = false;  ///< halve the batch on the device until the memory plan fits
    std::optional<int64_t> threads;     ///< unset: all cores
    int64_t seed = 42;
    int64_t data_seed = 42;  ///< resolved: the seed unless stated
    GraphUse cuda_graphs = GraphUse::kAuto;
    bool profile = false;                      ///< a time line of some steps
    int64_t profile_steps = 3;                 ///< how many; 0: all
    ZeroStage zero_stage = ZeroStage::kNone;   ///< what ranks share
    std::string dp_shard_size = "all";         ///< how many consecutive ranks share it: all | host | a number
    std::optional<int64_t> dp_replicate_size;  ///< how many such groups there are, to be checked or instead
    int64_t shard_size = 0;                    ///< resolved from both: ranks of a group; 0: all. No key
    int64_t expert_parallel_size = 1;          ///< ranks over which routed experts are spread; 1: all have all
    std::vector<OffloadPart> cpu_offload;      ///< kAuto alone, or parts
    FrozenWeights frozen_weights = FrozenWeights::kMemory;
    ExpertsOn experts_device = ExpertsOn::kDevice;
    std::optional<int64_t> cpu_expert_layers;      ///< how many layers experts_device cpu applies to; unset: all
    std::optional<int64_t> offload_expert_layers;  ///< how many of the others cpu_offload applies to; unset: all
    FetchWay weight_fetch = FetchWay::kAuto;
    int64_t least_sharded_elements = 100'000;  ///< smaller tensors' gradients and values stay whole on every rank
    std::optional<int64_t> num_gpus;           ///< if stated: the number of ranks
    int64_t ddp_timeout = 1800;                ///< seconds that ranks wait for one that hangs
    int64_t ranks = 1;                         ///< how many the launcher has started: no key
    int64_t ranks_of_host = 1;                 ///< on each host, consecutive; 0: it differs. No key

    bool operator==(const Machine&) const = default;
  };

  struct Report {
    std::string output_dir = "out";
    std::string run_name;  ///< resolved: the last part of output_dir unless stated
    int64_t logging_steps = 1;
    std::optional<double> logging_steps_ratio;  ///< a share of all steps; logging_steps is that, rounded up
    bool logging_first_step = true;
    std::vector<ReportTarget> report_to{ReportTarget::kJsonl, ReportTarget::kTensorboard};
    bool html_report = true;             ///< report.html at the end
    std::string logging_dir;             ///< resolved: output_dir/runs unless stated
    std::string mlflow_tracking_uri;     ///< http(s)://…, file:… or a folder; "" = the environment's, else mlruns
    std::string mlflow_experiment_name;  ///< "" = the environment's, else MLflow's Default
    std::string mlflow_run_id;           ///< a run to continue; "" = the environment's, else a new one
    JsonObject mlflow_tags = {};         ///< set on the run
    std::string wandb_project;           ///< "" = the environment's, else the package's
    std::string wandb_entity;            ///< the same
    std::string wandb_name;              ///< "" = run_name
    std::string wandb_run_id;            ///< a run to continue; "" = a new one
    std::string wandb_mode;              ///< online, offline or disabled; "" = the environment's, else online
    std::vector<std::string> wandb_tags;
    std::string trackio_project, trackio_space_id;  ///< "" = hone; "" = on this machine alone
    int64_t metrics_port = 0;                ///< for /metrics, /status and /health; 0 = none. Resolved with prometheus
    int64_t status_port = 0;                 ///< for the page of the run while it runs; 0 = none
    std::string metrics_host = "127.0.0.1";  ///< what both listen on

    bool operator==(const Report&) const = default;
  };

  struct Checkpoint {
    Cadence save_strategy = Cadence::kSteps;
    std::optional<int64_t> save_steps;            ///< unset: once an epoch, or by saves_per_epoch
    std::optional<int64_t> saves_per_epoch;       ///< save_steps is that part of an epoch, rounded up
    std::optional<double> save_steps_ratio;       ///< save_steps is that part of all steps, rounded up
    std::optional<int64_t> save_total_limit = 3;  ///< best and last are never deleted; unset: keep all
    int64_t save_major_steps = 0;                 ///< checkpoints of these steps are never deleted; 0: none
    bool save_only_model = false;                 ///< true: without optimizer state, so not resumable
    int64_t max_shard_size = 5'000'000'000;       ///< bytes
    ResumeFrom resume_from_checkpoint;
    bool resume_only_model = false;  ///< take weights and position, start the optimizer anew
    bool ignore_data_skip = false;   ///< start the data anew; with resume_only_model the steps too
    bool overwrite_output_dir = false;
    bool merge_after_training = false;  ///< LoRA: write the merged model, too
    std::string export_dir;             ///< where; "" = output_dir/merged

    bool operator==(const Checkpoint&) const = default;
  };

  struct Eval {
    Cadence eval_strategy = Cadence::kNo;    ///< resolved: kSteps if there is something to evaluate on
    std::optional<int64_t> eval_steps;       ///< unset: once an epoch, or by evals_per_epoch
    std::optional<int64_t> evals_per_epoch;  ///< eval_steps is that part of an epoch, rounded up
    std::optional<double> eval_steps_ratio;  ///< eval_steps is that part of all steps, rounded up
    bool eval_on_start = false;
    int64_t per_device_eval_batch_size = 1;  ///< resolved: per_device_train_batch_size unless stated
    bool load_best_model_at_end = false;
    ModelMetric metric_for_best_model = ModelMetric::kLoss;
    bool greater_is_better = false;       ///< resolved: by the metric unless stated
    int64_t early_stopping_patience = 0;  ///< evaluations in a row without improvement that end the run; 0: never
    double early_stopping_threshold = 0;  ///< an improvement is better by more than this

    bool operator==(const Eval&) const = default;
  };

  /// Sampling; unset: the model's generation_config.json, else the value named here.
  struct Generation {
    bool generate_samples = false;       ///< at each evaluation
    int64_t num_generation_samples = 3;  ///< drawn from the evaluation data
    int64_t max_new_tokens = 256;
    std::optional<double> temperature;         ///< 1
    std::optional<double> top_p;               ///< 1
    std::optional<int64_t> top_k;              ///< 0 = off
    std::optional<double> repetition_penalty;  ///< 1
    std::optional<bool> do_sample;             ///< false

    bool operator==(const Generation&) const = default;
  };

  Model model;
  Lora lora;
  Data data;
  Schedule schedule;
  Optim optim;
  Machine machine;
  Report report;
  Checkpoint checkpoint;
  Eval eval;
  Generation generation;

  bool operator==(const RunConfig&) const = default;
};

}  // namespace hone
