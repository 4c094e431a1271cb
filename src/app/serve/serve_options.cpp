#include <CLI/CLI.hpp>

#include <memory>

#include "app/inference/inference_options.h"
#include "app/serve/serve.h"
#include "app/verbs.h"

namespace hone {

void add_serve(CLI::App& app, Action& action) {
  CLI::App* verb =
      add_verb(app, "serve", "OpenAI's API and a chat page for a model, with or without an adapter",
               "  hone serve --model out/run1\n"
               "  hone serve --model ./Qwen3-30B-A3B --adapter out/run1 --batch-size 16 --max-length 8192\n"
               "  hone serve --model ./Qwen3-30B-A3B --adapter formal=out/run1 --adapter brief=out/run2\n"
               "  hone serve --model out/run1 --host 0.0.0.0 --api-key-file key.txt\n"
               "  curl localhost:8000/v1/chat/completions -d '{\"messages\": [{\"role\": \"user\", "
               "\"content\": \"Hello\"}]}'");
  auto options = std::make_shared<ServeOptions>();
  add_inference(verb, *options, &options->adapters);
  verb->add_option("--host", options->host, "address to listen at; another than the loopback needs a key")
      ->capture_default_str();
  verb->add_option("--port", options->port, "0: any that is free")->capture_default_str();
  verb->add_option("--name", options->name, "name of the model in requests; default: its folder's");
  verb->add_option("--api-key-file", options->api_key_file,
                   "file whose first line requests must know; default: the variable HONE_API_KEY, if it is set");
  verb->add_option("--batch-size", options->batch_size, "sequences that run at once")->capture_default_str();
  verb->add_option("--max-length", options->max_length,
                   "tokens of a prompt and its answer; default: the model's context, at most 4096");
  verb->add_option("--cache-tokens", options->cache_tokens,
                   "tokens that the cache has room for; sequences that find none wait. Default: the longest "
                   "for each of --batch-size");
  verb->add_option("--max-waiting", options->max_waiting, "sequences that may wait; further ones are refused")
      ->capture_default_str();
  verb->add_option("--timeout", options->timeout, "seconds until an answer ends with what there is")
      ->capture_default_str();
  verb->callback([=, &action] { action = [=] { return run_serve(*options); }; });
}

}  // namespace hone
