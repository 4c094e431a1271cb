#include <CLI/CLI.hpp>

#include <memory>
#include <string>
#include <vector>

#include "app/init/init.h"
#include "app/verbs.h"
#include "core/base/error.h"

namespace hone {

void add_init(CLI::App& app, Action& action) {
  CLI::App* verb =
      add_verb(app, "init", "Write a commented configuration for a model, or a new model with random weights",
               "  hone init ./Qwen3-30B-A3B --data data/chat.jsonl\n"
               "  hone init Qwen/Qwen3-8B --data openai/gsm8k --data-name main\n"
               "  hone init ./Qwen3-8B --method full --output full.yaml\n"
               "  hone init ./gpt-oss-20b --method qlora --data data/chat.jsonl\n"
               "  hone init --new-model config.json ./tiny --tokenizer ./Qwen3-8B --seed 7");
  auto options = std::make_shared<InitOptions>();
  auto create = std::make_shared<NewModelOptions>();
  auto folders = std::make_shared<std::vector<std::string>>();
  verb->add_option("MODEL", options->model, "model folder; with --new-model the folder to write");
  verb->add_option("--method", options->method, "lora, qlora (a 4-bit base beside the adapters) or full")
      ->capture_default_str();
  verb->add_option("--preset", options->preset, "quick, full, memory, conservative, balanced or aggressive");
  verb->add_option("--data", options->data,
                   "data set: a file (JSONL, JSON, CSV, TSV, Parquet, text), a folder of them, or ORG/NAME of the hub");
  verb->add_option("--data-name", options->data_name, "configuration of a data set of the hub");
  verb->add_option("--data-split", options->data_split, "its split; default: train");
  add_output(verb, "--output", options->output, "file to write, - for standard output")->capture_default_str();
  verb->add_option("--new-model", create->config, "config.json of a model to make: MODEL is then where");
  verb->add_option("--tokenizer", create->tokenizer, "with --new-model: folder whose tokenizer files are copied");
  verb->add_option("--dtype", create->dtype, "with --new-model: float32 or bfloat16; default: what the config says");
  verb->add_option("--seed", create->seed, "with --new-model: seed of the weights")->capture_default_str();
  add_threads(verb, create->threads);
  add_force(verb, options->force);
  verb->callback([=, &action] {
    action = [=] {
      if (options->model.empty()) {
        throw UserError("no model folder is given", "MODEL", "hone init --help has examples");
      }
      if (create->config.empty()) return run_init(*options);
      create->output = options->model;
      create->force = options->force;
      return run_new_model(*create);
    };
  });
}

}  // namespace hone
