// Tests of the command line: errors of wrong input, with the message, the place and the exit code.
#include <algorithm>
#include <cstring>
#include <fstream>

#include "core/files/environment_testing.h"
#include "program.h"

namespace hone {
namespace {

namespace fs = std::filesystem;

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
  // The last values of the file become so large that products with them overflow.
  std::string bytes = weights();
  for (size_t i = bytes.size() - 64; i < bytes.size(); i += 4) std::memcpy(&bytes[i], "\xe6\xb1\x61\x7f", 4);
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
  EXPECT_TRUE(fails(train({"fp16=true"}), 2, {"fp16", "known, not in this version"}));
}

TEST_F(Errors, AModelThatIsNowhereNamesTheDownload) {
  const StatedVariable offline("HF_HUB_OFFLINE", "1");
  EXPECT_TRUE(fails(run_hone({"train", "model=Nobody/Nothing-1B", "datasets=" + data_}), 2,
                    {"Nobody/Nothing-1B", "hone download Nobody/Nothing-1B"}));
}

TEST_F(Errors, AnArchitectureThatIsNotSupportedIsNamed) {
  Json config = tiny_config();
  config["architectures"] = {"MambaForCausalLM"};
  rewrite("config.json", config.dump());
  EXPECT_TRUE(fails(train(), 2, {"MambaForCausalLM", "Qwen3MoeForCausalLM"}));
}

TEST_F(Errors, APatternThatMatchesNothingIsNamed) {
  EXPECT_TRUE(fails(train({"finetuning_type=lora", "lora_target_modules=[q_prj]"}), 2, {"q_prj"}));
  EXPECT_TRUE(fails(train({"finetuning_type=lora", "lora_exclude_modules=[v_proj,q_prj]"}), 2,
                    {"lora_exclude_modules", "'q_prj'", "Did you mean 'q_proj'"}));
  const Outcome warned = train({"finetuning_type=lora", "exclude_modules=[v_proj,q_prj]", "max_steps=1"});
  EXPECT_EQ(warned.code, 0) << warned.err;
  EXPECT_TRUE(contains(warned.out + warned.err, "'q_prj' matches nothing in this model. Did you mean 'q_proj'"))
      << warned.out << warned.err;
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

}  // namespace
}  // namespace hone
