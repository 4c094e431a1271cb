#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iterator>

#include "app/chat/chat_model_testing.h"
#include "app/init/init.h"
#include "config/config_testing.h"
#include "config/presets.h"
#include "config/schema.h"
#include "core/cpu/thread_pool.h"

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
    for (const std::string method : {"lora", "qlora", "full"}) {
      InitOptions options;
      options.model = "./My model: v2";
      options.method = method;
      options.data = "data/chat.jsonl";
      const ResolvedConfig config = resolved(initial_yaml(options, model(sparse)));
      EXPECT_TRUE(config.notes.empty()) << config.notes.front();
      EXPECT_EQ(config.run.model.model_name_or_path, "./My model: v2");
      EXPECT_EQ(name_of(config.run.model.finetuning_type), method == "full" ? "full" : "lora");
      EXPECT_EQ(config.run.model.base_weight_dtype.name(), method == "qlora" ? "nf4" : "dtype");
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
class InitWithData : public testing::Test {
 protected:
  InitWithData() : folder_(fs::path(testing::TempDir()) / "hone_init_with_data") {
    fs::remove_all(folder_);
    write_chat_model(folder_ / "model");
    for (const auto& entry : fs::directory_iterator(folder_ / "model")) {
      if (entry.path().filename().string().find(".safetensors") != std::string::npos) fs::remove(entry.path());
    }
    write("model/chat_template.jinja",
          "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}<|model|>"
          "{{ '' if enable_thinking is defined and not enable_thinking else '<think>' }}{% endif %}");
  }
  ~InitWithData() override { fs::remove_all(folder_); }

  void write(const std::string& name, const std::string& text) const { std::ofstream(folder_ / name) << text; }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  /// The file that init writes, followed by its output.
  std::string init(const std::string& data, const std::string& preset = "") const {
    InitOptions options;
    options.model = path("model");
    options.preset = preset;
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

TEST_F(InitWithData, TheSwitchIsWrittenOffWhereNoRowHasThoughts) {
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
  EXPECT_THAT(init("broken.jsonl"),
              AllOf(Not(HasSubstr(off)), HasSubstr("max_length, the batch and thinking are not those of the data")));
  EXPECT_THAT(init(""), AllOf(Not(HasSubstr(off)), HasSubstr("# chat_template_kwargs: {enable_thinking: false}")));
  write("model/chat_template.jinja", "{% for m in messages %}{{ m.content }}{% endfor %}<|model|>");
  EXPECT_THAT(init("none.jsonl"), Not(HasSubstr("enable_thinking")));
}

/// Lengths of `rows` rows that have `mean` tokens each, and some as many as `p99` and `longest`.
DataFacts lengths(int64_t rows, int64_t mean, int64_t p99, int64_t longest) {
  DataFacts facts;
  facts.rows = rows;
  facts.lengths = {.rows = rows, .tokens = rows * mean, .p99 = p99, .longest = longest};
  return facts;
}

TEST(BatchSizes, GiveSomeTensOfStepsAnEpochOfFewRows) {
  for (const int64_t rows : {100, 500, 2000, 8000}) {
    const BatchSizes sizes = batch_sizes(lengths(rows, 100, 125, 190), 8192, 16);
    EXPECT_EQ(sizes.max_length, 192);
    EXPECT_GE(sizes.steps_per_epoch, 20) << rows;
    EXPECT_LE(sizes.steps_per_epoch, 100) << rows;
    EXPECT_EQ(sizes.global % sizes.per_device, 0);
  }
}

TEST(BatchSizes, OfManyRowsAreTheUsualNumberOfTokens) {
  const BatchSizes sizes = batch_sizes(lengths(10'000'000, 100, 125, 190), 8192, 16);
  EXPECT_GT(sizes.global * sizes.max_length, 16 * 4096 / 2);
  EXPECT_LE(sizes.global * sizes.max_length, 16 * 4096);
  EXPECT_LE(sizes.per_device * sizes.max_length, 4096);
  const BatchSizes half = batch_sizes(lengths(10'000'000, 100, 125, 190), 8192, 8);
  EXPECT_EQ(half.global * 2, sizes.global);
}

TEST(BatchSizes, HoldTheLongestSampleUnlessItIsAnException) {
  EXPECT_EQ(batch_sizes(lengths(100, 100, 1000, 2000), 8192, 16).max_length, 2048);
  EXPECT_EQ(batch_sizes(lengths(100, 100, 1000, 2001), 8192, 16).max_length, 1024);
  EXPECT_EQ(batch_sizes(lengths(100, 100, 9000, 9001), 8192, 16).max_length, 8192);
  EXPECT_EQ(batch_sizes(lengths(100, 8000, 20000, 20000), 131072, 16).max_length, 20032);
}

TEST(BatchSizes, OfTextHaveTheUsualLengthAtMost) {
  DataFacts book = lengths(1, 64000, 64000, 64000);
  book.plain_text = true;
  const BatchSizes sizes = batch_sizes(book, 131072, 16);
  EXPECT_EQ(sizes.max_length, 4096);
  EXPECT_EQ(sizes.global, 1);
}

TEST(BatchSizes, AreTheUsualOnesWithoutData) {
  const BatchSizes sizes = batch_sizes({}, 2048, 16);
  EXPECT_EQ(sizes.max_length, 2048);
  EXPECT_EQ(sizes.per_device, 1);
  EXPECT_EQ(sizes.global, 16);
  EXPECT_EQ(sizes.steps_per_epoch, 0);
}

TEST_F(InitWithData, TheBatchIsThatOfTheData) {
  std::string rows;
  for (int i = 0; i < 500; ++i)
    rows += R"({"question": "What is )" + std::to_string(i) +
            R"( + 1?", "answer": "More."})"
            "\n";
  write("few.jsonl", rows);
  for (const char* preset : {"", "balanced", "conservative"}) {
    const std::string text = init("few.jsonl", preset);
    const RunConfig run = resolved(text.substr(0, text.find(path("run.yaml") + ":"))).run;
    EXPECT_EQ(run.data.max_length, 128) << text;
    EXPECT_EQ(run.schedule.global_batch_size, 2) << text;
    EXPECT_THAT(text, HasSubstr("99 % of the samples: up to"));
    EXPECT_THAT(text, HasSubstr("overlength: drop "));
  }
  write("long.txt", std::string(300, 'a'));
  for (const char* preset : {"", "full"}) {
    EXPECT_THAT(init("long.txt", preset), AllOf(HasSubstr("\noverlength: split "), HasSubstr("\nval_split: 0 ")));
  }
}

TEST(Init, QloraKeepsTheFourBitsOfAModelThatHasThem) {
  InitOptions options;
  options.model = "./gpt-oss-20b";
  options.method = "qlora";
  options.has_mxfp4 = true;
  EXPECT_EQ(resolved(initial_yaml(options, model(true))).run.model.base_weight_dtype.name(), "auto");
}

TEST_F(InitWithData, SaysWhyTheBatchIsNotThatOfTheData) {
  fs::remove(folder_ / "model/tokenizer.json");
  write("few.jsonl", R"({"question": "q", "answer": "a"})");
  EXPECT_THAT(init("few.jsonl"), AllOf(HasSubstr("\nglobal_batch_size: 16 "),
                                       HasSubstr("the batch are not those of the data: the model")));
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

std::vector<float> values_of(Parameter& parameter) {
  const float* begin = parameter.value().whole().as<float>();
  return {begin, begin + parameter.shape().numel()};
}

TEST(NewModel, ValuesDependOnNeitherThreadsNorOtherParameters) {
  ThreadPool one(1), three(3);
  ParameterStore alone, crowded;
  // Larger than one task, so that several tasks fill the tensor.
  const ParameterSpec spec = {"lm_head.weight", {700, 300}, ParameterKind::kHead, -1, {}};
  alone.add(spec, DType::kF32);
  crowded.add({"model.norm.weight", {5}, ParameterKind::kNorm, -1, {}}, DType::kF32);
  crowded.add(spec, DType::kF32);
  alone.allocate(Device{}, true);
  crowded.allocate(Device{}, true);
  initialise_weights(alone, 0.02, 7, one);
  initialise_weights(crowded, 0.02, 7, three);
  EXPECT_EQ(values_of(*alone.find("lm_head.weight")), values_of(*crowded.find("lm_head.weight")));
}

TEST(NewModel, NormsAreOneAndBiasesZero) {
  ThreadPool pool(1);
  ParameterStore store;
  Parameter& norm = store.add({"model.norm.weight", {5}, ParameterKind::kNorm, -1, {}}, DType::kF32);
  Parameter& bias = store.add({"q_proj.bias", {5}, ParameterKind::kBias, 0, {}}, DType::kF32);
  store.allocate(Device{}, true);
  initialise_weights(store, 0.02, 7, pool);
  EXPECT_EQ(values_of(norm), std::vector<float>(5, 1.0f));
  EXPECT_EQ(values_of(bias), std::vector<float>(5, 0.0f));
}

TEST(Presets, AreTheChoicesOfTheKey) {
  std::vector<std::string> names;
  for (const Preset& preset : presets()) names.push_back(preset.name);
  EXPECT_EQ(names, key_spec("preset").choices);
}

TEST(Presets, EachValueReachesTheRun) {
  for (const Preset& preset : presets()) {
    for (const std::string method : {"full", "lora"}) {
      const ResolvedConfig config =
          resolved("model: m\ndatasets: d\nfinetuning_type: " + method + "\npreset: " + preset.name);
      for (const PresetValue& value : preset.values) {
        const KeySpec& key = key_spec(value.key);
        EXPECT_EQ(key.load(config.run), method == "lora" ? value.lora : value.full) << preset.name << " " << value.key;
        EXPECT_FALSE(value.why.empty());
      }
    }
  }
}

TEST(Presets, SayWhatTheySet) {
  const ResolvedConfig config = resolved("lora: true\npreset: quick");
  EXPECT_TRUE(has_note(config,
                       "preset quick sets max_steps 100, gradient_accumulation_steps 8, warmup_ratio 0.1, "
                       "save_total_limit 1"));
}

TEST(Presets, YieldToWhateverIsStated) {
  const RunConfig run =
      resolved("preset: balanced\nlr: 3e-3\nwarmup_steps: 7\nglobal_batch_size: 4\nmin_lr: 1e-6", {"weight_decay=0.5"})
          .run;
  EXPECT_EQ(run.schedule.learning_rate, 3e-3);
  EXPECT_EQ(run.schedule.warmup_steps, 7);
  EXPECT_EQ(run.schedule.global_batch_size, 4);
  EXPECT_EQ(run.schedule.min_lr, 1e-6);
  EXPECT_FALSE(run.schedule.min_lr_ratio.has_value());
  EXPECT_EQ(run.optim.weight_decay, 0.5);
  EXPECT_EQ(run.schedule.num_train_epochs, 3.0);
}

TEST(Presets, AStatedLengthOfTheRunWinsInAnyUnit) {
  EXPECT_FALSE(resolved("preset: quick\nepochs: 2").run.schedule.max_steps.has_value());
  EXPECT_EQ(resolved("preset: conservative\nmax_steps: 9").run.schedule.num_train_epochs,
            RunConfig().schedule.num_train_epochs);
}

TEST(Presets, DoNotFightTheValidationThatIsStated) {
  const RunConfig own = resolved("preset: full\neval_datasets: e").run;
  EXPECT_EQ(own.data.val_split, 0);
  EXPECT_EQ(resolved("preset: full").run.data.val_split, 0.05);
  EXPECT_TRUE(resolved("preset: full").run.eval.load_best_model_at_end);
  EXPECT_EQ(refusal("preset: full\nsave_strategy: no"), "");
  EXPECT_EQ(refusal("preset: memory\noptimizer_in_backward: true\nmax_grad_norm: 0"), "");
}

TEST(Presets, AreUnknownByAnyOtherName) {
  EXPECT_NE(refusal("preset: fast").find("expected one of quick, full"), std::string::npos);
}

}  // namespace
}  // namespace hone
