#include "app/inference/inference_options.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <utility>

#include "app/cli.h"
#include "app/key_options.h"
#include "core/base/error.h"

namespace hone {

void add_inference(CLI::App* verb, InferenceOptions& options, std::vector<std::string>* adapters) {
  verb->add_option("--model", options.model, "folder of a model or an adapter, or ORG/NAME of the Hugging Face hub")
      ->required();
  if (adapters == nullptr) {
    verb->add_option("--adapter", options.adapter, "folder of an adapter");
  } else {
    verb->add_option("--adapter", *adapters,
                     "folder of an adapter, or NAME=FOLDER; may be given several times: requests choose by name")
        ->expected(1)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  }
  verb->add_option("--chat-template", options.chat_template,
                   "Template to use instead of the model's: a Jinja file, or a name that is built in");
  verb->add_option("--chat-template-kwargs", options.chat_template_kwargs, "JSON object of variables for the template");
  verb->add_option("--enable-thinking", options.enable_thinking, "true or false: that variable of the template");
  verb->add_option("--split-special-tokens", options.split_special_tokens,
                   "true: special tokens in the text of messages are text; left out: as the training run had it");
  SamplingOverrides& sampling = options.sampling;
  verb->add_option("--max-new-tokens", sampling.max_new_tokens, "default: the model's, else 512");
  verb->add_option("--temperature", sampling.temperature, "0: always the most probable token");
  verb->add_option("--top-k", sampling.top_k, "only the k most probable tokens; 0: all");
  verb->add_option("--top-p", sampling.top_p, "only the most probable tokens that make up this share");
  verb->add_option("--repetition-penalty", sampling.repetition_penalty, "above 1: repeats less");
  verb->add_option("--do-sample", sampling.do_sample, "draw tokens at random; default: if one of the above says how");
  verb->add_option("--seed", sampling.seed, "seed of random sampling");
  add_keys(verb, options.keys, usual_in_inference(),
           {{"device"},
            {"dtype"},
            {"base_weight_dtype"},
            {"base_weight_keep"},
            {"expert_weight_dtype"},
            {"experts_device"},
            {"cpu_expert_layers"},
            {"cpu_offload"},
            {"frozen_weights"},
            {"offload_expert_layers"},
            {"stage3_param_persistence_threshold", "--param-persistence-threshold"},
            {"zero_stage"},
            {"expert_parallel_size"}});
  add_tier(verb);
  add_threads(verb, options.threads);
}

InferenceOptions parse_inference(std::vector<std::string> words) {
  CLI::App app("", "generate");
  InferenceOptions options;
  add_inference(&app, options);
  words.erase(words.begin());
  std::reverse(words.begin(), words.end());  // CLI11's order
  try {
    app.parse(std::move(words));
  } catch (const CLI::ParseError& error) {
    throw UserError(error.what(), "settings", "hone generate --help lists the options of a model and of sampling");
  }
  return options;
}

}  // namespace hone
