// The trainer's evaluations, and what follows from them: the best model and early stopping.
#include <cmath>

#include "train/best_metric.h"
#include "train/trainer.h"
#include "train/wall_clock.h"

namespace hone {

bool Trainer::evaluate(Reporter& reporter) {
  const WallClock::time_point begin = WallClock::now();
  reporter.on_progress({.label = "eval", .done = 0, .total = static_cast<int64_t>(eval_batches_.size())});
  const LossResult result = engine_->evaluate(eval_batches_);
  EvalMetrics metrics;
  metrics.step = state_.step;
  metrics.epoch = epoch_;
  metrics.eval_loss = result.loss;
  metrics.eval_perplexity = std::exp(result.loss);
  metrics.eval_mean_token_accuracy = result.mean_token_accuracy;
  metrics.dataset_loss = dataset_losses(result, training_data().eval_names);
  last_eval_loss_ = result.loss;
  answer_samples(metrics);
  metrics.seconds = seconds_since(begin);
  const std::string& name = config_.eval.metric_for_best_model;
  const double value = name == "eval_perplexity" ? metrics.eval_perplexity
                       : name == "eval_loss"     ? metrics.eval_loss
                                                 : result.mean_token_accuracy;
  const BestMetric judge{config_.eval.greater_is_better, config_.eval.early_stopping_threshold};
  const std::optional<double> best = state_.best_step < 0 ? std::nullopt : std::optional(state_.best_metric);
  metrics.is_best = judge.better(value, best);
  if (state_.step > 0) {
    state_.evals_without_improvement = judge.improves(value, best) ? 0 : state_.evals_without_improvement + 1;
    if (metrics.is_best) {
      state_.best_metric = value;
      state_.best_step = state_.step;
    }
  }
  reporter.on_eval(metrics);
  if (config_.model.moe_log_expert_load && state_.step > 0) show_expert_load();
  return metrics.is_best && state_.step > 0;
}

void Trainer::save_best_weights(Reporter& reporter) {
  const WallClock::time_point begin = WallClock::now();
  write_together([&](StateReader& state) {
    checkpoints_.write_best(state_.step, [&](const std::filesystem::path& temporary, FileChecksums& checksums) {
      save_model(temporary, adapter_layout(), state, checksums);
      write_trainer_state(reporter.state(), temporary.string());
    });
    run_folder_->keep_new();
    checkpoints_.drop_best({state_.step, saved_best_});
  });
  reporter.on_save({.path = checkpoints_.path_of(state_.step).string() + " (the best weights)",
                    .step = state_.step,
                    .seconds = seconds_since(begin)});
}

bool Trainer::stops_early() const {
  const int64_t patience = config_.eval.early_stopping_patience;
  return patience > 0 && state_.evals_without_improvement >= patience;
}

void Trainer::restore_best() {
  if (state_.best_step < 0 || state_.best_step == state_.step) return;
  const std::filesystem::path best = checkpoints_.path_of(state_.best_step);
  if (on_any_rank(!std::filesystem::exists(best))) {
    logger_.warning("the best weights, of step {}, are not in {}: those of the last step are saved", state_.best_step,
                    best.string());
    return;
  }
  stream_.synchronize();
  if (model_->lora()) {
    load_adapter(best, model_->store());
  } else {
    const Checkpoint weights = Checkpoint::open(best);
    load_parameters(weights, model_->map_of(weights), model_->store(), pool_);
  }
  logger_.info("the best model (step {}, {} {:.4f}) is the one that is saved", state_.best_step,
               config_.eval.metric_for_best_model, state_.best_metric);
}

void Trainer::load_for_evaluation(std::optional<int64_t> max_samples) {
  load_model_headers();
  load_data();
  if (eval_batches_.empty() || max_samples) {
    const TrainingData& data = training_data();
    const SampleStore& evaluated = data.eval.size() > 0 ? data.eval : data.train;
    eval_batches_ = Loader(evaluated, eval_loader_options(config_)).all_in_order(max_samples);
  }
  make_engine(false);
  model_->store().allocate_dry(stream_.device());
  const MemoryPlan plan = engine_->plan();
  if (const MemoryLimit limit = memory_limit(stream_); !limit.fits(plan)) {
    throw does_not_fit("evaluation", plan, limit, "lower per_device_eval_batch_size or max_length");
  }
  load_weights(true);
}

LossResult Trainer::evaluate_loaded() {
  make_engine(false);  // a new plan: adapters may have been taken off since the last one
  engine_->reserve();
  const LossResult result = engine_->evaluate(eval_batches_);
  engine_.reset();
  return result;
}

}  // namespace hone
