#include "data/formats/prompt_template.h"

#include <gmock/gmock.h>

#include "core/cpu/thread_pool.h"
#include "data/dataset/data_testing.h"
#include "data/dataset/dataset_builder.h"

namespace hone {
namespace {

using testing::HasSubstr;

PromptCompletion filled(const Json& json, const std::string& row, const Json& mapping = nullptr) {
  static const std::string where = "d.jsonl:1";
  const Json parsed = Json::parse(row);
  const ColumnMapping columns = ColumnMapping::parse(mapping, where);
  return PromptTemplate::parse(json, where).fill(RowColumns(parsed, "alpaca", where, columns));
}

const std::string kWithInput = R"({"instruction": "Add {}.", "input": "1 2", "output": "3", "system": "Be brief."})";
const std::string kWithout = R"({"instruction": "Say hi", "input": "", "output": "hi"})";

TEST(PromptTemplate, AlpacaIsAlpacasOwnText) {
  const PromptCompletion row = filled("alpaca", kWithInput);
  EXPECT_EQ(row.prompt,
            "Below is an instruction that describes a task, paired with an input that provides further context. Write "
            "a response that appropriately completes the request.\n\n### Instruction:\nAdd {}.\n\n### Input:\n1 2\n\n"
            "### Response:\n");
  EXPECT_EQ(row.completion, "3");
  EXPECT_TRUE(row.encoded_apart);
  EXPECT_EQ(filled("alpaca", kWithout).prompt,
            "Below is an instruction that describes a task. Write a response that appropriately completes the request."
            "\n\n### Instruction:\nSay hi\n\n### Response:\n");
  EXPECT_THAT(filled("alpaca_chat", kWithout).prompt, HasSubstr("request.\nUSER: Say hi\nASSISTANT:"));
  EXPECT_THAT(filled("alpaca_chatml", kWithInput).prompt, HasSubstr("<|im_start|>user\nAdd {}.\n1 2<|im_end|>\n"));
}

TEST(PromptTemplate, PlainIsInstructionInputAndOutputASpaceApart) {
  const PromptCompletion row = filled("plain", kWithInput);
  EXPECT_EQ(row.prompt + "|" + row.completion, "Add {}. 1 2| 3");
  EXPECT_EQ(filled("plain", kWithout).prompt, "Say hi");
}

TEST(PromptTemplate, AMappingSaysItAtLength) {
  const Json json = {{"format", "[INST] {instruction} {{{input}}} [/INST]"},
                     {"no_input_format", "[INST] {instruction} [/INST]"},
                     {"system_format", "<<{system}>> "},
                     {"system_prompt", "Help."}};
  EXPECT_EQ(filled(json, kWithInput).prompt, "<<Be brief.>> [INST] Add {}. {1 2} [/INST]");
  EXPECT_EQ(filled(json, kWithout).prompt, "<<Help.>> [INST] Say hi [/INST]");
  EXPECT_EQ(filled({{"format", "{instruction}:{input}"}}, kWithout).prompt, "Say hi:");
  EXPECT_EQ(filled({{"format", "Q: {instruction} A: "}}, R"({"question": "q", "answer": "a"})",
                   {{"instruction", "question"}, {"output", "answer"}})
                .prompt,
            "Q: q A: ");
}

TEST(PromptTemplate, RefusesWhatItCannotFill) {
  EXPECT_THAT(refusal([] { filled("alpacca", kWithout); }), HasSubstr("Did you mean 'alpaca'"));
  EXPECT_THAT(refusal([] { filled({{"format", "{instruction} {output}"}}, kWithout); }), HasSubstr("{output}"));
  EXPECT_THAT(refusal([] { filled({{"format", "{instruction} {"}}, kWithout); }), HasSubstr("brace"));
  EXPECT_THAT(refusal([] { filled({{"format", "{instruction} }"}}, kWithout); }), HasSubstr("brace"));
  EXPECT_THAT(refusal([] { filled({{"form", "{instruction}"}}, kWithout); }), HasSubstr("has no 'form'"));
  EXPECT_THAT(refusal([] { filled("alpaca", R"({"instruction": "a"})"); }), HasSubstr("output"));
}

/// The supervised text of two rows of a data set.
std::string learnt(const Tokenizer& tokenizer, DatasetEntry entry, ChatEncoderOptions chat, const std::string& rows) {
  const DataFolder folder;
  entry.path = folder.write("d.jsonl", rows);
  DataOptions options;
  options.datasets = {entry};
  options.chat = std::move(chat);
  options.vocab_size = 200'000;
  options.tolerant = true;
  ThreadPool pool(1);
  const TrainingData data = build_training_data(options, &tokenizer, pool);
  std::string text;
  for (int64_t i = 0; i < data.train.size(); ++i) {
    bool open = false;
    for (const MaskPiece& piece : preview_sample(data.train, i, &tokenizer)) {
      if (piece.supervised != open) text += open ? "]" : "[";
      open = piece.supervised;
      text += piece.text;
    }
    text += open ? "]\n" : "\n";
  }
  return text;
}

TEST(PromptTemplate, TheAnswerAndTheEndOfTheTextAreLearnt) {
  const Tokenizer qwen = qwen_tokenizer();
  DatasetEntry entry;
  entry.prompt_template = PromptTemplate::parse({{"format", "Q: {instruction}\n"}}, "");
  EXPECT_EQ(learnt(qwen, entry, {}, kWithout + "\n"), "Q: Say hi\n[hi<|im_end|>]\n");
  ChatEncoderOptions all;
  all.train_on = TrainOn::kAll;
  EXPECT_THAT(learnt(qwen, entry, all, kWithout + "\n"), HasSubstr("hi\nhi<|im_end|>]"));
  ChatEncoderOptions open;
  open.add_eos = false;
  EXPECT_EQ(learnt(qwen, entry, open, kWithout + "\n"), "Q: Say hi\n[hi]\n");
  EXPECT_THAT(refusal([&] { learnt(qwen, entry, {}, R"({"text": "a"})"); }), HasSubstr("rows of type alpaca"));
}

TEST(PromptTemplate, CompletionsOfAModelWithoutATemplateArePlainText) {
  const Tokenizer bare = fixture_tokenizer("qwen3", {{"eos_token", "<|im_end|>"}});
  ChatEncoderOptions options;
  options.train_on = TrainOn::kCompletion;
  EXPECT_EQ(learnt(bare, {}, options, kWithout + "\n"), "Say hi[ hi<|im_end|>]\n");
  EXPECT_THAT(refusal([&] { learnt(bare, {}, {}, kWithout + "\n"); }), HasSubstr("no chat template"));
  options.add_bos = true;
  EXPECT_THAT(refusal([&] { learnt(bare, {}, options, kWithout + "\n"); }), HasSubstr("no bos_token"));
}

TEST(PromptTemplate, IsEncodedApartByTokenizersThatPutASpaceInFront) {
  const Tokenizer mixtral = fixture_tokenizer("mixtral", {{"bos_token", "<s>"}, {"eos_token", "</s>"}});
  PromptCompletion row = filled("alpaca", kWithout);
  const SampleEncoder encoder(&mixtral, {}, 100'000);
  std::vector<int32_t> expected = mixtral.encode(row.prompt, true);
  const std::vector<int32_t> answer = mixtral.encode(row.completion, false);
  const size_t learnt_from = expected.size();
  expected.insert(expected.end(), answer.begin(), answer.end());
  expected.push_back(*mixtral.special_tokens().eos);
  const EncodedRow encoded = encoder.encode(row, "d:1");
  EXPECT_EQ(encoded.sample.input_ids, expected);
  EXPECT_EQ(encoded.sample.labels[learnt_from - 1], kIgnoredLabel);
  EXPECT_EQ(encoded.sample.labels[learnt_from], expected[learnt_from]);
}

}  // namespace
}  // namespace hone
