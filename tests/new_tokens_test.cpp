// Tests of tokens that a run adds: rows of the embedding and the head, and what is saved, read again and merged.
#include <gmock/gmock.h>

#include <cmath>

#include "app/chat/chat_model_testing.h"
#include "device_main.h"
#include "program.h"
#include "weights/safetensors.h"

namespace hone {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t kOwn = 259, kAll = 261;  // tokens of byte_tokenizer(), and those with two more

/// A base model of 259 tokens, and chats for it in ChatML, whose two tokens it does not have.
class NewTokensRun : public testing::TestWithParam<bool> {
 protected:
  NewTokensRun() {
    folder_.write("tokenizer/tokenizer.json", byte_tokenizer().dump());
    folder_.write("tokenizer/tokenizer_config.json",
                  R"({"eos_token": "<|end|>", "tokenizer_class": "PreTrainedTokenizerFast"})");
    Json config = tiny_config();
    config["vocab_size"] = kOwn;
    config["tie_word_embeddings"] = GetParam();
    model_ = make_model(folder_, config, (folder_ / "tokenizer").string());
    const Json messages = {{{"role", "user"}, {"content", "Hi"}}, {{"role", "assistant"}, {"content", "Yo"}}};
    std::string rows;
    for (int i = 0; i < 16; ++i) rows += Json{{"messages", messages}}.dump() + "\n";
    data_ = folder_.write("chat.jsonl", rows);
  }

  Outcome train(const std::string& name, std::vector<std::string> more, int ranks = 1) const {
    more.insert(more.end(), {"chat_template=chatml", "add_special_tokens=[<|im_start|>,<|im_end|>]", "dtype=float32"});
    std::vector<std::string> arguments = train_arguments(model_, data_, folder_ / name, more);
    if (ranks > 1) {
      const std::string count = std::to_string(ranks);
      arguments.insert(arguments.begin(), {"launch", "-n", count, "--device", "cpu", "--"});
    }
    return run_hone(arguments);
  }
  std::string text() const { return folder_.write("text.jsonl", "{\"text\": \"some text\"}\n"); }
  Outcome generate(std::vector<std::string> more) const {
    more.insert(more.begin(), {"generate", "--prompt", "Hi", "--max-new-tokens", "4", "--dtype", "float32"});
    return run_hone(more);
  }
  double loss(const std::string& model, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments = {"eval",          "model=" + model, "datasets=" + data_,
                                          "dtype=float32", "max_length=32",  "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = run_hone(arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.code == 0 ? Json::parse(outcome.out)["eval_loss"].get<double>() : NAN;
  }
  std::vector<float> floats(const fs::path& file, const std::string& tensor) const {
    return SafetensorsFile(file).read_floats(tensor);
  }

  Folder folder_;
  std::string model_, data_;
};

TEST_P(NewTokensRun, GetTheMeanOfTheOthersRows) {
  const Outcome outcome = train("out", {"max_steps=1", "learning_rate=1e-12"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("261 rows"), HasSubstr("[[Yo<|im_end|>]]")));
  EXPECT_EQ(Json::parse(read_file(folder_ / "out/config.json"))["vocab_size"], kAll);
  std::vector<std::string> names = {"model.embed_tokens.weight"};
  if (!GetParam()) names.push_back("lm_head.weight");
  for (const std::string& name : names) {
    const std::vector<float> before = floats(fs::path(model_) / "model.safetensors", name),
                             after = floats(folder_ / "out/model.safetensors", name);
    const auto columns = static_cast<int64_t>(before.size()) / kOwn;
    ASSERT_EQ(static_cast<int64_t>(after.size()), kAll * columns);
    for (int64_t column = 0; column < columns; ++column) {
      double sum = 0;
      for (int64_t row = 0; row < kOwn; ++row) {
        sum += before[static_cast<size_t>(row * columns + column)];
        EXPECT_NEAR(after[static_cast<size_t>(row * columns + column)],
                    before[static_cast<size_t>(row * columns + column)], 1e-6);
      }
      for (int64_t row = kOwn; row < kAll; ++row) {
        EXPECT_NEAR(after[static_cast<size_t>(row * columns + column)], sum / kOwn, 1e-6) << name;
      }
    }
  }
  const Json tokenizer = Json::parse(read_file(folder_ / "out/tokenizer.json"));
  EXPECT_EQ(tokenizer["added_tokens"].back()["content"], "<|im_end|>");
  EXPECT_EQ(tokenizer["added_tokens"].back()["id"], kAll - 1);
  EXPECT_EQ(tokenizer["added_tokens"].back()["special"], true);
  EXPECT_EQ(generate({"--model", (folder_ / "out").string()}).code, 0);
}

TEST_P(NewTokensRun, AreTrainedAsOneRankTrainsThem) {
  ASSERT_EQ(train("one", {"max_steps=3"}).code, 0);
  const Outcome two = train("two", {"max_steps=3", "zero_stage=3", "gradient_accumulation_steps=1"}, 2);
  ASSERT_EQ(two.code, 0) << two.err;
  const std::vector<float> one = floats(folder_ / "one/model.safetensors", "model.embed_tokens.weight"),
                           other = floats(folder_ / "two/model.safetensors", "model.embed_tokens.weight");
  ASSERT_EQ(one.size(), other.size());
  double difference = 0, size = 0;
  for (size_t i = 0; i < one.size(); ++i) {
    difference += std::pow(one[i] - other[i], 2.0);
    size += std::pow(one[i], 2.0);
  }
  EXPECT_LE(std::sqrt(difference / size), 1e-3);  // three steps of 3e-3, which AdamW takes by the gradients' signs
}

TEST_P(NewTokensRun, AnAdapterHoldsTheirRows) {
  const std::vector<std::string> lora = {"finetuning_type=lora", "save_steps=1"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), lora.begin(), lora.end());
    return more;
  };
  const Outcome outcome = train("out", with({"max_steps=2"}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("lora_modules_to_save has embed_tokens, too"), HasSubstr("261 rows")));
  const std::string adapter = (folder_ / "out").string(), merged = (folder_ / "merged").string();
  const Outcome answer = generate({"--model", model_, "--adapter", adapter});
  EXPECT_EQ(answer.code, 0) << answer.err;
  const Outcome merge =
      run_hone({"merge", "--model", model_, "--adapter", adapter, "--output", merged, "--compare-logits"});
  ASSERT_EQ(merge.code, 0) << merge.err;
  EXPECT_EQ(Json::parse(read_file(fs::path(merged) / "config.json"))["vocab_size"], kAll);
  EXPECT_EQ(read_file(fs::path(merged) / "tokenizer.json"), read_file(folder_ / "out/tokenizer.json"));
  const double of_adapter = loss(model_, {"--checkpoint", adapter});
  EXPECT_NEAR(loss(merged), of_adapter, 1e-5 * of_adapter);
  EXPECT_EQ(generate({"--model", merged}).out, answer.out);
  const Outcome compared = run_hone({"eval", "model_name_or_path=" + model_, "datasets=" + data_, "dtype=float32",
                                     "max_length=32", "--checkpoint", adapter, "--base", "--json"});
  ASSERT_EQ(compared.code, 0) << compared.err;
  const double of_base = loss(model_, {"chat_template=chatml", "add_special_tokens=[<|im_start|>,<|im_end|>]"});
  EXPECT_NEAR(Json::parse(compared.out)["base"]["eval_loss"].get<double>(), of_base, 1e-6) << "without their rows";
  ASSERT_EQ(train("whole", with({"max_steps=3"})).code, 0);
  const Outcome resumed = train("out", with({"max_steps=3", "resume=auto"}));
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_TRUE(read_file(folder_ / "out/adapter_model.safetensors") ==
              read_file(folder_ / "whole/adapter_model.safetensors"));
}

TEST_P(NewTokensRun, AnAdapterBringsItsTokensToTheNextRun) {
  ASSERT_EQ(train("out", {"max_steps=1", "finetuning_type=lora"}).code, 0);
  const std::string adapter = (folder_ / "out").string();
  const std::vector<std::string> next = {"chat_template=chatml", "max_steps=1", "finetuning_type=lora", "dtype=float32",
                                         "adapter_name_or_path=" + adapter};
  const Outcome outcome = run_hone(train_arguments(model_, data_, folder_ / "next", next));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("the tokenizer is the adapter's"), HasSubstr("[[Yo<|im_end|>]]")));
  EXPECT_EQ(read_file(folder_ / "next/tokenizer.json"), read_file(folder_ / "out/tokenizer.json"));
  EXPECT_EQ(generate({"--model", model_, "--adapter", (folder_ / "next").string()}).code, 0);
  std::vector<std::string> more = next;
  more.push_back("add_tokens=[<more>]");
  const Outcome refused = run_hone(train_arguments(model_, data_, folder_ / "more", more));
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("rows for 261 tokens, and with the added ones there are 262"),
                                 HasSubstr("merge the adapter into its model")));
  fs::remove(folder_ / "out/tokenizer.json");
  for (const Outcome& lost :
       {generate({"--model", model_, "--adapter", adapter}),
        run_hone(train_arguments(model_, data_, folder_ / "lost", next)),
        run_hone({"merge", "--model", model_, "--adapter", adapter, "--output", adapter + "m"})}) {
    EXPECT_EQ(lost.code, 2) << lost.out;
    EXPECT_THAT(lost.err, AllOf(HasSubstr("rows for a vocabulary of 261 tokens and the model for 259"),
                                HasSubstr("copy the tokenizer")));
  }
}

TEST_P(NewTokensRun, AreLearntOnAPackedBase) {
  const Outcome outcome = train("out", {"max_steps=2", "finetuning_type=lora", "base_weight_dtype=nf4"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const std::vector<float> rows =
      floats(folder_ / "out/adapter_model.safetensors", "base_model.model.model.embed_tokens.weight");
  const auto columns = static_cast<std::ptrdiff_t>(rows.size()) / kAll;
  EXPECT_NE(std::vector<float>(rows.end() - 2 * columns, rows.end() - columns),
            std::vector<float>(rows.end() - columns, rows.end()))
      << "two rows that began as one differ";
}

TEST_P(NewTokensRun, AreCountedByEstimate) {
  const auto estimated = [&](std::vector<std::string> more) {
    std::vector<std::string> arguments = {"estimate", model_, "max_length=32", "dtype=float32", "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = run_hone(arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return Json::parse(outcome.out)["disk"]["model"].get<int64_t>();
  };
  const int64_t matrices = GetParam() ? 1 : 2, row = static_cast<int64_t>(tiny_config()["hidden_size"]) * 4;
  EXPECT_EQ(estimated({"add_tokens=[<x>,<y>,<z>]"}) - estimated({}), matrices * 3 * row);
  const Outcome said = run_hone({"estimate", model_, "max_length=32", "add_tokens=[<x>,<y>]"});
  EXPECT_THAT(said.out, HasSubstr("261 rows, 2 more than the model"));
}

/// transformers and PEFT encode the tokens, begin with the same rows and compute the same losses.
TEST_P(NewTokensRun, AreThoseOfTransformersAndPeft) {
  ASSERT_EQ(train("full", {"max_steps=1", "learning_rate=1e-12", "add_tokens=[<plain>]"}).code, 0);
  ASSERT_EQ(train("adapter", {"max_steps=3", "finetuning_type=lora", "add_tokens=[<plain>]"}).code, 0);
  const std::string ids =
      folder_.write("ids.jsonl", "{\"input_ids\": [260, 72, 108, 261, 13, 259, 9]}\n{\"input_ids\": [0, 261, 260]}\n");
  const std::string full = (folder_ / "full").string(), adapter = (folder_ / "adapter").string(),
                    written = (folder_ / "written").string(), printed = (folder_ / "printed").string();
  const std::string command = "python3 " HONE_SOURCE_DIR "/tools/check_new_tokens.py " + model_ + " " + full + " " +
                              adapter + " " + ids + " " + written + " > " + printed + " 2> " + printed + ".err";
  const int status = std::system(command.c_str());
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  if (code == 77 || code == 127) GTEST_SKIP() << "python3 with torch, transformers and peft is not here";
  ASSERT_EQ(code, 0) << read_file(printed) << read_file(printed + ".err");
  const Json theirs = Json::parse(read_file(printed));
  const std::vector<std::string> tokens = {"datasets=" + ids};
  EXPECT_NEAR(loss(full, tokens), theirs["full"].get<double>(), 1e-5);
  EXPECT_NEAR(loss(model_, {"datasets=" + ids, "--checkpoint", adapter}), theirs["adapter"].get<double>(), 1e-5);
  EXPECT_NEAR(loss(model_, {"datasets=" + ids, "--checkpoint", written}), theirs["written"].get<double>(), 1e-5);
  const Outcome merged = run_hone({"merge", "--model", model_, "--adapter", written, "--output", written + "_merged"});
  ASSERT_EQ(merged.code, 0) << merged.err;
  EXPECT_NEAR(loss(written + "_merged", tokens), theirs["written"].get<double>(), 1e-5);
}

TEST_P(NewTokensRun, ArePreparedAsTheyAreTrained) {
  const Outcome outcome = run_hone({"prepare", "model_name_or_path=" + model_, "datasets=" + data_, "max_length=32",
                                    "chat_template=chatml", "add_special_tokens=[<|im_start|>,<|im_end|>]"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("[[Yo<|im_end|>]]"));
}

TEST_P(NewTokensRun, NeedNoRowsWhereTheModelHasFreeOnes) {
  Json config = tiny_config();
  config["vocab_size"] = 264;
  config["tie_word_embeddings"] = GetParam();
  const Folder padded;
  const std::string model = make_model(padded, config, (folder_ / "tokenizer").string());
  const std::vector<std::string> more = {"chat_template=chatml", "add_special_tokens=[<|im_start|>,<|im_end|>]",
                                         "dtype=float32", "max_steps=1"};
  const Outcome outcome = run_hone(train_arguments(model, data_, folder_ / "out", more));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("2 new tokens, for which the 264 rows of the model suffice"));
  EXPECT_EQ(Json::parse(read_file(folder_ / "out/config.json"))["vocab_size"], 264);
  const Json tokenizer = Json::parse(read_file(folder_ / "out/tokenizer.json"));
  EXPECT_EQ(tokenizer["added_tokens"].back()["content"], "<|im_end|>");
  EXPECT_EQ(generate({"--model", (folder_ / "out").string()}).code, 0);
}

INSTANTIATE_TEST_SUITE_P(HeadIsTheEmbedding, NewTokensRun, testing::Bool(),
                         [](const auto& head) { return head.param ? "tied" : "untied"; });

class NewTokensSaid : public NewTokensRun {};

TEST_P(NewTokensSaid, WhatTheTokenizerHasIsNotAddedAgain) {
  const Outcome known = run_hone({"prepare", "model_name_or_path=" + model_, "datasets=" + text(), "max_length=32",
                                  "add_tokens=[<|user|>]", "resize_vocab=true"});
  ASSERT_EQ(known.code, 0) << known.err;
  EXPECT_THAT(known.out, AllOf(HasSubstr("add_tokens, resize_vocab: the tokenizer has '<|user|>' already"),
                               HasSubstr("no row is added, the model has 259 and the tokenizer 259 tokens")));
}

TEST_P(NewTokensSaid, OneTokenTwiceIsRefused) {
  const Outcome twice = train("out", {"max_steps=1", "add_tokens=[<a>,<b>,<a>]"});
  EXPECT_EQ(twice.code, 2);
  EXPECT_THAT(twice.err, HasSubstr("'<a>' is listed twice among the tokens to add"));
  const Outcome both = train("out", {"max_steps=1", "add_tokens=[<|im_end|>]"});
  EXPECT_THAT(both.err, HasSubstr("'<|im_end|>' is listed twice"));
}

TEST_P(NewTokensSaid, ATokenizerThatHasMoreTokensNeedsRows) {
  Json larger = byte_tokenizer();
  larger["added_tokens"].push_back({{"id", kOwn},
                                    {"content", "<more>"},
                                    {"single_word", false},
                                    {"lstrip", false},
                                    {"rstrip", false},
                                    {"normalized", false},
                                    {"special", true}});
  folder_.write("larger/tokenizer.json", larger.dump());
  folder_.write("larger/tokenizer_config.json",
                R"({"eos_token": "<|end|>", "tokenizer_class": "PreTrainedTokenizerFast"})");
  const std::vector<std::string> options = {"max_steps=1", "tokenizer_name_or_path=" + (folder_ / "larger").string()};
  const std::string data = folder_.write("more.jsonl", "{\"text\": \"a<more>b\"}\n{\"text\": \"a<more>b\"}\n");
  const Outcome refused = run_hone(train_arguments(model_, data, folder_ / "out", options));
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("token id 259 ('<more>')"), HasSubstr("resize_vocab: true")));
  std::vector<std::string> resized = options;
  resized.push_back("resize_vocab=true");
  const Outcome outcome = run_hone(train_arguments(model_, data, folder_ / "out", resized));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(Json::parse(read_file(folder_ / "out/config.json"))["vocab_size"], kOwn + 1);
}

INSTANTIATE_TEST_SUITE_P(HeadIsApart, NewTokensSaid, testing::Values(false));

}  // namespace
}  // namespace hone
