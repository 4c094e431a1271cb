#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <tuple>

#include "config/config_testing.h"
#include "config/config_value.h"
#include "config/resolve.h"
#include "config/resolved_yaml.h"
#include "config/run_options.h"
#include "config/schema.h"
#include "config/schema_docs.h"
#include "core/cpu/thread_pool.h"
#include "data/dataset/data_testing.h"
#include "data/dataset/dataset_builder.h"

namespace hone {
namespace {

TEST(Schema, EveryNameMeansOneKey) {
  for (const auto* table : {&schema(), &dataset_schema()}) {
    std::set<std::string> seen;
    for (const std::string& name : writable_names(*table)) EXPECT_TRUE(seen.insert(name).second) << name;
  }
}

TEST(Schema, NamesAreWrittenWithUnderscores) {
  for (const std::string& name : writable_names(schema())) EXPECT_EQ(name.find('-'), std::string::npos) << name;
}

TEST(Schema, SupportedKeysAreBoundToAFieldAndOthersAreNot) {
  for (const KeySpec& key : schema()) {
    EXPECT_EQ(key.status == KeyStatus::kSupported, static_cast<bool>(key.store)) << key.name;
    EXPECT_FALSE(key.help.empty()) << key.name;
  }
}

TEST(Schema, DefaultsAreAmongTheChoices) {
  for (const KeySpec& key : schema()) {
    if (key.type != KeyType::kChoice || key.default_value.is_null()) continue;
    EXPECT_TRUE(key.is_choice(key.default_value->get<std::string>())) << key.name;
  }
}

TEST(Schema, AChoiceIsSpelledAsAChoice) {
  for (const KeySpec& key : schema()) {
    if (key.choices.empty()) continue;
    for (const auto& [other, choice] : key.choice_aliases) {
      const auto& later = key.later_choices;
      const bool known =
          key.is_choice(choice) || choice.empty() || std::find(later.begin(), later.end(), choice) != later.end();
      EXPECT_TRUE(known) << key.name << " " << choice;
    }
  }
}

TEST(Schema, BoundsHoldInTheTypeThatIsComputedWith) {
  const auto refused = [](const KeySpec& key, double value) -> std::string {
    ConfigNode node;
    node.kind = ConfigNode::Kind::kScalar;
    node.text = fmt::format("{}", value);
    try {
      (void)parse_value(key, node, key.name);
    } catch (const UserError& error) {
      return error.message();
    }
    return "";
  };
  int open = 0;
  for (const auto* table : {&schema(), &dataset_schema()}) {
    for (const KeySpec& key : *table) {
      if (key.type != KeyType::kNumber || key.status != KeyStatus::kSupported) continue;
      SCOPED_TRACE(key.name);
      const Range& range = key.range;
      for (const auto& [bound, is_open, side] :
           {std::tuple{range.minimum, range.minimum_open, 1.0}, {range.maximum, range.maximum_open, -1.0}}) {
        if (!bound || !is_open) continue;
        ++open;
        // The nearest double inside the bound is the bound itself in float32.
        EXPECT_THAT(refused(key, std::nextafter(*bound, *bound + side)),
                    testing::AllOf(testing::HasSubstr(key.name), testing::HasSubstr("in float32")));
        EXPECT_EQ(refused(key, static_cast<double>(std::nextafter(static_cast<float>(*bound + side * 1e-6),
                                                                  static_cast<float>(*bound + side)))),
                  "");
      }
      if (!range.maximum) {
        EXPECT_THAT(refused(key, 1e300), testing::HasSubstr("in float32, where this is inf"));
      }
    }
  }
  EXPECT_GT(open, 15);
}

TEST(Schema, KnowsTheNamesOfOtherTools) {
  std::ifstream file(std::string(HONE_SOURCE_DIR) + "/tests/fixtures/config/known_names.txt");
  ASSERT_TRUE(file);
  int count = 0;
  for (std::string name; std::getline(file, name); ++count) {
    const bool section = std::count(section_names().begin(), section_names().end(), name) > 0;
    const size_t dot = name.find('.');
    const bool inside = dot != std::string::npos && find_key(schema(), name.substr(0, dot), name.substr(dot + 1)).key;
    EXPECT_TRUE(find_key(schema(), "", name).key != nullptr || section || inside) << name;
  }
  EXPECT_GT(count, 300);
}

TEST(ResolvedYaml, ReadsBackAsTheSameRun) {
  for (const char* yaml : {
           "",
           "model: m\nlora: true\nval_split: 0.1\nwarmup_steps: 10\nmin_lr: 1e-7\nmicro_batch_size: "
           "2\nglobal_batch_size: 8",
           "adapter_path: a\ndatasets: [{path: 'b #c', type: tokenized, samples: 3, name: 'x: y'}, d]\neval_datasets: "
           "e",
           "lora: true\nfreeze_router: false\nchat_template: \"{{ a }}\\n$${x} 'q' \\\"d\\\" é\\t\"\nenable_thinking: "
           "false",
           "save_total_limit: null\nresume: true\nreport_to: none\nrun_name: 'no'\noutput_dir: '1'\nmax_shard_size: "
           "1GiB",
           "datasets: [{path: a, weight: 0.25, split: train, column_mapping: {system: 'my prompt', roles: {user: "
           "[h]}}}, "
           "b]\ntokenizer_path: t\ninterleave_probs: [0.25, 3]",
           "eval_steps: 0.1\nsave_steps: 0.5\nlogging_steps: 0.2\nval_split: 2\nspecial_tokens: {eos_token: '<|x|>'}\n"
           "eot_tokens: ['a', 'b c']\nadd_bos_token: false\nlora_exclude_modules: [w1]\ndatasets: [{path: a, type: "
           "alpaca, "
           "prompt_template: {format: 'Q: {instruction}'}}, {path: b, prompt_template: plain}]",
           "max_length: 64\ntokens_per_step: 640\nlr: 0.1234567890123456\nlr_scheduler_type: constant\nbf16: false",
           "generation: {temperature: 0.7, do_sample: true, top_k: 5}\nfreeze_parameters: ['re:a[0-9]+,b', '*.norm.*']",
           "chat_template_kwargs: {a: {b: [1, 2.5, null, true, 'true', '1']}, 'c d': x}\nsave_strategy: no\nthreads: 2",
       }) {
    const RunConfig run = resolved(yaml).run;
    const std::string text = resolved_yaml(run);
    const ResolvedConfig back = resolved(text);
    EXPECT_TRUE(back.run == run) << yaml << "\n" << text << "\nbecomes\n" << resolved_yaml(back.run);
    EXPECT_TRUE(back.notes.empty()) << back.notes[0];
    EXPECT_EQ(resolved_yaml(back.run), text);
  }
}

TEST(ResolvedYaml, StatesEverySupportedKey) {
  const ResolvedConfig back = resolved(resolved_yaml(resolved("model: m").run));
  for (const KeySpec& key : schema()) {
    if (!key.load || key.load(back.run).is_null()) continue;
    EXPECT_TRUE(back.states(key.name)) << key.name;
  }
}

TEST(Docs, ConfigPageIsTheGeneratedOne) {
  std::ifstream file(std::string(HONE_SOURCE_DIR) + "/docs/config.md");
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_TRUE(text.str() == schema_markdown()) << "write it again: hone schema --markdown > docs/config.md";
}

TEST(JsonSchema, DescribesEveryName) {
  const Json json = schema_json();
  for (const std::string& name : writable_names(schema())) {
    EXPECT_TRUE(json["properties"].contains(name.substr(name.find('.') + 1))) << name;
  }
  EXPECT_EQ(json["properties"]["seed"]["anyOf"][0], Json({{"type", "integer"}, {"minimum", 0}}));
  EXPECT_EQ(json["properties"]["max_steps"]["anyOf"][1]["enum"], Json::array({nullptr, -1}));
  EXPECT_EQ(json["properties"]["warmup_steps"]["anyOf"][0]["type"], "number");
  EXPECT_EQ(json["properties"]["seed"]["default"], 42);
  EXPECT_EQ(json["properties"]["training"]["$ref"], "#");
  EXPECT_EQ(json["additionalProperties"], false);
}

// The examples of docs/data.md.

/// Writes each block of docs/data.md that has a file name ("```csv faq.csv"); returns the names in order.
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
    DataOptions options = data_options(config.run, tokenizer_.vocab_size(), "", config.run.data.chat_template);
    return build_training_data(options, &tokenizer_, pool_);
  }
  std::string learnt(const TrainingData& data) const {
    std::string text;
    for (const MaskPiece& piece : preview_sample(data.train, 0, &tokenizer_))
      text += piece.supervised ? piece.text : "";
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
  for (const MaskPiece& piece : preview_sample(data.train, 0, &tokenizer_)) text += piece.text;
  EXPECT_EQ(
      text,
      "<|im_start|>system\nYou are a shop's assistant, and polite.<|im_end|>\n<|im_start|>user\nDo you deliver on "
      "Sundays?<|im_end|>\n<|im_start|>assistant\nNo, but on Saturdays we do.\nUntil 8 p.m.<|im_end|>\n");
}

// This version reads the configurations in examples/.

namespace fs = std::filesystem;

TEST(Examples, ThereIsOneForEveryModelAndMethod) {
  for (const char* model : {"qwen3_moe", "qwen3", "qwen2_moe", "mixtral", "olmoe", "granitemoe", "glm4_moe", "llama"}) {
    for (const char* method : {"full", "lora"}) {
      const fs::path file = fs::path(HONE_SOURCE_DIR) / "examples" / (std::string(model) + "_" + method + ".yaml");
      ASSERT_TRUE(fs::exists(file)) << file;
      EXPECT_EQ(name_of(load_config(file.string(), {}).run.model.finetuning_type), method) << file;
    }
  }
}

TEST(Examples, AllAreReadWithoutRemark) {
  int files = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(fs::path(HONE_SOURCE_DIR) / "examples")) {
    if (entry.path().extension() != ".yaml") continue;
    const bool of_ranks = entry.path().stem().string().ends_with("_ranks");
    const ResolvedConfig config = load_config(entry.path().string(), {}, {of_ranks ? 4 : 1});
    EXPECT_TRUE(config.notes.empty()) << entry.path() << ": " << config.notes.front();
    EXPECT_NO_THROW(require_keys(config, {"model_name_or_path", "datasets"})) << entry.path();
    ++files;
  }
  EXPECT_GE(files, 16);
}

}  // namespace
}  // namespace hone
