// The examples of docs/data.md are read as it says.
#include <gmock/gmock.h>

#include <map>
#include <sstream>

#include "app/config/resolve.h"
#include "core/thread_pool.h"
#include "data/data_testing.h"
#include "data/dataset_builder.h"
#include "train/run_options.h"

namespace hone {
namespace {

/// Writes each block of docs/data.md that names a file ("```csv faq.csv"); gives the names in their order.
std::vector<std::string> write_examples(const DataFolder& folder) {
  std::ifstream docs(std::string(HONE_SOURCE_DIR) + "/docs/data.md");
  std::vector<std::string> names;
  std::string content;
  bool inside = false;
  for (std::string line; std::getline(docs, line);) {
    const size_t space = line.find(' ');
    if (inside && line == "```") {
      folder.write(names.back(), content);
      inside = false;
    } else if (inside) {
      content += line + "\n";
    } else if (line.starts_with("```") && space != std::string::npos) {
      names.push_back(line.substr(space + 1));
      content.clear();
      inside = true;
    }
  }
  return names;
}

class DataDocs : public testing::Test {
 protected:
  DataDocs() : names_(write_examples(folder_)) {}

  TrainingData build(const std::string& yaml) {
    const ResolvedConfig config = load_config(folder_.write("run.yaml", "model: m\nmax_length: 512\n" + yaml), {});
    DataOptions options = data_options(config.run, tokenizer_.vocab_size(), "");
    return build_training_data(options, &tokenizer_, pool_);
  }
  std::string learnt(const TrainingData& data) const {
    std::string text;
    for (const PreviewToken& token : preview_sample(data.train, 0, &tokenizer_))
      text += token.supervised ? token.text : "";
    return text;
  }

  DataFolder folder_;
  std::vector<std::string> names_;
  const Tokenizer tokenizer_ = qwen_tokenizer();
  ThreadPool pool_{2};
};

TEST_F(DataDocs, EveryExampleIsReadInTheFormatItStandsUnder) {
  const std::map<std::string, std::string> formats = {{"chat.jsonl", "messages"},
                                                      {"tools.jsonl", "messages"},
                                                      {"sharegpt.jsonl", "sharegpt"},
                                                      {"alpaca.json", "alpaca"},
                                                      {"faq.csv", "prompt_response"},
                                                      {"short.csv", "prompt_response"},
                                                      {"completion.jsonl", "prompt_completion"},
                                                      {"pairs.jsonl", "prompt_completion"},
                                                      {"text.jsonl", "text"},
                                                      {"tokenized.jsonl", "tokenized"}};
  size_t read = 0;
  for (const std::string& name : names_) {
    const auto expected = formats.find(name);
    if (expected == formats.end()) continue;
    const TrainingData data = build("datasets: [{path: " + (folder_ / name) + "}]\n");
    EXPECT_EQ(name_of(data.train_reports[0].format), expected->second) << name;
    EXPECT_GT(data.train.counts().supervised, 0) << name;
    ++read;
  }
  EXPECT_EQ(read, formats.size());
}

TEST_F(DataDocs, EveryMappingGivesTheAnswer) {
  const std::map<std::string, std::string> answers = {{"shop.yaml", "Yes, three kinds.<|im_end|>"},
                                                      {"dialogs.yaml", "This way.<|im_end|>"}};
  size_t read = 0;
  for (const std::string& name : names_) {
    if (!name.ends_with(".yaml")) continue;
    std::ifstream file(folder_ / name);
    std::string yaml{std::istreambuf_iterator<char>(file), {}};
    yaml.insert(yaml.find("path: ") + 6, folder_.path() + "/");
    EXPECT_EQ(learnt(build(yaml)), answers.at(name)) << name;
    ++read;
  }
  EXPECT_EQ(read, answers.size());
}

TEST_F(DataDocs, AQuestionWithAPromptHasItAsItsSystemMessage) {
  const TrainingData data = build("datasets: [" + (folder_ / "faq.csv") + "]\n");
  std::string text;
  for (const PreviewToken& token : preview_sample(data.train, 0, &tokenizer_)) text += token.text;
  EXPECT_EQ(
      text,
      "<|im_start|>system\nYou are a shop's assistant, and polite.<|im_end|>\n<|im_start|>user\nDo you deliver on "
      "Sundays?<|im_end|>\n<|im_start|>assistant\nNo, but on Saturdays we do.\nUntil 8 p.m.<|im_end|>\n");
}

}  // namespace
}  // namespace hone
