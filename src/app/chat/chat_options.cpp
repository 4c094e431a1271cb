#include <CLI/CLI.hpp>

#include <memory>

#include "app/chat/chat.h"
#include "app/inference/inference_options.h"
#include "app/verbs.h"

namespace hone {

void add_chat(CLI::App& app, Action& action) {
  CLI::App* verb = add_verb(app, "chat", "A conversation with a model, with or without an adapter",
                            "  hone chat --model out/run1\n"
                            "  hone chat --model ./Qwen3-30B-A3B --adapter out/run1 --system \"Be brief.\"\n"
                            "  hone chat --model ./Qwen3-30B-A3B --enable-thinking false --temperature 0.7\n"
                            "  printf 'Hello\\nAnd in French?\\n' | hone chat --model out/run1");
  auto options = std::make_shared<ChatOptions>();
  add_inference(verb, *options);
  verb->add_option("--system", options->system, "system message; /system changes it");
  verb->add_option("--max-length", options->max_length,
                   "tokens of the whole conversation; default: the model's context, at most 8192");
  verb->callback([=, &action] { action = [=] { return run_chat(*options); }; });
}

}  // namespace hone
