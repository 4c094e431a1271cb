// Tests of the command line: README.md beside what training saves.
#include <gmock/gmock.h>

#include "app/chat/chat_model_testing.h"
#include "program.h"
#include "weights/card_file.h"

namespace hone {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;
using Words = std::vector<std::string>;

class ModelCard : public testing::Test {
 protected:
  ModelCard() {
    // As the hub's cache has a model, whose id is then known.
    model_ = folder_ / "models--some-org--Some-Model" / "snapshots" / "0123456789abcdef0123456789abcdef01234567";
    write_chat_model(model_);
    data_ = folder_.write("my data.jsonl", std::string(R"({"question": "Hi", "answer": "yes"})") + "\n" +
                                               R"({"question": "And?", "answer": "no"})" + "\n");
  }

  std::string train(const std::string& name, const Words& more) const {
    Words all = {"dtype=float32", "eval_datasets=" + data_, "eval_strategy=steps", "eval_steps=2"};
    all.insert(all.end(), more.begin(), more.end());
    const Outcome outcome = run_hone(train_arguments(model_.string(), data_, folder_ / name, all));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return (folder_ / name).string();
  }
  std::string card(const std::string& folder) const { return read_file(folder_ / folder / "README.md"); }

  const Folder folder_;
  fs::path model_;
  std::string data_;
};

const Words kLora = {"max_steps=4",         "finetuning_type=lora", "lora_r=4", "lora_target_modules=[attention]",
                     "save_strategy=steps", "save_steps=2"};

TEST_F(ModelCard, OfAnAdapterSaysWhatPeftSaysAndWhatTheRunDid) {
  train("lora", kLora);
  const std::string text = card("lora");
  EXPECT_THAT(text, testing::StartsWith("---\nbase_model: some-org/Some-Model\nlibrary_name: peft\n"
                                        "pipeline_tag: text-generation\ntags:\n"
                                        "- base_model:adapter:some-org/Some-Model\n- lora\n- transformers\n---\n"));
  EXPECT_THAT(text, HasSubstr(kCardMarker));
  EXPECT_THAT(text, HasSubstr("`my data.jsonl`"));
  EXPECT_THAT(text, HasSubstr("| `lora_r` | `4` |"));
  EXPECT_THAT(text, HasSubstr("| eval_loss, last | "));
  EXPECT_THAT(text, HasSubstr(" after step 4 |"));
  EXPECT_THAT(text, Not(HasSubstr((folder_ / "").string())));  // no folder of this machine
  EXPECT_THAT(card("lora/checkpoint-2"), HasSubstr("after step 2"));
}

TEST_F(ModelCard, IsTheSameAfterAResume) {
  train("whole", kLora);
  train("stopped", kLora);
  for (const char* name : {"stopped/README.md", "stopped/adapter_model.safetensors"}) fs::remove(folder_ / name);
  fs::remove_all(folder_ / "stopped/checkpoint-4");
  Words resumed = kLora;
  resumed.push_back("resume_from_checkpoint=auto");
  train("stopped", resumed);
  EXPECT_EQ(card("stopped"), card("whole"));
  EXPECT_EQ(card("stopped/checkpoint-4"), card("whole/checkpoint-4"));
}

TEST_F(ModelCard, OfAUserStays) {
  train("lora", kLora);
  // Cards that the user has made theirs: later saves leave them, and they damage no checkpoint.
  folder_.write("lora/README.md", "mine\n");
  folder_.write("lora/checkpoint-4/README.md", "mine, too\n");
  Words more = kLora;
  more[0] = "max_steps=6";
  more.push_back("resume_from_checkpoint=auto");
  train("lora", more);
  EXPECT_EQ(card("lora"), "mine\n");
  EXPECT_EQ(card("lora/checkpoint-4"), "mine, too\n");
  EXPECT_THAT(card("lora/checkpoint-6"), HasSubstr("after step 6"));
}

TEST_F(ModelCard, OfAWholeModelAndOfAMergedOne) {
  train("full", {"max_steps=2"});
  EXPECT_THAT(card("full"), testing::StartsWith("---\nbase_model: some-org/Some-Model\nlibrary_name: transformers\n"
                                                "pipeline_tag: text-generation\ntags:\n- transformers\n---\n"));
  EXPECT_THAT(card("full"), Not(HasSubstr("lora")));
  train("lora", kLora);
  const Outcome merged = run_hone({"merge", "--model", model_.string(), "--adapter", (folder_ / "lora").string(),
                                   "--output", (folder_ / "merged").string()});
  ASSERT_EQ(merged.code, 0) << merged.err;
  EXPECT_THAT(card("merged"), HasSubstr("base_model: some-org/Some-Model"));
  EXPECT_THAT(card("merged"), HasSubstr("with the adapter `lora` merged into it"));
  EXPECT_THAT(card("merged"), HasSubstr("| `lora_r` | `4` |"));
  EXPECT_THAT(card("merged"), Not(HasSubstr("library_name: peft")));
}

}  // namespace
}  // namespace hone
