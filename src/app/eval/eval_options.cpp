#include <CLI/CLI.hpp>

#include <memory>

#include "app/eval/eval.h"
#include "app/train/train_options.h"
#include "app/verbs.h"

namespace hone {

void add_eval(CLI::App& app, Action& action) {
  CLI::App* verb = add_verb(app, "eval", "Loss, perplexity and accuracy of a model on data",
                            "  hone eval run.yaml\n"
                            "  hone eval run.yaml --checkpoint out/run1\n"
                            "  hone eval run.yaml --adapter out/run1 --base --prompts questions.txt\n"
                            "  hone eval run.yaml eval_datasets=test.jsonl val_split=0 --json");
  auto options = add_config(verb);
  auto request = std::make_shared<EvalRequest>();
  verb->add_option("--checkpoint,--adapter,--adapter-path", request->checkpoint,
                   "evaluate this folder, a model or an adapter, instead of the configuration's");
  verb->add_flag("--base", request->base, "compare with the model before training");
  verb->add_option("--max-samples", request->max_samples, "only the first samples of the data");
  verb->add_option("--prompts", request->prompts, "file of prompts to answer: .txt, one a line, or .jsonl");
  add_output(verb, "--output", request->output,
             "JSON file to write; default with --base: evaluation_results.json in the checkpoint's folder");
  add_force(verb, request->force, "replace the output file, even if it is not an earlier evaluation");
  add_json(verb, request->json);
  add_tier(verb);
  verb->callback([=, &action] {
    action = [=] {
      request->run = request_of(*options, verb->remaining());
      return run_eval(*request);
    };
  });
}

}  // namespace hone
