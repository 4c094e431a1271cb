// Tests of the command line: verbs that show something or make a model.
#include <sys/wait.h>

#include <cmath>
#include <csignal>
#include <cstdlib>

#include "core/cpu/cpu_features.h"
#include "core/cuda/cuda_device.h"
#include "core/files/environment_testing.h"
#include "program.h"
#include "weights/safetensors.h"

namespace hone {
namespace {

namespace fs = std::filesystem;

TEST(CommandLine, WithoutArgumentsShowsWhatThereIs) {
  for (const auto& arguments : {std::vector<std::string>{}, {"--help"}, {"help"}}) {
    const Outcome outcome = run_hone(arguments);
    EXPECT_EQ(outcome.code, 0);
    for (const char* text :
         {"fine-tunes", "hone init", "hone train run.yaml", "estimate", "generate", "merge", "verify", "env"}) {
      EXPECT_TRUE(contains(outcome.out, text)) << text;
    }
  }
}

TEST(CommandLine, EveryVerbHasHelpWithExamples) {
  for (const char* verb : {"train",      "eval",  "validate", "estimate", "init",   "inspect", "generate",
                           "chat",       "merge", "convert",  "verify",   "schema", "env",     "version",
                           "quickstart", "bench", "report",   "compare",  "status", "sweep"}) {
    const Outcome outcome = run_hone({verb, "--help"});
    EXPECT_EQ(outcome.code, 0) << verb;
    EXPECT_TRUE(contains(outcome.out, "Examples:\n  hone " + std::string(verb))) << outcome.out;
  }
}

TEST(CommandLine, HelpOfTrainNamesTheUsualKeysAndWhereTheOthersAre) {
  const std::string help = run_hone({"train", "--help"}).out, keys = run_hone({"schema", "--markdown"}).out;
  for (const char* key :
       {"model_name_or_path", "datasets", "finetuning_type", "base_weight_dtype", "max_length", "num_train_epochs",
        "per_device_train_batch_size", "global_batch_size", "learning_rate", "output_dir"}) {
    EXPECT_TRUE(contains(help, std::string("\n  ") + key)) << help;
    EXPECT_TRUE(contains(keys, std::string("| `") + key + "` |")) << key;
  }
  EXPECT_TRUE(contains(help, "docs/config.md, or hone schema")) << help;
}

TEST(CommandLine, HelpOfConvertConfigNamesEveryTool) {
  const std::string help = run_hone({"convert-config", "--help"}).out;
  EXPECT_TRUE(contains(help, "Python script")) << help;
  for (const char* tool : {"axolotl", "llama-factory-v1", "trl", "unsloth", "swift", "deepspeed", "accelerate"}) {
    EXPECT_TRUE(contains(help, tool)) << tool;
  }
}

TEST(CommandLine, HelpOfAVerbIsThatVerbsHelp) {
  EXPECT_EQ(run_hone({"help", "train"}).out, run_hone({"train", "--help"}).out);
  EXPECT_EQ(run_hone({"help", "bench", "step"}).out, run_hone({"bench", "step", "--help"}).out);
  EXPECT_EQ(run_hone({"help", "trian"}).code, 2);
}

TEST(CommandLine, AnOptionWithUnderscoresIsPointedToItsName) {
  for (const char* written : {"--dry_run", "dry_run=true"}) {
    const Outcome outcome = run_hone({"train", "run.yaml", written});
    EXPECT_EQ(outcome.code, 2);
    EXPECT_TRUE(contains(outcome.err, "write --dry-run")) << outcome.err;
  }
}

TEST(CommandLine, VersionAndEnvironment) {
  const Outcome version = run_hone({"version"});
  EXPECT_TRUE(version.out.starts_with("hone ")) << version.out;
  EXPECT_EQ(run_hone({"--version"}).out, version.out);
  const Json env = Json::parse(run_hone({"env", "--json"}).out);
  for (const char* key :
       {"version", "cpu", "features", "instruction_set", "cores", "memory_free", "build", "compiler"}) {
    EXPECT_TRUE(env.contains(key)) << key;
  }
  if (cuda::device_count() == 0) {
    EXPECT_EQ(env["gpu"], "none: " + cuda::why_no_device());
  } else {
    EXPECT_TRUE(contains(env["cuda:0"].get<std::string>(), "compute capability")) << env.dump();
    EXPECT_TRUE(contains(env["cuda:0_kernels"].get<std::string>(), "grouped products sm")) << env.dump();
    for (const char* library : {"nvidia_driver", "cuda", "cublaslt", "nccl"}) EXPECT_TRUE(env.contains(library));
    const Json limited = Json::parse(run_hone({"env", "--json", "--tier", "general"}).out);
    EXPECT_TRUE(contains(limited["cuda:0_kernels"].get<std::string>(), "grouped products general")) << limited.dump();
    const Json ada = Json::parse(run_hone({"env", "--json", "--tier", "rtx-4090"}).out);
    EXPECT_TRUE(contains(ada["cuda:0_kernels"].get<std::string>(), "99 KB of shared memory")) << ada.dump();
  }
  EXPECT_TRUE(contains(run_hone({"env"}).out, "matrix products"));
}

TEST(CommandLine, TheEnvironmentForcesAnInstructionSet) {
  for (const Isa isa : kIsas) {
    const std::string name(name_of(isa));
    const StatedVariable stated("HONE_INSTRUCTION_SET", name);
    const Outcome outcome = run_hone({"env", "--json"});
    if (isa > best_isa()) {
      EXPECT_EQ(outcome.code, 2) << outcome.out;
      EXPECT_TRUE(contains(outcome.err, "this machine does not run " + name + " kernels")) << outcome.err;
      continue;
    }
    const Json env = Json::parse(outcome.out);
    EXPECT_EQ(env["instruction_set"],
              name + " (HONE_INSTRUCTION_SET; the best here is " + std::string(name_of(best_isa())) + ")");
    EXPECT_EQ(env["matrix products"], name);
  }
  const StatedVariable wrong("HONE_INSTRUCTION_SET", "avx3");
  const Outcome outcome = run_hone({"train", "run.yaml"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_TRUE(contains(outcome.err, "HONE_INSTRUCTION_SET is 'avx3'")) << outcome.err;
  EXPECT_TRUE(contains(outcome.err, "write one of baseline, avx2, avx512, amx, or unset it")) << outcome.err;
}

TEST(CommandLine, ATierIsOneOfThoseThatThereAre) {
  EXPECT_EQ(run_hone({"env", "--tier", "sm90,rtx-4090"}).code, 0);
  for (const std::vector<std::string>& command : {std::vector<std::string>{"env"}, {"bench", "ops"}, {"train", "x"}}) {
    std::vector<std::string> arguments = command;
    arguments.insert(arguments.end(), {"--tier", "sm90,volta"});
    const Outcome outcome = run_hone(arguments);
    EXPECT_EQ(outcome.code, 2);
    EXPECT_TRUE(contains(outcome.err, "'volta' is neither a tier of GPU kernels")) << outcome.err;
  }
}

TEST(CommandLine, SchemaIsJsonOrADocument) {
  const Json schema = Json::parse(run_hone({"schema"}).out);
  EXPECT_TRUE(schema["properties"].contains("learning_rate"));
  EXPECT_EQ(run_hone({"schema", "--markdown"}).out, read_file(fs::path(HONE_SOURCE_DIR) / "docs/config.md"));
}

TEST(CommandLine, TheSupportTableOfTheReadmeIsTheRegistrys) {
  const std::string table = run_hone({"models", "--markdown"}).out;
  EXPECT_TRUE(contains(read_file(fs::path(HONE_SOURCE_DIR) / "README.md"), table)) << table;
  for (const Json& model : Json::parse(run_hone({"models", "--json"}).out)) {
    for (const Json& name : model["cases"]) {
      const fs::path config =
          fs::path(HONE_SOURCE_DIR) / "tests/fixtures/goldens" / name.get<std::string>() / "model/config.json";
      EXPECT_EQ(Json::parse(read_file(config))["architectures"][0], model["architecture"]) << config;
    }
  }
}

TEST(CommandLine, AReaderThatGoesAwayEndsTheProgramAsItDoesOthers) {
  const std::string command = "bash -c 'set -o pipefail; \"" + hone_program() + "\" schema | head -c 10 >/dev/null'";
  EXPECT_EQ(WEXITSTATUS(std::system(command.c_str())), 128 + SIGPIPE);
}

TEST(NewModel, IsAFunctionOfTheSeedAndLooksLikeAModel) {
  const Folder a, b, c;
  const std::string first = make_model(a), second = make_model(b);
  EXPECT_TRUE(read_file(first + "/model.safetensors") == read_file(second + "/model.safetensors"));
  ASSERT_EQ(run_hone({"init", "--new-model", (a / "config.json").string(), (c / "m").string(), "--seed", "4"}).code, 0);
  EXPECT_FALSE(read_file(first + "/model.safetensors") == read_file(c / "m/model.safetensors"));
  const SafetensorsFile file(first + "/model.safetensors");
  for (const float value : file.read_floats("model.norm.weight")) EXPECT_EQ(value, 1.0f);
  double sum = 0, squares = 0;
  const std::vector<float> head = file.read_floats("lm_head.weight");
  for (const float value : head) {
    sum += value;
    squares += static_cast<double>(value) * value;
  }
  const auto n = static_cast<double>(head.size());
  // 2048 draws with deviation 0.05: five standard errors of the mean and of the deviation.
  EXPECT_NEAR(sum / n, 0.0, 5 * 0.05 / std::sqrt(n));
  EXPECT_NEAR(std::sqrt(squares / n), 0.05, 5 * 0.05 / std::sqrt(2 * n));
  EXPECT_EQ(head.size(), 64u * 32u);
  EXPECT_TRUE(file.find("model.layers.1.mlp.experts.3.down_proj.weight")) << "experts are stored one by one";
}

TEST(NewModel, WritesTheDtypeThatIsAskedFor) {
  const Folder folder;
  const std::string config = folder.write("c.json", tiny_config().dump());
  ASSERT_EQ(run_hone({"init", "--new-model", config, (folder / "m").string(), "--dtype", "bfloat16"}).code, 0);
  const SafetensorsFile file(folder / "m/model.safetensors");
  for (const SafetensorsEntry& entry : file.entries()) EXPECT_EQ(entry.dtype, DType::kBF16);
  EXPECT_EQ(Json::parse(read_file(folder / "m/config.json"))["dtype"], "bfloat16");
  EXPECT_EQ(run_hone({"init", "--new-model", config, (folder / "n").string(), "--dtype", "int8"}).code, 2);
}

TEST(NewModel, RefusesATokenizerThatDoesNotFit) {
  const Folder folder;
  const Outcome outcome =
      run_hone({"init", "--new-model", folder.write("c.json", tiny_config().dump()), (folder / "m").string(),
                "--tokenizer", std::string(HONE_SOURCE_DIR) + "/tests/fixtures/tokenizers/qwen3"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_TRUE(contains(outcome.err, "vocab_size is 64")) << outcome.err;
  EXPECT_FALSE(fs::exists(folder / "m"));
}

TEST(Inspect, ShowsWhatAModelIs) {
  const Folder folder;
  const std::string model = make_model(folder);
  const Outcome outcome = run_hone({"inspect", model});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  // Experts: 2 layers x 4 experts x 3 x 16 x 32; half of them are active for a token.
  for (const char* text : {"Qwen3MoeForCausalLM", "4 per layer of width 16, 2 per token", "12,288", "6,144", "float32",
                           "per expert, a tensor for each", "model.layers.*.self_attn.q_proj.weight",
                           "model.layers.*.mlp.experts.gate_up_proj", "only data of type tokenized"}) {
    EXPECT_TRUE(contains(outcome.out, text)) << text << " is not in\n" << outcome.out;
  }
  EXPECT_FALSE(contains(outcome.out, "model.layers.1.mlp.experts.3.down_proj.weight"));
  EXPECT_TRUE(contains(run_hone({"inspect", model, "--tensors"}).out, "model.layers.1.mlp.experts.3.down_proj.weight"));
}

TEST(Inspect, NamesFieldsThatAreNotKnown) {
  const Folder folder;
  Json config = tiny_config();
  config["final_logit_softcapping"] = 30.0;
  const Outcome strange = run_hone({"inspect", make_model(folder, config)});
  ASSERT_EQ(strange.code, 0) << strange.err;
  EXPECT_TRUE(contains(strange.out, "final_logit_softcapping")) << strange.out;
  // Configs of released architectures have no unknown fields.
  for (const auto& entry : fs::directory_iterator(std::string(HONE_SOURCE_DIR) + "/tests/fixtures/goldens")) {
    const Outcome known = run_hone({"inspect", (entry.path() / "model/config.json").string()});
    ASSERT_EQ(known.code, 0) << known.err;
    EXPECT_FALSE(contains(known.out, "fields not known")) << entry.path() << known.out;
  }
}

TEST(Inspect, ShowsTheTemplateWithWhatIsLearnt) {
  const Folder folder;
  const std::string fixtures = std::string(HONE_SOURCE_DIR) + "/tests/fixtures/";
  fs::create_directories(folder / "tokenizer");
  fs::copy_file(fixtures + "tokenizers/qwen3/tokenizer.json", folder / "tokenizer/tokenizer.json");
  fs::copy_file(fixtures + "templates/chatml.jinja", folder / "tokenizer/chat_template.jinja");
  folder.write("tokenizer/tokenizer_config.json", R"({"eos_token": "<|im_end|>"})");
  Json config = tiny_config();
  config["vocab_size"] = 151936;
  const Outcome outcome = run_hone({"inspect", make_model(folder, config, (folder / "tokenizer").string())});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_TRUE(contains(outcome.out, "[[4.<|im_end|>]]")) << outcome.out;
  EXPECT_TRUE(contains(outcome.out, "<|im_end|> (")) << outcome.out;
}

TEST(Inspect, ShowsWhatAnAdapterIs) {
  const Outcome outcome =
      run_hone({"inspect", std::string(HONE_SOURCE_DIR) + "/tests/fixtures/goldens/qwen3_moe/lora_attention_init"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  for (const char* text :
       {"LORA adapter", "lora_alpha", "base_model.model.model.layers.*.self_attn.q_proj.lora_A.weight"}) {
    EXPECT_TRUE(contains(outcome.out, text)) << text << " is not in\n" << outcome.out;
  }
}

}  // namespace
}  // namespace hone
