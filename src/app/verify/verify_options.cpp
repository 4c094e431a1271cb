#include <CLI/CLI.hpp>

#include <memory>

#include "app/key_options.h"
#include "app/launched_ranks.h"
#include "app/verbs.h"
#include "app/verify/verify.h"

namespace hone {

void add_verify(CLI::App& app, Action& action) {
  CLI::App* verb = add_verb(app, "verify", "Replay a reference case and hold every number against its bound",
                            "  hone verify cases/qwen3_moe\n"
                            "  hone verify cases/qwen3_moe --device cuda\n"
                            "  hone verify cases/qwen3_moe --dtype bfloat16 --json\n"
                            "  hone verify cases/llama_wide --dtype bfloat16 --fp8 rowwise\n"
                            "  hone verify cases/qwen3_moe --ranks 4 --zero-stage 3\n"
                            "  hone verify cases/qwen3_moe --ranks 4 --zero-stage 3 --shard-size 2\n"
                            "  hone verify cases/qwen3_moe --ranks 4 --zero-stage 1 --expert-parallel-size 2\n"
                            "  hone verify cases/qwen3_moe --device cuda --cpu-offload optimizer,params,activations\n"
                            "  hone verify cases/qwen3_moe --device cuda --experts-device cpu\n"
                            "  hone launch -n 2 -- verify cases/qwen3_moe --device cuda --zero-stage 3");
  auto options = std::make_shared<VerifyOptions>();
  verb->add_option("CASE_DIR", options->case_directory, "folder of the case")->required();
  verb->add_option("--ranks", options->ranks, "the case's runs alone, by so many ranks that train together")
      ->capture_default_str()
      ->check(CLI::Range(1, 64));
  add_keys(verb, options->keys, usual_in_verify(),
           {{"device"},
            {"dtype"},
            {"fp8"},
            {"fp8_weight_gradients"},
            {"fp8_keep"},
            {"cpu_offload"},
            {"experts_device"},
            {"cpu_expert_layers"},
            {"zero_stage"},
            {"dp_shard_size", "--shard-size"},
            {"expert_parallel_size"}});
  add_tier(verb);
  add_threads(verb, options->threads);
  add_json(verb, options->json);
  verb->callback([=, &action] { action = [=] { return run_verify(*options, launched_ranks()); }; });
}

}  // namespace hone
