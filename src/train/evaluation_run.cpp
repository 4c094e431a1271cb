#include "train/evaluation_run.h"

#include "core/error.h"
#include "train/loaded_run.h"
#include "train/run_options.h"

namespace hone {

LossResult EvaluationRun::evaluate() const {
  const auto engine = evaluation_engine(described, context);  // planned for the currently attached adapters
  engine->reserve();
  return engine->evaluate(described.eval_batches);
}

EvaluationRun load_evaluation(RunConfig config, RunContext& context, std::optional<int64_t> max_samples) {
  DescribedRun run = describe_run(describe_model(std::move(config), context), context);
  if (run.eval_batches.empty() || max_samples) {
    const SampleStore& evaluated = run.data().eval.size() > 0 ? run.data().eval : run.data().train;
    run.eval_batches = Loader(evaluated, eval_loader_options(run.config)).all_in_order(max_samples);
  }
  const auto engine = evaluation_engine(run, context);
  run.model->store().allocate_dry(context.device());
  const MemoryPlan plan = engine->plan();
  if (const MemoryLimit limit = memory_limit(context.stream); !limit.fits(plan)) {
    throw does_not_fit("evaluation", plan, limit, "lower per_device_eval_batch_size or max_length");
  }
  load_weights(run, context, true);
  return {context, std::move(run)};
}

}  // namespace hone
