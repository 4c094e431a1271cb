#include "app/config/schema.h"

#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>

#include "app/config/config_testing.h"
#include "app/config/resolved_yaml.h"
#include "app/config/schema_docs.h"

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
    EXPECT_TRUE(key.is_choice(key.default_value.get<std::string>())) << key.name;
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

}  // namespace
}  // namespace hone
