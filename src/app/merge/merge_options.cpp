#include <CLI/CLI.hpp>

#include <memory>

#include "app/merge/merge.h"
#include "app/verbs.h"

namespace hone {

void add_base_rounding(CLI::App* verb, std::string& dtype, std::vector<std::string>& keep) {
  verb->add_option("--base-weight-dtype", dtype,
                   "round the base as a run with that key did before the adapter is added: nf4, int4, …; default: the "
                   "weights of the files");
  verb->add_option("--base-weight-keep", keep, "patterns of weights that are not rounded")->delimiter(',');
}

void add_merge(CLI::App& app, Action& action) {
  CLI::App* verb = add_verb(app, "merge", "Merge an adapter into its base model, with a check of the result",
                            "  hone merge --model ./Qwen3-30B-A3B --adapter out/run1 --output merged");
  auto options = std::make_shared<MergeOptions>();
  verb->add_option("--model", options->model, "folder of the base model")->required();
  verb->add_option("--adapter", options->adapter, "folder of the adapter")->required();
  add_output(verb, "--output", options->output, "folder to write")->required();
  verb->add_option("--dtype", options->dtype, "dtype of the written weights: float32 or bfloat16; default: the base's");
  add_base_rounding(verb, options->base_weight_dtype, options->base_weight_keep);
  verb->add_flag("--compare-logits", options->compare_logits,
                 "also compare the logits of base + adapter and of the result on a few prompts: takes memory for the "
                 "model in float32");
  verb->add_option("--tolerance", options->tolerance,
                   "relative drift of float32 logits that is allowed; asks for --compare-logits");
  add_threads(verb, options->threads);
  add_force(verb, options->force, "replace the model in the output folder");
  verb->callback([=, &action] { action = [=] { return run_merge(*options); }; });
}

}  // namespace hone
