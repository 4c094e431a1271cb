#include "config/alias_rules.h"
#include "config/schema_builder.h"

namespace hone {
namespace {

using Report = RunConfig::Report;
using Checkpoint = RunConfig::Checkpoint;
using Eval = RunConfig::Eval;
using Generation = RunConfig::Generation;
constexpr auto kReport = &RunConfig::report;
constexpr auto kCheckpoint = &RunConfig::checkpoint;
constexpr auto kEval = &RunConfig::eval;
constexpr auto kGeneration = &RunConfig::generation;

/// save_steps: 0.1 is a share of all steps.
std::function<std::string(const ConfigNode&)> share_of(const char* key) {
  return [=](const ConfigNode& node) {
    double value = 0;
    return parse_number(node.text, value) && value > 0 && value < 1 ? key : std::string();
  };
}

void add_report(GroupBuilder group) {
  group
      .key("output_dir",
           "Where checkpoints, metrics and logs are written. {KEY} in it is the resolved value of that key.")
      .field(kReport, &Report::output_dir)
      .type(KeyType::kPath);
  group.key("run_name", "Name of the run in logs and trackers.")
      .field(kReport, &Report::run_name)
      .default_note("the last part of output_dir")
      .alias({"name"});
  group.key("logging_steps", "Optimizer steps from one line of metrics to the next; a number below 1 is a ratio.")
      .field(kReport, &Report::logging_steps)
      .redirect(share_of("logging_steps_ratio"))
      .at_least(1);
  group.key("logging_steps_ratio", "The same as a share of all steps, rounded up.")
      .field(kReport, &Report::logging_steps_ratio)
      .above(0)
      .below(1);
  group.key("logging_first_step", "Log the first step whatever logging_steps says.")
      .field(kReport, &Report::logging_first_step);
  group.key("report_to", "Where metrics go (docs/monitoring.md), or none.")
      .field(kReport, &Report::report_to)
      .later({"all"})
      .spelled({{"none", ""}})
      .alias("use_tensorboard", weakly(either("jsonl,tensorboard", "jsonl")))
      .alias("use_mlflow", when_true("jsonl,tensorboard,mlflow"))
      .alias("enable_wandb", when_true("jsonl,tensorboard,wandb"))
      .alias("use_wandb", when_true("jsonl,tensorboard,wandb"))
      .alias("wandb", when_true("jsonl,tensorboard,wandb"))
      .alias("wandb.enabled", when_true("jsonl,tensorboard,wandb"))
      .alias("use_trackio", when_true("jsonl,tensorboard,trackio"));
  group.key("html_report", "Write report.html, a page that shows the run, into output_dir at the end of the run.")
      .field(kReport, &Report::html_report);
  group.key("logging_dir", "Folder of the TensorBoard files.")
      .field(kReport, &Report::logging_dir)
      .type(KeyType::kPath)
      .default_note("output_dir/runs");
  group.key("mlflow_tracking_uri", "MLflow's server (http://HOST:5000) or a folder.")
      .field(kReport, &Report::mlflow_tracking_uri)
      .default_note("MLFLOW_TRACKING_URI, else the folder mlruns");
  group.key("mlflow_experiment_name", "Experiment of MLflow that the run is in.")
      .field(kReport, &Report::mlflow_experiment_name)
      .default_note("MLFLOW_EXPERIMENT_NAME, else Default");
  group.key("mlflow_run_id", "Continue this run of MLflow.")
      .field(kReport, &Report::mlflow_run_id)
      .default_note("MLFLOW_RUN_ID, else a new one");
  group.key("mlflow_tags", "Tags of the run in MLflow; MLFLOW_TAGS adds to them.").field(kReport, &Report::mlflow_tags);
  group.key("wandb_project", "Project of Weights & Biases that the run is in.")
      .field(kReport, &Report::wandb_project)
      .default_note("WANDB_PROJECT, else the package's")
      .alias({"wandb.project"});
  group.key("wandb_entity", "User or team of Weights & Biases.")
      .field(kReport, &Report::wandb_entity)
      .default_note("WANDB_ENTITY, else the user's own")
      .alias({"wandb.entity"});
  group.key("wandb_name", "The run's name in Weights & Biases.")
      .field(kReport, &Report::wandb_name)
      .default_note("run_name")
      .alias({"wandb.name"});
  group.key("wandb_run_id", "Continue this run of Weights & Biases.")
      .field(kReport, &Report::wandb_run_id)
      .default_note("a new one");
  group.key("wandb_mode", "online, offline (files in output_dir/wandb, for wandb sync), or disabled.")
      .field(kReport, &Report::wandb_mode)
      .default_note("WANDB_MODE, else online")
      .alias({"wandb.mode"});
  group.key("wandb_tags", "Tags of the run in Weights & Biases.")
      .field(kReport, &Report::wandb_tags)
      .alias({"wandb.tags"});
  group.key("trackio_project", "Project of Trackio that the run is in.")
      .field(kReport, &Report::trackio_project)
      .default_note("hone");
  group.key("trackio_space_id", "Space of the hub that shows the run.")
      .field(kReport, &Report::trackio_space_id)
      .default_note("none: on this machine alone");
  group.key("metrics_port", "Port of GET /metrics (Prometheus), /status and /health; 0 is none.")
      .field(kReport, &Report::metrics_port)
      .at_least(0)
      .at_most(65535)
      .default_note("8000 with report_to prometheus, else 0")
      .alias({"otel_metrics_port"})
      .alias("use_otel_metrics", weakly(when_true("8000")));
  group
      .key("status_port",
           "Port of a page that shows the run while it runs (docs/monitoring.md), for browsers of this machine; 0 is "
           "none.")
      .field(kReport, &Report::status_port)
      .at_least(0)
      .at_most(65535);
  group.key("metrics_host", "Address that metrics_port and status_port listen on.")
      .field(kReport, &Report::metrics_host)
      .alias({"otel_metrics_host"});
}

void add_checkpoint(GroupBuilder group) {
  group.key("save_strategy", "When checkpoints are written.")
      .field(kCheckpoint, &Checkpoint::save_strategy)
      .spelled({{"none", "no"}, {"false", "no"}});
  group.key("save_steps", "Optimizer steps from one checkpoint to the next; a number below 1 is a ratio.")
      .field(kCheckpoint, &Checkpoint::save_steps)
      .redirect(share_of("save_steps_ratio"))
      .at_least(1)
      .default_note("once an epoch")
      .alias({"save_every", "ckpt_interval"});
  group.key("saves_per_epoch", "Checkpoints in an epoch, stated instead of save_steps.")
      .field(kCheckpoint, &Checkpoint::saves_per_epoch)
      .at_least(1);
  group.key("save_steps_ratio", "save_steps as a share of all steps, rounded up.")
      .field(kCheckpoint, &Checkpoint::save_steps_ratio)
      .above(0)
      .below(1);
  group.key("save_total_limit", "Checkpoints kept; the best and the last always are. null keeps all.")
      .field(kCheckpoint, &Checkpoint::save_total_limit)
      .at_least(1)
      .unset({"-1"})
      .alias({"ckpt_keep_n"});
  group.key("save_major_steps", "Checkpoints of multiples of this step are written and never deleted; 0: none.")
      .field(kCheckpoint, &Checkpoint::save_major_steps)
      .at_least(0)
      .alias({"ckpt_major"});
  group.key("save_only_model", "Leave out what only a resumed run needs.")
      .field(kCheckpoint, &Checkpoint::save_only_model);
  group.key("max_shard_size", "Largest safetensors file, such as 5GB or 500MiB.")
      .field(kCheckpoint, &Checkpoint::max_shard_size)
      .type(KeyType::kSize)
      .at_least(1);
  group
      .key("resume_from_checkpoint",
           "Continue a run: false, auto (the newest checkpoint of output_dir), best, or the path of one.")
      .field(kCheckpoint, &Checkpoint::resume_from_checkpoint)
      .type(KeyType::kPath)
      .rewrite(mapped({{"true", "auto"},
                       {"yes", "auto"},
                       {"latest", "auto"},
                       {"last", "auto"},
                       {"no", "false"},
                       {"none", "false"}}))
      .alias({"resume"})
      .alias("auto_resume_from_checkpoints", either("auto", "false", Emphasis::kWeak))
      .alias("continue", either("auto", "false", Emphasis::kWeak))
      .alias("load_best", decisive("best"));
  group
      .key("overwrite_output_dir",
           "Start anew in an output_dir that holds an earlier run, whose files are kept until the new run has saved.")
      .field(kCheckpoint, &Checkpoint::overwrite_output_dir);
  group
      .key("resume_only_model",
           "Take a checkpoint's weights and go on at its step, with an optimizer that starts anew.")
      .field(kCheckpoint, &Checkpoint::resume_only_model);
  group
      .key("ignore_data_skip",
           "On resume begin with the data from their start; with resume_only_model at step 0 as well.")
      .field(kCheckpoint, &Checkpoint::ignore_data_skip);
}

void add_eval(GroupBuilder group) {
  group.key("eval_strategy", "When to evaluate.")
      .field(kEval, &Eval::eval_strategy, {Cadence::kNo, Cadence::kSteps, Cadence::kEpoch})
      .spelled({{"none", "no"}, {"false", "no"}})
      .default_note("steps if eval_datasets or val_split is stated, else no")
      .alias({"evaluation_strategy"});
  group.key("eval_steps", "Optimizer steps from one evaluation to the next; a number below 1 is a ratio.")
      .field(kEval, &Eval::eval_steps)
      .redirect(share_of("eval_steps_ratio"))
      .at_least(1)
      .default_note("once an epoch")
      .alias({"run_val_every_n_steps"});
  group.key("evals_per_epoch", "Evaluations in an epoch, stated instead of eval_steps.")
      .field(kEval, &Eval::evals_per_epoch)
      .at_least(1);
  group.key("eval_steps_ratio", "eval_steps as a share of all steps, rounded up.")
      .field(kEval, &Eval::eval_steps_ratio)
      .above(0)
      .below(1);
  group.key("eval_on_start", "Evaluate before the first step.").field(kEval, &Eval::eval_on_start);
  group.key("per_device_eval_batch_size", "As per_device_train_batch_size, in evaluation.")
      .field(kEval, &Eval::per_device_eval_batch_size)
      .at_least(1)
      .default_note("per_device_train_batch_size")
      .alias({"eval_batch_size", "micro_eval_batch_size"});
  group.key("load_best_model_at_end", "The final model is the best checkpoint, not the last.")
      .field(kEval, &Eval::load_best_model_at_end);
  group.key("metric_for_best_model", "What makes a checkpoint the best.")
      .field(kEval, &Eval::metric_for_best_model)
      .spelled({{"loss", "eval_loss"},
                {"perplexity", "eval_perplexity"},
                {"mean_token_accuracy", "eval_mean_token_accuracy"}});
  group.key("greater_is_better", "Whether the best is the greatest.")
      .field(kEval, &Eval::greater_is_better)
      .default_note("true for accuracy, else false");
  group
      .key("early_stopping_patience",
           "Evaluations in a row without improvement of metric_for_best_model that end the run; 0: never.")
      .field(kEval, &Eval::early_stopping_patience)
      .at_least(0)
      .alias({"early_stopping_steps", "early_stop_interval"});
  group.key("early_stopping_threshold", "What an improvement must exceed.")
      .field(kEval, &Eval::early_stopping_threshold)
      .at_least(0);
}

void add_generation(GroupBuilder group) {
  group.key("generation.max_new_tokens", "Longest answer in tokens.")
      .field(kGeneration, &Generation::max_new_tokens)
      .at_least(1)
      .alias({"max_new_tokens"});
  group.key("generation.temperature", "Divides the logits; 0 is greedy.")
      .field(kGeneration, &Generation::temperature)
      .at_least(0)
      .default_note("the model's, else 1")
      .alias({"temperature"});
  group.key("generation.top_p", "Keep the likeliest tokens up to this probability.")
      .field(kGeneration, &Generation::top_p)
      .above(0)
      .at_most(1)
      .default_note("the model's, else 1")
      .alias({"top_p"});
  group.key("generation.top_k", "Keep so many tokens; 0 is off.")
      .field(kGeneration, &Generation::top_k)
      .at_least(0)
      .default_note("the model's, else 0")
      .alias({"top_k"});
  group.key("generation.repetition_penalty", "Divides the logits of tokens already there.")
      .field(kGeneration, &Generation::repetition_penalty)
      .above(0)
      .default_note("the model's, else 1")
      .alias({"repetition_penalty"});
  group.key("generation.do_sample", "Sample instead of taking the likeliest token.")
      .field(kGeneration, &Generation::do_sample)
      .default_note("the model's, else false")
      .alias({"do_sample"});
  group.later("generation.num_beams", KeyType::kInteger, "Beam search.").neutral(1).alias({"num_beams"});
  group
      .key("generate_samples",
           "At each evaluation answer a few prompts of its data, to the log and output_dir/generations.jsonl.")
      .field(kGeneration, &Generation::generate_samples)
      .alias({"predict_with_generate"});
  group.key("num_generation_samples", "How many prompts generate_samples answers.")
      .field(kGeneration, &Generation::num_generation_samples)
      .at_least(0);
}

void add_afterwards(GroupBuilder group) {
  group.key("merge_after_training", "LoRA: write the model with the adapter merged, as `hone merge` does.")
      .field(kCheckpoint, &Checkpoint::merge_after_training)
      .alias({"merge_and_save", "merge_lora", "merge_adapter"});
  group.key("export_dir", "Where merge_after_training writes.")
      .field(kCheckpoint, &Checkpoint::export_dir)
      .type(KeyType::kPath)
      .default_note("output_dir/merged")
      .alias({"merged_output_dir"});
  group.later("export_format", KeyType::kString, "Exports other than safetensors.")
      .neutral("safetensors")
      .instead(
          "leave it out; `hone export OUTPUT_DIR model.gguf --type q8_0` writes GGUF after the run, of LoRA an "
          "adapter's file")
      .alias("save_gguf", when_true("gguf"));
  group.later("push_to_hub", KeyType::kBool, "Uploads to the hub.").neutral(false);
  group.later("stage", KeyType::kString, "Training other than supervised fine-tuning: preferences (DPO, …), rewards.")
      .neutral("sft");
}

}  // namespace

void add_run_keys(std::vector<KeySpec>& table) {
  add_report({table, "Output and metrics"});
  add_checkpoint({table, "Checkpoints"});
  add_eval({table, "Evaluation"});
  add_generation({table, "Generation"});
  add_afterwards({table, "After training"});
}

void add_ignored_keys(std::vector<KeySpec>& table) {
  GroupBuilder group(table, "Recognised, no effect");
  group.no_effect("torch_compile", "The kernels are compiled already.")
      .alias({"torch_compile_backend", "torch_compile_mode"});
  group.no_effect("use_liger_kernel", "The fused kernels are always on.").alias({"enable_liger_kernel"});
  group.no_effect("attn_implementation", "Attention never builds the score matrix.")
      .alias({"flash_attn", "flash_attention", "use_flash_attention_2"});
  group.no_effect("use_fast_moe_block", "Experts always run as grouped products.").alias({"experts_implementation"});
  group.no_effect("trust_remote_code", "No code is loaded from a model's folder.");
  group.no_effect("ddp_find_unused_parameters", "Experts without tokens are handled.");
  group.no_effect("low_cpu_mem_usage", "Weights are read straight into place.");
  group
      .no_effect("ddp_backend",
                 "Ranks speak through NCCL on GPUs, through shared memory or TCP on CPUs. mpi is refused.")
      .later({"mpi"})
      .instead("remove it: ranks need no MPI, and mpirun starts them all the same");
  group.no_effect("dataloader_num_workers", "Batches are prepared by the threads.")
      .alias({"dataloader_pin_memory", "dataloader_prefetch_factor"});
  group.no_effect("preprocessing_num_workers", "Data are prepared by the threads.")
      .alias({"dataset_num_proc", "dataset_processes"});
  group.no_effect("overwrite_cache", "A cache of tokenized data that does not fit is never used.");
  group.no_effect("bnb_4bit_compute_dtype", "Products are in dtype.");
  group.no_effect("gradient_checkpointing_kwargs", "There is one way to recompute.");
  group.no_effect("tf32", "Float32 products are float32.");
  group.no_effect("full_determinism", "Every run is deterministic.");
  group.no_effect("use_liger_efficiency_callback", "Efficiency metrics are always written.");
  group.no_effect("logging_nan_inf_filter", "Numbers that are not finite are never hidden.");
  group.no_effect("include_num_input_tokens_seen", "Tokens are always counted.").alias({"include_tokens_per_second"});
  group.no_effect("do_train", "The verb says what is done.").alias({"do_eval", "do_predict"});
  group.no_effect("plot_loss", "The loss is in metrics.jsonl.");
  group.no_effect("remove_unused_columns", "Columns that are not needed are not read.");
  group.no_effect("save_safetensors", "Weights are always written as safetensors.");
  group.no_effect("hf_mlflow_log_artifacts", "Checkpoints are not uploaded.").alias({"mlflow_log_artifacts"});
  group.no_effect("wandb_watch", "Weights and gradients of single tensors are not sent to trackers.");
  group.no_effect("wandb_log_model", "Checkpoints are not uploaded.");
}

}  // namespace hone
