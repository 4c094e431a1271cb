#include "app/init.h"

#include <gtest/gtest.h>

#include "app/config_testing.h"
#include "app/presets.h"
#include "app/schema.h"

namespace hone {
namespace {

DecoderConfig model(bool sparse) {
  DecoderConfig config;
  config.layers.resize(2);
  for (LayerConfig& layer : config.layers) layer.moe = sparse;
  config.rope.max_position_embeddings = 2048;
  return config;
}

TEST(Init, ItsTextIsReadWithoutNotesAndSaysWhatItMeans) {
  for (const bool sparse : {false, true}) {
    for (const std::string method : {"lora", "full"}) {
      InitOptions options;
      options.model = "./My model: v2";
      options.method = method;
      options.data = "data/chat.jsonl";
      const ResolvedConfig config = resolved(initial_yaml(options, model(sparse)));
      EXPECT_TRUE(config.notes.empty()) << config.notes.front();
      EXPECT_EQ(config.run.model.model_name_or_path, "./My model: v2");
      EXPECT_EQ(config.run.model.finetuning_type, method);
      EXPECT_EQ(config.run.data.datasets.front().path, "data/chat.jsonl");
      EXPECT_EQ(config.run.data.max_length, 2048);
      if (method == "full") continue;
      const std::vector<std::string> expected =
          sparse ? std::vector<std::string>{"attention", "all-experts"} : std::vector<std::string>{"all-linear"};
      EXPECT_EQ(config.run.lora.target_modules, expected);
    }
  }
}

TEST(Init, APresetStandsInThePlaceOfWhatItSets) {
  for (const Preset& preset : presets()) {
    InitOptions options;
    options.model = "m";
    options.data = "d.jsonl";
    options.preset = preset.name;
    const ResolvedConfig config = resolved(initial_yaml(options, model(true)));
    EXPECT_EQ(config.run.schedule.preset, preset.name);
    for (const PresetValue& value : preset.values) {
      EXPECT_EQ(key_spec(value.key).load(config.run), value.lora) << preset.name << " " << value.key;
    }
  }
}

TEST(Init, EveryLineOfTheDefaultMethodFitsTheScreen) {
  InitOptions options;
  options.model = "./Qwen3-30B-A3B";
  const std::string text = initial_yaml(options, model(true));
  EXPECT_NE(text.find("YOUR DATA"), std::string::npos);
  for (size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    EXPECT_LE(end - begin, 130u) << text.substr(begin, end - begin);
  }
}

}  // namespace
}  // namespace hone
