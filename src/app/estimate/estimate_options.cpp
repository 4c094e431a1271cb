#include <CLI/CLI.hpp>

#include <memory>
#include <string>

#include "app/estimate/estimate.h"
#include "app/verbs.h"

namespace hone {

void add_estimate(CLI::App& app, Action& action) {
  CLI::App* verb = add_verb(app, "estimate", "Memory a run needs, from headers alone",
                            "  hone estimate run.yaml\n"
                            "  hone estimate ./Qwen3-30B-A3B --method lora max_length=8192\n"
                            "  hone estimate qwen3-30b-a3b device=cuda --memory 80GB    before the download\n"
                            "  hone estimate run.yaml --gpu rtx-4090              a GPU that need not be there\n"
                            "  hone estimate run.yaml --ranks 8 zero_stage=3\n"
                            "  hone estimate run.yaml --ranks 16 fsdp=hybrid_shard\n"
                            "  hone estimate run.yaml per_device_train_batch_size=4 --json");
  auto options = std::make_shared<EstimateOptions>();
  auto method = std::make_shared<std::string>();
  verb->add_option("CONFIG_OR_MODEL,--config", options->target,
                   "configuration, model folder, config.json, or a name of bench step; then key=value")
      ->required();
  verb->add_option("--method", *method, "full, lora or qlora (a 4-bit base beside the adapters)");
  verb->add_option("--ranks", options->ranks, "how many train together")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  verb->add_option(
          "--ranks-of-host", options->ranks_of_host,
          "how many of them are on each host, for dp_shard_size: host and experts_device: cpu; 0: 8, or all if there "
          "are fewer")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  verb->add_option("--memory", options->memory, "memory of the device, such as 80GB; default: its free memory")
      ->transform(CLI::AsSizeValue(true));
  verb->add_option("--host-memory", options->host_memory,
                   "host memory for cpu_offload, of each rank; default: this machine's, for its own GPU")
      ->transform(CLI::AsSizeValue(true));
  verb->add_option("--gpu", options->gpu, "a GPU that need not be there: a100-80gb, rtx-4090, h200, …");
  add_json(verb, options->json);
  verb->callback([=, &action] {
    action = [=] {
      options->overrides = verb->remaining();
      if (*method == "qlora") options->overrides.emplace_back("base_weight_dtype=nf4");
      if (!method->empty()) options->overrides.push_back("finetuning_type=" + (*method == "qlora" ? "lora" : *method));
      return run_estimate(*options);
    };
  });
}

}  // namespace hone
