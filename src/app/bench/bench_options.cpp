#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include "app/bench/bench_model.h"
#include "app/bench/bench_ops.h"
#include "app/bench/bench_step.h"
#include "app/bench/bench_tokenizer.h"
#include "app/bench/grid/bench_grid.h"
#include "app/key_options.h"
#include "app/launched_ranks.h"
#include "app/verbs.h"
#include "core/base/error.h"

namespace hone {

namespace {

std::string shapes_text() {
  return fmt::format("{}, or a config.json or the folder of one", fmt::join(bench_model_names(), ", "));
}

/// Returns the verb: its options are the keys of a grid.
CLI::App* add_step(CLI::App& bench, Action& action) {
  CLI::App* verb =
      add_verb(bench, "step", "Speed and memory of a training step, with random weights",
               "  hone bench step --model qwen3-30b-a3b --mode lora --json step.json\n"
               "  hone bench step --model qwen3-30b-a3b --layers 8 --profile trace.json\n"
               "  hone bench step --model ./Qwen3-8B --recompute everything --opt-m-dtype int8 "
               "--opt-v-dtype int8\n"
               "  hone bench step --model ./Qwen3-30B-A3B --text corpus.txt    its tokens choose experts unevenly");
  auto options = std::make_shared<BenchStepOptions>();
  verb->add_option("--model", options->model, shapes_text())->required();
  verb->add_option("--layers", options->layers, "the first so many; 0: all")->capture_default_str();
  verb->add_option("--mode", options->mode, "full, lora (attention) or lora-all (experts or MLPs too)")
      ->capture_default_str();
  verb->add_option("--expert-lora", options->expert_lora, "with lora-all: shared (PEFT's target_parameters) or split")
      ->capture_default_str();
  verb->add_option("--seq", options->seq, "tokens of a document")->capture_default_str();
  verb->add_option("--batch", options->batch, "documents of a micro-batch")->capture_default_str();
  verb->add_option("--warmup", options->warmup, "steps before those that are timed")->capture_default_str();
  verb->add_option("--steps", options->steps, "steps that are timed")->capture_default_str();
  UsualValues usual = usual_in_bench_step();
  usual.emplace_back("lora_r", "16");  // with adapters
  add_keys(verb, options->keys, usual,
           {{"gradient_accumulation_steps", "--micro-batches"},
            {"lora_r"},
            {"lora_alpha"},
            {"use_dora"},
            {"lora_target_modules"},
            {"device"},
            {"dtype"},
            {"base_weight_dtype"},
            {"base_weight_keep"},
            {"fp8"},
            {"fp8_weight_gradients"},
            {"fp8_keep"},
            {"expert_weight_dtype"},
            {"grad_dtype"},
            {"master_dtype"},
            {"opt_m_dtype"},
            {"opt_v_dtype"},
            {"optim"},
            {"optimizer_in_backward"},
            {"gradient_checkpointing", "--recompute"},
            {"layer_input_dtype"},
            {"moe_token_tile"},
            {"mlp_token_tile"},
            {"cuda_graphs"},
            {"cpu_offload"},
            {"offload_expert_layers"},
            {"experts_device"},
            {"cpu_expert_layers"},
            {"zero_stage"},
            {"dp_shard_size", "--shard-size"},
            {"expert_parallel_size"},
            {"weight_fetch"}});
  add_tier(verb);
  add_threads(verb, options->threads);
  verb->add_option("--routing", options->routing,
                   "experts of the tokens: router, as random weights choose them; balanced; zipf or "
                   "zipf:S; or a run's expert_load.jsonl")
      ->capture_default_str();
  verb->add_option("--seed", options->seed, "of weights and tokens")->capture_default_str();
  verb->add_option("--text", options->text, "file of text that documents are cut from, instead of random tokens");
  verb->add_option("--tokenizer", options->tokenizer,
                   "with --text: a tokenizer.json, or the folder of one; default: the folder that --model names");
  add_output(verb, "--json", options->json, "file for the results, - for standard output");
  add_output(verb, "--profile", options->profile,
             "file for a time line of three more steps (chrome://tracing); with --experts-device cpu also FILE.host");
  add_force(verb, options->force, "replace these files even if they are not earlier results");
  verb->callback([=, &action] { action = [=] { return run_bench_step(*options, launched_ranks()); }; });
  return verb;
}

void add_grid(CLI::App& bench, const CLI::App* step, Action& action) {
  CLI::App* verb =
      add_verb(bench, "grid", "Steps of many scenarios: every combination of models, methods and settings",
               "  hone bench grid grid.yaml --dry-run           the commands it would run\n"
               "  hone bench grid grid.yaml --output results    rows that are there are not measured again\n"
               "  hone bench grid grid.yaml --only ranks=1,2 --only mode=lora\n"
               "  hone bench grid grid.yaml --retry failed\n"
               "  hone bench grid scenarios-moe.yaml --ranks 1,2,4 --global-batch 128    of fms-acceleration\n"
               "  hone bench grid grid.yaml --compare before/grid.jsonl    exit code 1 if one is 5 % slower");
  auto options = std::make_shared<BenchGridOptions>();
  verb->add_option("FILE", options->file, "YAML or JSON file of scenarios (docs/benchmarks.md)")->required();
  verb->add_option("--ranks", options->sizes.ranks, "of a file of scenarios: numbers of GPUs, with commas; default: 1")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(int64_t{1}, int64_t{4096}));
  verb->add_option("--global-batch", options->sizes.global_batch,
                   "of a file of scenarios: documents of a step of all ranks")
      ->check(CLI::PositiveNumber);
  add_output(verb, "--output", options->output, "folder for grid.jsonl and grid.csv; default: FILE's name with -grid");
  add_force(verb, options->force, "replace a grid.csv that is not of a grid");
  verb->add_flag("--dry-run", options->dry_run, "list the commands; run and write nothing");
  verb->add_option("--only", options->only, "KEY=VALUE,VALUE: only scenarios with one of these values; several times")
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  const auto add_words = [&](const char* name, std::vector<std::string>& words, const char* what) {
    verb->add_option(name, words, what)->delimiter(',')->allow_extra_args(false);
  };
  add_words("--retry", options->retry,
            "run again what failed, or, with commas: does-not-fit, refused, timed-out, crashed, measured, all");
  add_words("--memory", options->memory, "what memory is counted by: plan, device, host, or none; default: the file's");
  verb->add_option("--compare", options->compare, "grid.jsonl of an earlier grid");
  verb->callback([=, &action] { action = [=, keys = grid_keys(*step)] { return run_bench_grid(*options, keys); }; });
}

void add_ops(CLI::App& bench, Action& action) {
  CLI::App* verb =
      add_verb(bench, "ops", "Time of each op at a model's shapes, and its share of the machine's rates",
               "  hone bench ops\n"
               "  hone bench ops --model mixtral-8x7b --op moe --json now.json\n"
               "  hone bench ops --compare before.json      exit code 1 if an op is 5 % slower\n"
               "  hone bench ops --device cpu --threads 1,2,4,8,16      parallel efficiency of each op\n"
               "  hone bench ops --device cpu --tokens 512,1024,2048    is its cost linear?\n"
               "  hone bench ops --op moe --experts 8,16,32,64          with as many chosen for each token\n"
               "  hone bench ops --decode       of a pass of generation, in which 64 sequences add a token each");
  auto options = std::make_shared<BenchOpsOptions>();
  verb->add_option(
      "--model", options->model,
      shapes_text() + "; default: qwen3-30b-a3b on a GPU, cpu-moe on a CPU, or the first shape that has --op");
  verb->add_option("--op", options->op, "only the rows of this op (a folder of src/ops), or whose name contains this");
  const auto add_list = [&](const char* name, auto& values, const std::string& what) {
    verb->add_option(name, values, what + "; several, with commas: run with each of them")
        ->delimiter(',')
        ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  };
  add_list("--tokens", options->tokens, "rows of the ops; default: 16384 on a GPU, 2048 on a CPU, with --decode 64");
  add_list("--experts", options->experts, "in all; default: the model's");
  verb->add_option("--seq", options->seq, "tokens of a document")->capture_default_str();
  verb->add_flag(
      "--decode", options->decode,
      "ops of a pass of generation: each row adds a token to a sequence of --seq; on a GPU from a CUDA graph; of mixers"
      " only softmax attention");
  verb->add_option("--device", options->device, "auto, cpu or cuda")->capture_default_str();
  verb->add_option("--dtype", options->dtype, "bfloat16 or float32")->capture_default_str();
  verb->add_option("--fp8", options->fp8, "dense matrices multiply in 8-bit floats by this recipe, in all products")
      ->check(CLI::IsMember(names_of(all_choices<Fp8Recipe>())))
      ->capture_default_str();
  add_tier(verb);
  add_list("--threads", options->threads, "default: all cores");
  add_output(verb, "--json", options->json, "file for the results, - for standard output");
  add_force(verb, options->force, "replace that file even if it is not an earlier result");
  verb->add_option("--compare", options->compare, "JSON of an earlier run");
  verb->callback([=, &action] { action = [=] { return run_bench_ops(*options); }; });
}

void add_tokenizer(CLI::App& bench, Action& action) {
  CLI::App* verb =
      add_verb(bench, "tokenizer", "Speed of a tokenizer, per core and on all of them",
               "  hone bench tokenizer --tokenizer ./Qwen3-8B --text README.md --text src/text/tokenizer.cpp");
  auto options = std::make_shared<BenchTokenizerOptions>();
  verb->add_option("--tokenizer", options->tokenizer, "a tokenizer.json, or the folder of one")->required();
  verb->add_option("--text", options->texts, "a file of text; several have a row each")->required();
  verb->add_option("--chunk", options->chunk, "bytes that are encoded at once")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 27))
      ->capture_default_str();
  verb->add_option("--seconds", options->seconds, "for each number")->check(CLI::PositiveNumber)->capture_default_str();
  add_threads(verb, options->threads);
  add_output(verb, "--json", options->json, "file for the results, - for standard output");
  add_force(verb, options->force, "replace that file even if it is not an earlier result");
  verb->callback([=, &action] { action = [=] { return run_bench_tokenizer(*options); }; });
}

}  // namespace

void add_bench(CLI::App& app, Action& action) {
  CLI::App* bench =
      add_verb(app, "bench", "Speed of training steps, alone or many in a grid, of ops and of tokenizers",
               "  hone bench step --model qwen3-30b-a3b --mode lora    how fast this machine would train it\n"
               "  hone bench grid grid.yaml --dry-run\n"
               "  hone bench ops --model qwen3-30b-a3b\n"
               "  hone bench tokenizer --tokenizer ./Qwen3-8B --text README.md");
  bench->callback([bench, &action] {
    if (!bench->get_subcommands().empty()) return;
    action = []() -> int {
      throw UserError("hone bench needs to know what", "hone bench", "use hone bench step, grid, ops or tokenizer");
    };
  });
  add_grid(*bench, add_step(*bench, action), action);
  add_ops(*bench, action);
  add_tokenizer(*bench, action);
}

}  // namespace hone
