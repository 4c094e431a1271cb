#include "train/run/evaluation_run.h"

#include "config/run_options.h"
#include "core/base/error.h"
#include "train/run/loaded_run.h"

namespace hone {

LossResult EvaluationRun::evaluate() const {
  const auto engine = evaluation_engine(described, group);  // planned for the currently attached adapters
  engine->reserve();
  return engine->evaluate(described.eval_batches);
}

std::vector<double> EvaluationRun::log_likelihoods(std::span<const ScoredText> texts) const {
  const auto engine = evaluation_engine(described, group);
  engine->reserve();
  std::vector<double> sums;
  for (const ScoredBatches& part : scored_batches(texts)) {
    const LossResult result = engine->evaluate(part.batches);
    for (int64_t i = 0; i < part.texts; ++i) {
      const DatasetLoss& loss = result.datasets[static_cast<size_t>(i)];
      sums.push_back(-loss.loss * loss.weight);
    }
  }
  return sums;
}

DescribedRun describe_evaluation(RunConfig config, RunContext& context, std::optional<int64_t> max_samples) {
  const bool has_data = !config.data.datasets.empty();
  DescribedModel model = describe_model(std::move(config), context, RunUse::kEvaluation);
  if (!has_data) return describe_without_data(std::move(model));
  DescribedRun run = describe_run(std::move(model), context);
  if (run.eval_batches.empty() || max_samples) {
    const SampleStore& evaluated = run.data().eval.size() > 0 ? run.data().eval : run.data().train;
    run.eval_batches = Loader(evaluated, eval_loader_options(run.config)).all_in_order(max_samples);
  }
  return run;
}

EvaluationRun load_evaluation(DescribedRun run, RankGroup& group) {
  choose_experts_device(run, group, RunUse::kEvaluation);
  choose_offload(run, group, RunUse::kEvaluation);
  group.share(rank_share(run.config, group.context().device(), group.context().ranks.rank));
  report_shared_experts(run, group.context().logger);
  require_evaluation_fits(run, group);
  load_weights(run, group.context(), true);
  return {group, std::move(run)};
}

}  // namespace hone
