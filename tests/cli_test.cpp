// Tests of the command line: verbs that do not train, errors of wrong input, and verbs that use a trained model.
#include <sys/wait.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "core/arena.h"
#include "core/cuda_device.h"
#include "device_main.h"
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
    EXPECT_TRUE(contains(env["cuda:0_kernels"].get<std::string>(), "grouped products sm")) << env.dump();
    for (const char* library : {"nvidia_driver", "cuda", "cublaslt", "nccl"}) EXPECT_TRUE(env.contains(library));
    const Json limited = Json::parse(run_hone({"env", "--json", "--tier", "general"}).out);
    EXPECT_TRUE(contains(limited["cuda:0_kernels"].get<std::string>(), "grouped products general")) << limited.dump();
    const Json ada = Json::parse(run_hone({"env", "--json", "--tier", "rtx-4090"}).out);
    EXPECT_TRUE(contains(ada["cuda:0_kernels"].get<std::string>(), "99 KB of shared memory")) << ada.dump();
  }
  EXPECT_TRUE(contains(run_hone({"env"}).out, "matrix products"));
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

TEST(CommandLine, AGpuIsEstimatedByItsName) {
  if (!cuda::built()) GTEST_SKIP() << "plans for GPUs need their kernels";
  const Folder folder;
  const std::string model = make_model(folder);
  const std::string refused = run_hone({"estimate", model, "--gpu", "none"}).err, list = "use one of ";
  ASSERT_TRUE(contains(refused, list)) << refused;
  std::istringstream names(refused.substr(refused.find(list) + list.size()));
  for (std::string gpu; names >> gpu && gpu != "or";) {
    if (gpu.back() == ',') gpu.pop_back();
    const Outcome outcome = run_hone({"estimate", model, "--gpu", gpu});
    EXPECT_EQ(outcome.code, 0) << gpu << ": " << outcome.err;
    EXPECT_TRUE(contains(outcome.out, "kernels of tier sm")) << gpu << ": " << outcome.out;
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
  // Each tensor begins at a multiple of Arena::kAlignment.
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
  ASSERT_EQ(variants.size(), 6u);
  EXPECT_LT(variants[1]["activations"].get<int64_t>(), variants[0]["activations"].get<int64_t>()) << "checkpointing";
  EXPECT_LT(variants[5]["weights"].get<int64_t>(), variants[3]["weights"].get<int64_t>()) << "packed";
}

TEST(Estimate, SaysWhatDoesNotFitAndWhatWould) {
  const Folder folder;
  Json config = tiny_config();
  config["max_position_embeddings"] = 1 << 20;
  const std::string model = make_model(folder, config);
  // No machine can hold the activations of many samples of a million tokens, but shorter samples fit.
  const Outcome outcome = run_hone({"estimate", model, "max_length=1048576", "per_device_train_batch_size=512"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_TRUE(contains(outcome.out, "does not fit")) << outcome.out;
  EXPECT_TRUE(contains(outcome.out, "It fits with")) << outcome.out;
  EXPECT_TRUE(contains(outcome.out, "per_device_train_batch_size: ")) << outcome.out;
}

TEST(Estimate, NamesTheFastestSettingThatFits) {
  const std::vector<std::string> run = {"granite-3b-a800m",
                                        "device=cpu",
                                        "max_length=512",
                                        "finetuning_type=lora",
                                        "lora_target_modules=attention",
                                        "per_device_train_batch_size=8"};
  const auto total = [&](std::vector<std::string> more) {
    more.insert(more.begin(), run.begin(), run.end());
    more.push_back("gradient_checkpointing=true");
    return estimate(more)["configured"]["total"].get<int64_t>();
  };
  const auto advice = [&](int64_t memory) {
    std::vector<std::string> words = {"estimate", "--memory", std::to_string(memory)};
    words.insert(words.end(), run.begin(), run.end());
    const Outcome outcome = run_hone(words);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.out;
  };
  const auto expect = [&](int64_t needed, const char* text) {
    const std::string said = advice(needed + needed / 1000);
    EXPECT_TRUE(contains(said, text)) << said;
  };
  expect(total({}), "It fits.");
  expect(
      total({"per_device_train_batch_size=2"}),
      "It fits with gradient_checkpointing: true, per_device_train_batch_size: 2 and gradient_accumulation_steps: 4");
  expect(total({"base_weight_dtype=nf4"}), "It fits with base_weight_dtype: nf4 and gradient_checkpointing: true");
}

TEST(Estimate, ChecksTheHostsMemoryToo) {
  const std::vector<std::string> host = {"estimate", "granite-3b-a800m", "device=cpu", "--host-memory", "1GB"};
  const Outcome of_cpu = run_hone(host);
  EXPECT_EQ(of_cpu.code, 2);
  EXPECT_TRUE(contains(of_cpu.err, "--host-memory")) << of_cpu.err;
  if (!cuda::built()) GTEST_SKIP() << "built without CUDA";
  const std::vector<std::string> run = {
      "granite-3b-a800m",     "device=cuda",         "--memory", "24GB", "max_length=512",
      "finetuning_type=lora", "cpu_offload=[params]"};
  const auto with_host = [&](const char* memory) {
    std::vector<std::string> words = run;
    words.insert(words.end(), {"--host-memory", memory});
    return words;
  };
  const Json enough = estimate(with_host("16GB"));
  EXPECT_GT(enough["configured"]["host"], 5'000'000'000);
  EXPECT_EQ(enough["host_available"], 16'000'000'000);
  EXPECT_EQ(enough["verdict"], "It fits.");
  const Json little = estimate(with_host("1GB"));
  EXPECT_TRUE(contains(little["verdict"], "It fits with cpu_offload: []")) << little["verdict"];
  EXPECT_EQ(estimate(run)["host_available"], nullptr) << "of a machine that is not known";
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
  // The value of an override before the configuration is not read as the configuration.
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
  EXPECT_GT(planned["configured"]["libraries"], 0);
  const Json host = estimate({model, "device=cpu", "max_length=64"});
  EXPECT_EQ(planned["configured"]["optimizer"], host["configured"]["optimizer"]);
  const Outcome small = run_hone({"estimate", model, "device=cuda", "--memory", "600MB"});
  EXPECT_TRUE(contains(small.out, "No setting makes it fit")) << small.out;
}

// Errors of wrong input: the message, the place, and the exit code.

using ::testing::AssertionFailure;
using ::testing::AssertionSuccess;

/// A model, valid data, and a run that a test makes invalid.
class Errors : public ::testing::Test {
 protected:
  Errors() : model_(make_model(folder_)), data_(folder_.write("data.jsonl", progressions(20))) {}

  Outcome train(const std::vector<std::string>& more = {}) const {
    return run_hone(train_arguments(model_, data_, folder_ / "out", more));
  }

  /// Replaces the bytes of a file of the model.
  void rewrite(const std::string& name, const std::string& content) const {
    std::ofstream(fs::path(model_) / name, std::ios::binary) << content;
  }
  std::string weights() const { return read_file(fs::path(model_) / "model.safetensors"); }

  Folder folder_;
  std::string model_, data_;
};

/// Checks that the program exited with `code` and printed all `texts` on standard error, in a few lines.
testing::AssertionResult fails(const Outcome& outcome, int code, const std::vector<std::string>& texts) {
  if (outcome.code != code) {
    return AssertionFailure() << "exit code " << outcome.code << ", not " << code << "\n" << outcome.err;
  }
  if (!outcome.err.starts_with("error: ")) return AssertionFailure() << "no error first\n" << outcome.err;
  if (std::count(outcome.err.begin(), outcome.err.end(), '\n') > 8) return AssertionFailure() << outcome.err;
  for (const std::string& text : texts) {
    if (outcome.err.find(text) == std::string::npos) {
      return AssertionFailure() << "'" << text << "' is not in\n" << outcome.err;
    }
  }
  return AssertionSuccess();
}

TEST_F(Errors, ABrokenLineOfDataIsNamedByFileAndLine) {
  folder_.write("data.jsonl", progressions(2) + "{\"input_ids\": [1, 2\n" + progressions(2));
  EXPECT_TRUE(fails(train(), 2, {"data.jsonl:3", "fix:"}));
}

TEST_F(Errors, AMissingColumnIsNamed) {
  folder_.write("data.jsonl", "{\"ids\": [1, 2, 3]}\n");
  EXPECT_TRUE(fails(train({"datasets=[{path: " + data_ + ", type: tokenized}]"}), 2, {"input_ids", "data.jsonl:1"}));
}

TEST_F(Errors, AnEmptyDataSetIsRefused) {
  folder_.write("data.jsonl", "");
  EXPECT_TRUE(fails(train(), 2, {"data.jsonl", "empty"}));
}

TEST_F(Errors, DataWithNothingToTrainOnIsRefused) {
  std::string rows;
  for (int i = 0; i < 5; ++i) rows += "{\"input_ids\": [1, 2, 3], \"labels\": [-100, -100, -100]}\n";
  folder_.write("data.jsonl", rows);
  EXPECT_TRUE(fails(train(), 2, {"data"}));
}

TEST_F(Errors, ATokenTheModelDoesNotHaveIsNamed) {
  folder_.write("data.jsonl", "{\"input_ids\": [1, 2, 64, 3]}\n");
  EXPECT_TRUE(fails(train(), 2, {"64", "data.jsonl:1"}));
}

TEST_F(Errors, TruncatedWeightsAreRefused) {
  const std::string whole = weights();
  rewrite("model.safetensors", whole.substr(0, whole.size() - 10));
  EXPECT_TRUE(fails(train(), 2, {"model.safetensors"}));
}

TEST_F(Errors, TensorsThatShareBytesAreRefused) {
  const std::string header = R"({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}, )"
                             R"("b": {"dtype": "F32", "shape": [4], "data_offsets": [8, 24]}})";
  const uint64_t size = header.size();
  std::string file(sizeof(size), '\0');
  std::memcpy(file.data(), &size, sizeof(size));
  rewrite("model.safetensors", file + header + std::string(24, '\0'));
  EXPECT_TRUE(fails(train(), 2, {"model.safetensors"}));
}

TEST_F(Errors, AShapeThatConfigDoesNotAskForIsNamed) {
  Json config = tiny_config();
  config["moe_intermediate_size"] = 8;
  rewrite("config.json", config.dump());
  EXPECT_TRUE(fails(train(), 2, {"mlp.experts.0.gate_proj.weight", "[16, 32]", "[8, 32]"}));
}

TEST_F(Errors, AMissingShardIsNamed) {
  rewrite("model.safetensors.index.json", R"({"weight_map": {"lm_head.weight": "model-00002-of-00002.safetensors"}})");
  EXPECT_TRUE(fails(train(), 2, {"model-00002-of-00002.safetensors"}));
}

TEST_F(Errors, AnErrorOfTheTemplateIsNamedByItsLine) {
  const std::string broken = folder_.write("broken.jinja", "{% for message in messages %}\n{{ message.content }\n");
  fs::copy_file(fs::path(HONE_SOURCE_DIR) / "tests/fixtures/tokenizers/qwen3/tokenizer.json",
                fs::path(model_) / "tokenizer.json");
  folder_.write("data.jsonl",
                R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})"
                "\n");
  EXPECT_TRUE(fails(train({"chat_template_file=" + broken}), 2, {"chat template", "broken.jinja:2"}));
}

TEST_F(Errors, AFolderThatCannotBeWrittenIsNamed) {
  // No user can make a folder below a file.
  const std::string below = data_ + "/out";
  EXPECT_TRUE(fails(run_hone(train_arguments(model_, data_, below)), 2, {"cannot be written", below}));
}

TEST_F(Errors, AnOutputFolderInUseIsRefusedWithoutResumeOrOverwrite) {
  folder_.write("out/precious.txt", "mine");
  EXPECT_TRUE(fails(train({"max_steps=1"}), 2, {"the output folder is not empty", "resume", "overwrite_output_dir"}));
  EXPECT_EQ(train({"max_steps=1", "overwrite_output_dir=true"}).code, 0);
  EXPECT_EQ(read_file(folder_ / "out/precious.txt"), "mine");
}

TEST_F(Errors, ALossThatIsNotANumberEndsTheRunWithThree) {
  // The last tensor of the file becomes NaN.
  std::string bytes = weights();
  for (size_t i = bytes.size() - 64; i < bytes.size(); i += 4) std::memcpy(&bytes[i], "\x00\x00\xc0\x7f", 4);
  rewrite("model.safetensors", bytes);
  const Outcome outcome = train({"dtype=float32"});
  EXPECT_TRUE(fails(outcome, 3, {"step 1", "not finite", "nonfinite-step-1.json"}));
  const Json dump = Json::parse(read_file(folder_ / "out/nonfinite-step-1.json"));
  EXPECT_FALSE(dump["sample_ids"].empty());
}

TEST_F(Errors, AnUnknownKeyIsNamedWithItsNeighbour) {
  EXPECT_TRUE(fails(train({"learning_rte=1"}), 2, {"learning_rte", "learning_rate"}));
}

TEST_F(Errors, AKeyOfALaterVersionIsNotIgnored) {
  EXPECT_TRUE(fails(train({"fp8=true"}), 2, {"fp8", "known, not in this version"}));
}

TEST_F(Errors, AModelThatIsNowhereNamesTheDownload) {
  EXPECT_TRUE(fails(run_hone({"train", "model=Nobody/Nothing-1B", "datasets=" + data_}), 2,
                    {"Nobody/Nothing-1B", "hf download Nobody/Nothing-1B"}));
}

TEST_F(Errors, AnArchitectureThatIsNotSupportedIsNamed) {
  Json config = tiny_config();
  config["architectures"] = {"MambaForCausalLM"};
  rewrite("config.json", config.dump());
  EXPECT_TRUE(fails(train(), 2, {"MambaForCausalLM", "Qwen3MoeForCausalLM"}));
}

TEST_F(Errors, APatternThatMatchesNothingIsNamed) {
  EXPECT_TRUE(fails(train({"finetuning_type=lora", "lora_target_modules=[q_prj]"}), 2, {"q_prj"}));
  EXPECT_TRUE(fails(train({"finetuning_type=lora", "exclude_modules=[v_proj,q_prj]"}), 2,
                    {"lora_exclude_modules", "'q_prj'", "Did you mean 'q_proj'"}));
}

TEST_F(Errors, MissingKeysOfARunAreNamed) {
  EXPECT_TRUE(fails(run_hone({"train", "datasets=" + data_}), 2, {"model_name_or_path is not stated"}));
  EXPECT_TRUE(fails(run_hone({"train"}), 2, {"no configuration", "hone init"}));
  EXPECT_TRUE(fails(run_hone({"train", (folder_ / "none.yaml").string()}), 2, {"none.yaml"}));
}

TEST_F(Errors, InitDoesNotOverwrite) {
  const std::string yaml = folder_.write("run.yaml", "mine");
  EXPECT_TRUE(fails(run_hone({"init", model_, "--output", yaml}), 2, {"exists already", yaml, "--force"}));
  EXPECT_EQ(read_file(yaml), "mine");
  const std::string config = (folder_ / "config.json").string();
  EXPECT_TRUE(fails(run_hone({"init", "--new-model", config, model_}), 2, {"not empty", "--force"}));
  // --force replaces only models.
  const std::string other = fs::path(folder_.write("other/precious.txt", "mine")).parent_path().string();
  EXPECT_TRUE(fails(run_hone({"init", "--new-model", config, other, "--force"}), 2, {"not empty"}));
  EXPECT_EQ(read_file(folder_ / "other/precious.txt"), "mine");
}

TEST(CommandLine, AnUnknownVerbOrOptionHasANeighbour) {
  EXPECT_TRUE(fails(run_hone({"trian"}), 2, {"'trian' is not a verb of hone", "'train'"}));
  EXPECT_TRUE(fails(run_hone({"inspect", "m", "--tensor"}), 2, {"--tensor", "'--tensors'"}));
  EXPECT_TRUE(fails(run_hone({"merge", "--model", "m"}), 2, {"--adapter", "hone merge --help"}));
}

// Verbs that use a trained model: comparison with its base, chat, conversion.

/// A tiny model, data that it learns quickly, and an adapter and a full model trained on them.
class AfterTraining : public testing::Test {
 protected:
  AfterTraining() : model_(make_model(folder_)), data_(folder_.write("data.jsonl", progressions(40))) {}

  std::string train(const std::string& name, const std::vector<std::string>& options) {
    std::vector<std::string> all = {"num_train_epochs=4", "dtype=float32", "learning_rate=1e-2"};
    all.insert(all.end(), options.begin(), options.end());
    const Outcome outcome = run_hone(train_arguments(model_, data_, folder_ / name, all));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return (folder_ / name).string();
  }
  std::string train_adapter(const std::string& name, std::vector<std::string> options = {}) {
    options.insert(options.end(), {"finetuning_type=lora", "lora_r=4", "lora_target_modules=[attention,all-experts]"});
    return train(name, options);
  }
  Outcome eval(const std::vector<std::string>& options) const {
    std::vector<std::string> all = {"eval",          "model=" + model_, "datasets=" + data_,
                                    "dtype=float32", "max_length=32",   "device=" + test_run().device};
    all.insert(all.end(), options.begin(), options.end());
    return run_hone(all);
  }
  Json evaluated(std::vector<std::string> options) const {
    options.push_back("--json");
    const Outcome outcome = eval(options);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return Json::parse(outcome.out, nullptr, false);
  }

  const Folder folder_;
  const std::string model_, data_;
};

TEST_F(AfterTraining, AnAdapterIsComparedWithTheSameModelWithoutIt) {
  const std::string adapter = train_adapter("lora");
  const Json base = evaluated({}), tuned = evaluated({"--adapter", adapter});
  const Json both = evaluated({"--adapter", adapter, "--base"});
  EXPECT_EQ(both["base"], base);
  EXPECT_EQ(both["tuned"], tuned);
  const double before = base["eval_loss"], after = tuned["eval_loss"];
  EXPECT_LT(after, before - 0.1);
  EXPECT_NEAR(both["improvement"]["eval_loss_percent"].get<double>(), 100 * (before - after) / before, 1e-9);
  const double perplexity = 100 * (1 - std::exp(after) / std::exp(before));
  EXPECT_NEAR(both["improvement"]["eval_perplexity_percent"].get<double>(), perplexity, 1e-9);
  EXPECT_EQ(Json::parse(read_file(folder_ / "lora/evaluation_results.json")), both);
  const std::string table = eval({"--adapter", adapter, "--base"}).out;
  EXPECT_NE(table.find("improvement"), std::string::npos) << table;
}

TEST_F(AfterTraining, AWholeModelIsComparedWithTheOneItBeganWith) {
  const std::string full = train("full", {});
  const Json both = evaluated({"--checkpoint", full, "--base", "--output", (folder_ / "results.json").string()});
  EXPECT_EQ(both["base"], evaluated({}));
  EXPECT_LT(both["tuned"]["eval_loss"].get<double>(), both["base"]["eval_loss"].get<double>() - 0.1);
  EXPECT_EQ(Json::parse(read_file(folder_ / "results.json")), both);
}

TEST_F(AfterTraining, FewerSamplesCanBeEvaluated) {
  const std::string first = folder_.write("first.jsonl", progressions(40).substr(0, progressions(3).size()));
  const Json some = evaluated({"--max-samples", "3"}), three = evaluated({"datasets=" + first});
  EXPECT_EQ(some, three);
  EXPECT_LT(some["num_tokens"].get<int>(), evaluated({})["num_tokens"].get<int>());
}

TEST_F(AfterTraining, SaysWhatCannotBeCompared) {
  const Outcome nothing = eval({"--base"});
  EXPECT_EQ(nothing.code, 2);
  EXPECT_NE(nothing.err.find("nothing to compare"), std::string::npos) << nothing.err;
  const Outcome none = eval({"--max-samples", "0"});
  EXPECT_EQ(none.code, 2);
  const Outcome absent = eval({"--adapter", (folder_ / "absent").string()});
  EXPECT_EQ(absent.code, 2);
  EXPECT_NE(absent.err.find("the checkpoint does not exist"), std::string::npos) << absent.err;
}

TEST_F(AfterTraining, AdaptersAreWrittenForServersAndComeBack) {
  const std::string split = train_adapter("split");
  const double expected = evaluated({"--adapter", split})["eval_loss"];
  for (const std::string layout : {"kt", "sglang", "target_parameters"}) {
    const std::string written = train_adapter(layout, {"adapter_layout=" + layout});
    // The layout of the files does not change the numbers, but kt has experts' adapters in bfloat16: A and B move by
    // at most 1 / 256 of themselves, and the loss by less than the adapter moved it times 2 / 256.
    const double bound = layout == "kt" ? 1e-3 : 1e-5;
    EXPECT_NEAR(evaluated({"--adapter", written})["eval_loss"].get<double>(), expected, bound) << layout;
    const std::string back = (folder_ / ("back_from_" + layout)).string();
    const Outcome outcome = run_hone({"convert", written, back, "--to", "split"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_NEAR(evaluated({"--adapter", back})["eval_loss"].get<double>(), expected, bound) << layout;
  }
  EXPECT_TRUE(fs::exists(folder_ / "kt/fused_expert_lora.safetensors"));
  EXPECT_TRUE(fs::exists(folder_ / "kt/kt_adapter_manifest.json"));
  EXPECT_TRUE(SafetensorsFile(folder_ / "sglang/adapter_model.safetensors")
                  .find("model.layers.0.mlp.experts.1.gate_proj.lora_A.weight"));
}

TEST_F(AfterTraining, AnAdapterIsExportedAsAModel) {
  const std::string adapter = train_adapter("lora"), exported = (folder_ / "exported").string();
  const Outcome outcome = run_hone({"export", adapter, exported, "--max-shard-size", "10KB"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_TRUE(fs::exists(folder_ / "exported/model.safetensors.index.json"));
  const double expected = evaluated({"--adapter", adapter})["eval_loss"];
  EXPECT_NEAR(evaluated({"--checkpoint", exported})["eval_loss"].get<double>(), expected, 1e-4);
}

TEST_F(AfterTraining, AModelIsExportedAsItIsOrInAnotherDtype) {
  const std::string same = (folder_ / "same").string(), narrow = (folder_ / "narrow").string();
  ASSERT_EQ(run_hone({"export", model_, same}).code, 0);
  EXPECT_EQ(read_file(folder_ / "same/model.safetensors"), read_file(fs::path(model_) / "model.safetensors"));
  ASSERT_EQ(run_hone({"export", model_, narrow, "--dtype", "bfloat16"}).code, 0);
  const SafetensorsFile file(folder_ / "narrow/model.safetensors");
  for (const SafetensorsEntry& entry : file.entries()) EXPECT_EQ(entry.dtype, DType::kBF16) << entry.name;
  const Outcome gguf = run_hone({"export", model_, same, "--format", "gguf"});
  EXPECT_EQ(gguf.code, 2);
  EXPECT_NE(gguf.err.find("not in this version"), std::string::npos) << gguf.err;
}

/// transformers and PEFT compute the same logits from the output of convert. Skipped with a message if Python or PEFT
/// is missing.
TEST(Peft, LoadsWhatConvertWrites) {
  const std::string script = std::string(HONE_SOURCE_DIR) + "/tools/check_adapter.py";
  for (const char* name : {"qwen3_moe", "mixtral"}) {
    const Folder folder;
    const std::string test_case = std::string(HONE_SOURCE_DIR) + "/tests/fixtures/goldens/" + name;
    for (const char* layout : {"split", "target_parameters"}) {
      const std::string adapter = (folder / layout).string();
      const Outcome outcome =
          run_hone({"convert", test_case + "/split_adapter", adapter, "--to", layout, "--model", test_case + "/model"});
      ASSERT_EQ(outcome.code, 0) << outcome.err;
      const std::string command =
          "python3 '" + script + "' '" + test_case + "' '" + adapter + "' > '" + (folder / "out").string() + "' 2>&1";
      const int status = std::system(command.c_str());
      const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
      if (code == 77 || code == 127) GTEST_SKIP() << "python3 with torch, transformers and peft is not here";
      EXPECT_EQ(code, 0) << name << " as " << layout << ": " << read_file(folder / "out");
    }
  }
}

TEST_F(AfterTraining, EvaluationNeedsNoKeysOfTraining) {
  const Outcome outcome = run_hone({"eval", "model_name_or_path=" + model_, "eval_datasets=" + data_, "dtype=float32",
                                    "max_length=32", "device=" + test_run().device, "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(Json::parse(outcome.out), evaluated({}));
  const Outcome nothing = run_hone({"eval", "model_name_or_path=" + model_});
  EXPECT_EQ(nothing.code, 2);
  EXPECT_NE(nothing.err.find("the evaluation data are missing"), std::string::npos) << nothing.err;
}

TEST_F(AfterTraining, TheSettingsOfTheTemplateStayWithTheResult) {
  const std::string adapter = train_adapter("lora", {"enable_thinking=false", "max_steps=2", "save_steps=1"});
  const Json expected = {{"chat_template_kwargs", {{"enable_thinking", false}}}};
  for (const char* folder : {"lora", "lora/checkpoint-1"}) {
    EXPECT_EQ(Json::parse(read_file(folder_ / folder / "hone_chat.json")), expected) << folder;
  }
  for (const auto& [verb, output] : {std::pair{"export", "exported"}, {"merge", "merged"}}) {
    std::vector<std::string> arguments = {verb};
    if (std::string(verb) == "export") {
      arguments.insert(arguments.end(), {adapter, (folder_ / output).string()});
    } else {
      arguments.insert(arguments.end(),
                       {"--model", model_, "--adapter", adapter, "--output", (folder_ / output).string()});
    }
    ASSERT_EQ(run_hone(arguments).code, 0);
    EXPECT_EQ(Json::parse(read_file(folder_ / output / "hone_chat.json")), expected) << verb;
  }
  // A run without template variables writes none, even if its base has some.
  const Outcome next = run_hone(
      train_arguments((folder_ / "merged").string(), data_, folder_ / "full", {"dtype=float32", "max_steps=1"}));
  ASSERT_EQ(next.code, 0) << next.err;
  EXPECT_FALSE(fs::exists(folder_ / "full/hone_chat.json"));
}

TEST_F(AfterTraining, ALayoutWithoutAPlaceForTheRouterIsRefusedBeforeTraining) {
  const Outcome outcome = run_hone(train_arguments(
      model_, data_, folder_ / "out", {"finetuning_type=lora", "train_router=true", "adapter_layout=sglang"}));
  EXPECT_EQ(outcome.code, 2);
  EXPECT_NE(outcome.err.find("trains the router too"), std::string::npos) << outcome.err;
}

}  // namespace
}  // namespace hone
