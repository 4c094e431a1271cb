// The verbs that do not train.
#include <sys/wait.h>

#include <cmath>
#include <cstdlib>

#include "core/arena.h"
#include "core/cuda_device.h"
#include "program.h"
#include "weights/safetensors.h"

namespace hone {
namespace {

namespace fs = std::filesystem;

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

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
  for (const char* verb : {"train", "eval", "validate", "estimate", "init", "inspect", "generate", "chat", "merge",
                           "convert", "verify", "schema", "env", "version", "quickstart"}) {
    const Outcome outcome = run_hone({verb, "--help"});
    EXPECT_EQ(outcome.code, 0) << verb;
    EXPECT_TRUE(contains(outcome.out, "Examples:\n  hone " + std::string(verb))) << outcome.out;
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
  }
  EXPECT_TRUE(contains(run_hone({"env"}).out, "matrix products"));
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

TEST(CommandLine, AReaderThatGoesAwayIsNoError) {
  const std::string command = "bash -c 'set -o pipefail; \"" + hone_program() + "\" schema | head -c 10 >/dev/null'";
  EXPECT_EQ(WEXITSTATUS(std::system(command.c_str())), 0);
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
  for (const char* text : {"Qwen3MoeForCausalLM", "4 a layer of width 16, 2 for each token", "12,288", "6,144",
                           "float32", "per expert, a tensor for each", "model.layers.*.self_attn.q_proj.weight",
                           "model.layers.*.mlp.experts.gate_up_proj", "only data of type tokenized"}) {
    EXPECT_TRUE(contains(outcome.out, text)) << text << " is not in\n" << outcome.out;
  }
  EXPECT_FALSE(contains(outcome.out, "model.layers.1.mlp.experts.3.down_proj.weight"));
  EXPECT_TRUE(contains(run_hone({"inspect", model, "--tensors"}).out, "model.layers.1.mlp.experts.3.down_proj.weight"));
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

Json estimate(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "estimate");
  arguments.push_back("--json");
  const Outcome outcome = run_hone(arguments);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  return Json::parse(outcome.out);
}

TEST(Estimate, CountsBytesByGroupFromHeaders) {
  const Folder folder;
  const std::string model = make_model(folder);
  int64_t parameters = 0;
  const SafetensorsFile file(model + "/model.safetensors");
  for (const SafetensorsEntry& entry : file.entries()) parameters += entry.numel();
  const Json full = estimate({model, "--method", "full", "max_length=64"})["configured"];
  // Every tensor begins at a multiple of Arena::kAlignment.
  const auto expect_bytes = [&](const char* group, int64_t tensors, int64_t bytes) {
    const int64_t filling = tensors * static_cast<int64_t>(file.entries().size() * Arena::kAlignment);
    EXPECT_GE(full[group].get<int64_t>(), bytes) << group;
    EXPECT_LE(full[group].get<int64_t>(), bytes + filling) << group;
  };
  expect_bytes("weights", 1, 2 * parameters);
  expect_bytes("master", 1, 4 * parameters);
  expect_bytes("gradients", 1, 4 * parameters);
  expect_bytes("optimizer", 2, 8 * parameters);
  const Json lora = estimate({model, "--method", "lora", "max_length=64"})["configured"];
  EXPECT_LT(lora["optimizer"].get<int64_t>(), full["optimizer"].get<int64_t>());
  const Json longer = estimate({model, "--method", "full", "max_length=128"})["configured"];
  EXPECT_GT(longer["activations"].get<int64_t>(), full["activations"].get<int64_t>());
  const Json variants = estimate({model, "max_length=128"})["variants"];
  ASSERT_EQ(variants.size(), 4u);
  EXPECT_LT(variants[1]["activations"].get<int64_t>(), variants[0]["activations"].get<int64_t>()) << "checkpointing";
}

TEST(Estimate, SaysWhatDoesNotFitAndWhatWould) {
  const Folder folder;
  Json config = tiny_config();
  config["max_position_embeddings"] = 1 << 20;
  const std::string model = make_model(folder, config);
  // A million tokens at once, times many: no machine holds their activations, but shorter samples fit.
  const Outcome outcome = run_hone({"estimate", model, "max_length=1048576", "per_device_train_batch_size=512"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_TRUE(contains(outcome.out, "does not fit")) << outcome.out;
  EXPECT_TRUE(contains(outcome.out, "It fits with")) << outcome.out;
  EXPECT_TRUE(contains(outcome.out, "per_device_train_batch_size: 1")) << outcome.out;
}

TEST(Estimate, NamesTheStageWithWhichRanksHoldTheRun) {
  const Outcome outcome = run_hone({"estimate", "granite-3b-a800m", "device=cpu", "finetuning_type=full",
                                    "max_length=512", "--ranks", "8", "--memory", "24GB"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_TRUE(contains(outcome.out, "does not fit")) << outcome.out;
  EXPECT_TRUE(contains(outcome.out, "It fits with zero_stage: ")) << outcome.out;
}

TEST(Estimate, RefusesWhatNoMicroBatchCanBe) {
  const Folder folder;
  const Outcome outcome = run_hone({"estimate", make_model(folder), "per_device_train_batch_size=100000000"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_TRUE(contains(outcome.err, "more than a micro-batch can be")) << outcome.err;
}

TEST(Estimate, TakesAConfiguration) {
  const Folder folder;
  const std::string model = make_model(folder);
  const std::string yaml = folder.write("run.yaml", "model_name_or_path: " + model + "\nlora_r: 4\nmax_length: 32\n");
  const Outcome outcome = run_hone({"estimate", yaml, "lora_r=8"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_TRUE(contains(outcome.out, "LoRA r 8")) << outcome.out;
  // The value of an override that stands before it is not the configuration.
  const Outcome before = run_hone({"estimate", "--lora-r", "9", "--packing", yaml, "--max-length", "64"});
  ASSERT_EQ(before.code, 0) << before.err;
  EXPECT_TRUE(contains(before.out, "LoRA r 9")) << before.out;
}

TEST(Estimate, PlansForAGpuThatIsNotThere) {
  if (!cuda::built()) GTEST_SKIP() << "built without CUDA";
  const Folder folder;
  const std::string model = make_model(folder);
  const Json planned = estimate({model, "device=cuda", "--memory", "80GB", "max_length=64"});
  EXPECT_EQ(planned["available"], 80'000'000'000);
  EXPECT_GT(planned["configured"]["fixed"], 0) << "CUDA's own";
  const Json host = estimate({model, "device=cpu", "max_length=64"});
  EXPECT_EQ(planned["configured"]["optimizer"], host["configured"]["optimizer"]);
  const Outcome small = run_hone({"estimate", model, "device=cuda", "--memory", "1GB"});
  EXPECT_TRUE(contains(small.out, "No setting makes it fit")) << small.out;
}

}  // namespace
}  // namespace hone
