#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <memory>

#include "app/generate/generate.h"
#include "app/inference/inference_options.h"
#include "app/launch/launch.h"
#include "app/launched_ranks.h"
#include "app/verbs.h"
#include "core/base/error.h"

namespace hone {

void add_generate(CLI::App& app, Action& action, const std::vector<std::string>& arguments) {
  CLI::App* verb =
      add_verb(app, "generate", "Answers of a model, with or without an adapter",
               "  hone generate --model out/run1 --prompt \"What is a mixture of experts?\"\n"
               "  hone generate --model ./Qwen3-30B-A3B --adapter out/run1 --prompt Hello --temperature 0.7\n"
               "  hone generate --model out/run1 --input questions.jsonl --output answers.jsonl\n"
               "  hone generate --ranks 4 --model ./Qwen3-235B-A22B --input questions.jsonl --output answers.jsonl\n"
               "  hone generate --model ./Qwen3-235B-A22B --experts-device cpu --prompt Hello");
  auto options = std::make_shared<GenerateOptions>();
  auto ranks = std::make_shared<int>();
  *ranks = 1;
  add_inference(verb, *options);
  verb->add_option("--prompt", options->prompt, "the user's message; with --raw the start of a text");
  verb->add_option("--input", options->input,
                   "data as training reads them (docs/data.md), answers may be missing; .txt: a prompt a line");
  verb->add_option("--column-mapping", options->column_mapping,
                   "with --input: columns with other names, such as '{\"prompt\": \"customer\"}'");
  add_output(verb, "--output", options->output,
             "with --input: JSONL to write, - for standard output; repeated after a kill, the command goes on")
      ->capture_default_str();
  verb->add_option("--system", options->system, "system message of chats that have none");
  verb->add_flag("--raw", options->raw, "continue prompts as they are, without chat template");
  verb->add_option("--batch-size", options->batch_size, "sequences that run at once, on each rank")
      ->capture_default_str();
  verb->add_option(
      "--cache-tokens", options->cache_tokens,
      "tokens that the cache has room for, on each rank; sequences that find none wait. Default: the longest "
      "for each of --batch-size");
  verb->add_option("--ranks", *ranks, "number of ranks that share the prompts; as hone launch -n")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  add_force(verb, options->force, "replace the output file, and what another command has left of it");
  verb->callback([=, &action] {
    action = [=] {
      if (*ranks > 1 && !is_launched()) {
        const ResolvedConfig config =
            resolve_keys(usual_in_inference(), options->keys, {*ranks, *ranks}, RuleUse::kAlways);
        return run_launch({.ranks = *ranks, .device = config.run.machine.device, .arguments = arguments});
      }
      LaunchedRanks launched;
      if (*ranks > 1 && launched.size() != *ranks) {
        throw UserError(fmt::format("{} ranks have been started", launched.size()), "--ranks",
                        "leave it out: the launcher's number counts");
      }
      return launched.run([&] { return run_generate(*options, launched.for_trainer()); });
    };
  });
}

}  // namespace hone
