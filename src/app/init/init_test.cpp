#include "app/init/init.h"

#include <gmock/gmock.h>

#include <iterator>

#include "app/chat/chat_model_testing.h"
#include "app/config/config_testing.h"
#include "app/config/schema.h"
#include "app/init/presets.h"

namespace hone {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

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

/// A folder with a model's config.json, a tokenizer and a template, and no weights.
class InitThinking : public testing::Test {
 protected:
  InitThinking() : folder_(fs::path(testing::TempDir()) / "hone_init_thinking") {
    fs::remove_all(folder_);
    write_chat_model(folder_ / "model");
    for (const auto& entry : fs::directory_iterator(folder_ / "model")) {
      if (entry.path().filename().string().find(".safetensors") != std::string::npos) fs::remove(entry.path());
    }
    write("model/chat_template.jinja",
          "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}<|model|>"
          "{{ '' if enable_thinking is defined and not enable_thinking else '<think>' }}{% endif %}");
  }
  ~InitThinking() override { fs::remove_all(folder_); }

  void write(const std::string& name, const std::string& text) const { std::ofstream(folder_ / name) << text; }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  /// What init prints and, in front of it, the file it writes.
  std::string init(const std::string& data) const {
    InitOptions options;
    options.model = path("model");
    options.data = data.empty() ? "" : path(data);
    options.output = path("run.yaml");
    options.force = true;
    testing::internal::CaptureStdout();
    EXPECT_EQ(run_init(options), 0);
    const std::string said = testing::internal::GetCapturedStdout();
    std::ifstream file(folder_ / "run.yaml");
    return std::string(std::istreambuf_iterator<char>(file), {}) + said;
  }

  fs::path folder_;
};

TEST_F(InitThinking, TheSwitchIsWrittenOffWhereNoRowHasThoughts) {
  const std::string off = "\nchat_template_kwargs: {enable_thinking: false}";
  const std::string without = R"({"question": "q", "answer": "a"})";
  const std::string with = R"({"question": "q", "answer": "<think>hm</think>a"})";
  write("none.jsonl", without + "\n" + without + "\n");
  write("some.jsonl", without + "\n" + with + "\n");
  write("all.jsonl", with + "\n" + R"({"question": "q", "answer": "<think>so</think>a"})" + "\n");
  write("broken.jsonl", without + "\n{");
  EXPECT_THAT(init("none.jsonl"), HasSubstr(off));
  EXPECT_THAT(init("none.jsonl"), HasSubstr("no weights beside config.json"));
  EXPECT_THAT(init("some.jsonl"),
              AllOf(Not(HasSubstr(off)), HasSubstr("1 of 2 rows of the data have thoughts, the others have none")));
  EXPECT_THAT(init("all.jsonl"), Not(HasSubstr("enable_thinking")));
  EXPECT_THAT(init("broken.jsonl"), AllOf(Not(HasSubstr(off)), HasSubstr("were not looked at for thoughts")));
  EXPECT_THAT(init(""), AllOf(Not(HasSubstr(off)), HasSubstr("# chat_template_kwargs: {enable_thinking: false}")));
  write("model/chat_template.jinja", "{% for m in messages %}{{ m.content }}{% endfor %}<|model|>");
  EXPECT_THAT(init("none.jsonl"), Not(HasSubstr("enable_thinking")));
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
