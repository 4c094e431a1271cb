#include "app/generate/generate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "app/chat/chat_model_testing.h"
#include "core/base/error.h"

namespace hone {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

/// A model folder with random weights (a reference case's), a tokenizer and a chat template.
class Generate : public testing::Test {
 protected:
  Generate()
      : folder_(fs::path(testing::TempDir()) /
                (std::string("hone_generate_") + testing::UnitTest::GetInstance()->current_test_info()->name())) {
    fs::remove_all(folder_);
    write_chat_model(folder_ / "model");
  }
  ~Generate() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  void write(const std::string& name, const std::string& content) const { std::ofstream(folder_ / name) << content; }

  GenerateOptions options() const {
    GenerateOptions result;
    result.model = path("model");
    result.threads = 2;
    result.sampling.max_new_tokens = 12;
    return result;
  }

  /// The output rows for a file with these rows.
  std::vector<Json> answers(const std::string& rows, GenerateOptions changed) const {
    write("in.jsonl", rows);
    changed.input = path("in.jsonl");
    changed.output = path("out.jsonl");
    changed.force = true;
    EXPECT_EQ(run_generate(changed), 0);
    std::ifstream file(folder_ / "out.jsonl");
    std::vector<Json> result;
    for (std::string line; std::getline(file, line);) result.push_back(Json::parse(line));
    return result;
  }
  std::string answer(const std::string& row, const GenerateOptions& changed) const {
    return answers(row, changed).at(0)["generated_text"];
  }

  /// "where: what" of the error.
  static std::string problem(const GenerateOptions& changed) {
    try {
      run_generate(changed);
    } catch (const UserError& error) {
      return error.where() + ": " + error.message();
    }
    return "none";
  }
  std::string problem_of_rows(const std::string& rows) const {
    write("in.jsonl", rows);
    GenerateOptions changed = options();
    changed.input = path("in.jsonl");
    const std::string text = problem(changed);
    return text.starts_with(folder_.string() + "/") ? text.substr(folder_.string().size() + 1) : text;
  }

  fs::path folder_;
};

TEST_F(Generate, HoldsTheBaseInAPackedFormat) {
  for (const char* base : {"dtype", "nf4", "int8"}) {
    GenerateOptions packed = options();
    packed.keys.push_back(std::string("base_weight_dtype=") + base);
    EXPECT_EQ(answers(R"({"prompt": "hello"})", packed).size(), 1u) << base;
  }
  GenerateOptions unknown = options();
  unknown.keys.push_back("base_weight_dtype=int3");
  write("in.jsonl", R"({"prompt": "hello"})");
  unknown.input = path("in.jsonl");
  EXPECT_THAT(problem(unknown), HasSubstr("int3"));
}

TEST_F(Generate, AnswersTheRowsOfAFileInOrder) {
  const std::vector<Json> rows = answers(
      "{\"prompt\": \"hello\", \"id\": 7}\n"
      "{\"messages\": [{\"role\": \"user\", \"content\": \"hello\"}]}\n"
      "{\"prompt\": [{\"role\": \"user\", \"content\": \"other\"}]}\n",
      options());
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0]["id"], 7);
  EXPECT_EQ(rows[0]["prompt"], "hello");
  EXPECT_EQ(rows[0]["prompt_tokens"], 7);  // two of the template's and five bytes
  EXPECT_EQ(rows[0]["generated_text"], rows[1]["generated_text"]);
  EXPECT_LE(rows[0]["generated_tokens"], 12);
  EXPECT_EQ(rows[2]["generated_text"], answer(R"({"prompt": "other"})", options()));
}

TEST_F(Generate, StreamsTheAnswerToOnePrompt) {
  GenerateOptions one = options();
  one.prompt = "hello";
  testing::internal::CaptureStdout();
  EXPECT_EQ(run_generate(one), 0);
  EXPECT_EQ(testing::internal::GetCapturedStdout(), answer(R"({"prompt": "hello"})", options()) + "\n");
}

TEST_F(Generate, DoesNotShowTheModelTheExpectedAnswer) {
  const std::string asked = R"({"messages": [{"role": "user", "content": "a"}]})";
  const std::string answered =
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})";
  const std::vector<Json> rows = answers(asked + "\n" + answered + "\n", options());
  EXPECT_EQ(rows[0]["generated_text"], rows[1]["generated_text"]);
  EXPECT_EQ(rows[1]["messages"].size(), 2u);  // the output has the complete row
}

TEST_F(Generate, PutsTheSystemMessageFirst) {
  GenerateOptions system = options();
  system.system = "be short";
  EXPECT_EQ(
      answer(R"({"prompt": "a"})", system),
      answer(R"({"messages": [{"role": "system", "content": "be short"}, {"role": "user", "content": "a"}]})", system));
  const Json row = answers(R"({"prompt": "a"})", system).at(0);
  EXPECT_EQ(row["prompt_tokens"], 2 + 8 + 2);
}

TEST_F(Generate, RawPromptsAreContinuedAsTheyAre) {
  GenerateOptions raw = options();
  raw.raw = true;
  EXPECT_EQ(answers(R"({"prompt": "hello"})", raw).at(0)["prompt_tokens"], 5);
  fs::remove(folder_ / "model/chat_template.jinja");
  EXPECT_EQ(answer(R"({"prompt": "<|user|>hello<|model|>"})", raw).empty(), false);
}

TEST_F(Generate, TheTemplateCanBeReplaced) {
  write("other.jinja", "{{ messages[0].content }}");
  GenerateOptions other = options();
  other.chat_template = path("other.jinja");
  EXPECT_EQ(answers(R"({"prompt": "hello"})", other).at(0)["prompt_tokens"], 5);
}

TEST_F(Generate, ATemplateThatIsBuiltInIsNamed) {
  GenerateOptions named = options();
  named.chat_template = "mistral";
  EXPECT_EQ(answers(R"({"prompt": "hello"})", named).at(0)["prompt_tokens"],
            static_cast<int>(std::string("[INST] hello[/INST]").size()));
  named.output.clear();
  named.prompt = "hello";
  named.chat_template = "chatml";
  EXPECT_THAT(problem(named), HasSubstr("writes \"<|im_start|>\", \"<|im_end|>\", which the tokenizer does not have"));
  named.chat_template = "chatlm";
  EXPECT_THAT(problem(named), HasSubstr("chatlm"));
}

TEST_F(Generate, EndsAtStopTokens) {
  const Json free = answers(R"({"prompt": "hello"})", options()).at(0);
  ASSERT_EQ(free["finish_reason"], "length");
  GenerateOptions raw = options();
  // Every token stops: the first one ends the answer and is not part of it.
  Json ids = Json::array();
  for (int id = 0; id < 320; ++id) ids.push_back(id);
  write("model/generation_config.json", Json{{"eos_token_id", ids}}.dump());
  const Json stopped = answers(R"({"prompt": "hello"})", raw).at(0);
  EXPECT_EQ(stopped["finish_reason"], "stop");
  EXPECT_EQ(stopped["generated_text"], "");
  EXPECT_EQ(stopped["generated_tokens"], 1);
}

TEST_F(Generate, AnswersEndWhereTheContextDoes) {
  GenerateOptions many = options();
  many.sampling.max_new_tokens = 100000;
  const Json row = answers(Json{{"prompt", std::string(500, 'x')}}.dump(), many).at(0);
  EXPECT_LE(row["generated_tokens"], 10);  // 512 - 502
}

TEST_F(Generate, AdaptersChangeTheAnswer) {
  GenerateOptions adapted = options();
  adapted.adapter = (kChatModelCase / "lora_attention_final").string();
  EXPECT_NE(answer(R"({"prompt": "hello"})", adapted), answer(R"({"prompt": "hello"})", options()));
}

TEST_F(Generate, AnAdaptersFolderNamesItsBase) {
  fs::copy(kChatModelCase / "lora_attention_final", folder_ / "run");
  std::ifstream file(folder_ / "run/adapter_config.json");
  Json config = Json::parse(file);
  config["base_model_name_or_path"] = path("model");
  write("run/adapter_config.json", config.dump());
  GenerateOptions adapted = options(), alone = options();
  adapted.adapter = alone.model = path("run");
  EXPECT_EQ(answer(R"({"prompt": "hello"})", alone), answer(R"({"prompt": "hello"})", adapted));
  alone.adapter = path("run");
  alone.prompt = "x";
  EXPECT_EQ(problem(alone), "--model: the model is an adapter's folder, and another adapter is given");
}

TEST_F(Generate, TheTemplatesVariablesCanBeSet) {
  write("model/chat_template.jinja", "{{ 'think' if enable_thinking else '' }}{{ style }}{{ messages[0].content }}");
  const auto tokens = [&](const GenerateOptions& changed) {
    return answers(R"({"prompt": "hello"})", changed).at(0)["prompt_tokens"].get<int>();
  };
  GenerateOptions thinking = options();
  EXPECT_EQ(tokens(thinking), 5);
  thinking.enable_thinking = true;
  EXPECT_EQ(tokens(thinking), 10);
  thinking.chat_template_kwargs = R"({"style": "abc"})";
  EXPECT_EQ(tokens(thinking), 13);
  thinking.prompt = "x";
  thinking.chat_template_kwargs = R"({"enable_thinking": false})";
  EXPECT_EQ(problem(thinking), "--enable-thinking: enable_thinking is given twice, with different values");
  thinking.chat_template_kwargs = "[1]";
  EXPECT_EQ(problem(thinking), "--chat-template-kwargs: the variables of the chat template are not a JSON object");
}

TEST_F(Generate, ReadsWhatTrainingReads) {
  const std::string asked = answer(R"({"prompt": "hello"})", options());
  for (const char* row :
       {R"({"question": "hello", "answer": "never shown"})", R"({"question": "hello"})",
        R"({"instruction": "hello", "input": "", "output": "x"})", R"({"instruction": "hello"})",
        R"({"prompt": "hello", "response": "x"})", R"({"conversations": [{"from": "human", "value": "hello"}]})",
        R"({"conversations": [{"from": "human", "value": "hello"}, {"from": "gpt", "value": "x"}]})",
        R"({"prompt": [{"role": "user", "content": "hello"}], "completion": [{"role": "assistant", "content": "x"}]})",
        R"({"messages": [{"role": "user", "content": "hello"}], "text": "not asked"})"}) {
    EXPECT_EQ(answer(row, options()), asked) << row;
  }
  GenerateOptions from = options();
  from.output = path("out.jsonl");
  from.force = true;
  const auto only_answer = [&] {
    EXPECT_EQ(run_generate(from), 0);
    std::ifstream file(folder_ / "out.jsonl");
    return Json::parse(file);
  };
  write("in.csv", "id;question;answer\n7;hello;x\n");
  from.input = path("in.csv");
  EXPECT_EQ(only_answer()["generated_text"], asked);
  EXPECT_EQ(only_answer()["id"], "7");
  write("in.json", R"([{"customer": "hello"}])");
  from.input = path("in.json");
  from.column_mapping = R"({"prompt": "customer"})";
  EXPECT_EQ(only_answer()["generated_text"], asked);
}

TEST_F(Generate, PlainTextAndTokensAreContinuedAsTheyAreTrained) {
  GenerateOptions raw = options();
  raw.raw = true;
  const std::string continued = answer(R"({"prompt": "hello"})", raw);
  EXPECT_EQ(answer(R"({"prompt": "hello", "completion": "x"})", options()), continued);
  EXPECT_EQ(answers(R"({"input_ids": [5, 6, 7, 8], "labels": [-100, -100, 7, 8]})", options())[0]["prompt_tokens"], 2);
  EXPECT_THAT(problem_of_rows(R"({"input_ids": [5, 6]})"), HasSubstr("the tokens are not a prompt with an answer"));
}

TEST_F(Generate, TheSettingsOfTheTrainingRunAreUsedUnlessOthersAreStated) {
  write("model/chat_template.jinja", "{{ 'think' if enable_thinking else '' }}{{ style }}{{ messages[0].content }}");
  const auto tokens = [&](const GenerateOptions& changed) {
    return answers(R"({"prompt": "hello"})", changed).at(0)["prompt_tokens"].get<int>();
  };
  write("model/hone_chat.json", R"({"chat_template_kwargs": {"enable_thinking": true, "style": "abc"}})");
  EXPECT_EQ(tokens(options()), 13);
  GenerateOptions stated = options();
  stated.enable_thinking = false;
  EXPECT_EQ(tokens(stated), 8);
  write("model/hone_chat.json", "[]");
  EXPECT_THAT(problem(stated), HasSubstr("prompt is missing"));
  stated.prompt = "x";
  EXPECT_THAT(problem(stated), HasSubstr("does not hold the chat settings of a run"));
}

TEST_F(Generate, SplitSpecialTokensOfTheTrainingRunIsUsedUnlessStated) {
  const std::string special =
      *Tokenizer::load(path("model")).id_to_token(*Tokenizer::load(path("model")).special_tokens().eos);
  const auto tokens = [&](const GenerateOptions& changed) {
    return answers(Json{{"prompt", special}}.dump(), changed).at(0)["prompt_tokens"].get<int>();
  };
  const int as_token = tokens(options());
  write("model/hone_chat.json", R"({"chat_template_kwargs": {}, "split_special_tokens": true})");
  EXPECT_GT(tokens(options()), as_token);
  GenerateOptions stated = options();
  stated.split_special_tokens = false;
  EXPECT_EQ(tokens(stated), as_token);
}

TEST_F(Generate, TokensThatEndATurnAreKeptWithTheResult) {
  const int32_t id = 5;
  const std::string token = *Tokenizer::load(path("model")).id_to_token(id);
  EXPECT_FALSE(InferenceModel(options()).is_stop(id));
  const Json tokens = {{"eot_tokens", Json::array({token})}};
  write("model/hone_chat.json", Json{{"chat_template_kwargs", Json::object()}, {"tokens", tokens}}.dump());
  EXPECT_TRUE(InferenceModel(options()).is_stop(id));
}

TEST_F(Generate, GreedyThoughtsAreWarnedOf) {
  write("model/chat_template.jinja",
        "{{ messages[0].content }}{% if add_generation_prompt %}<|model|>{{ '' if enable_thinking is defined and not "
        "enable_thinking else '<think>' }}{% endif %}");
  const auto warned = [&](const GenerateOptions& changed) {
    testing::internal::CaptureStderr();
    answers(R"({"prompt": "hello"})", changed);
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_THAT(warned(options()),
              testing::AllOf(HasSubstr("warning: thoughts are on"), HasSubstr("--enable-thinking false")));
  GenerateOptions changed = options();
  changed.enable_thinking = false;
  EXPECT_THAT(warned(changed), testing::Not(HasSubstr("thoughts are on")));
  changed = options();
  changed.sampling.temperature = 0.6;
  EXPECT_THAT(warned(changed), testing::Not(HasSubstr("thoughts are on")));
  changed = options();
  changed.raw = true;
  EXPECT_THAT(warned(changed), testing::Not(HasSubstr("thoughts are on")));
}

TEST_F(Generate, ATextFileHasAPromptALine) {
  write("in.txt", "hello\r\n\n  \nother\n");
  GenerateOptions lines = options();
  lines.input = path("in.txt");
  lines.output = path("out.jsonl");
  ASSERT_EQ(run_generate(lines), 0);
  std::ifstream file(folder_ / "out.jsonl");
  std::string first, second, third;
  ASSERT_TRUE(std::getline(file, first) && std::getline(file, second) && !std::getline(file, third));
  EXPECT_EQ(Json::parse(first)["prompt"], "hello");
  EXPECT_EQ(Json::parse(second)["generated_text"], answer(R"({"prompt": "other"})", options()));
}

TEST_F(Generate, RunsInBfloat16) {
  GenerateOptions bf16 = options();
  bf16.keys.push_back("dtype=bfloat16");
  EXPECT_FALSE(answer(R"({"prompt": "hello"})", bf16).empty());
}

TEST_F(Generate, SaysWhatIsWrongWithItsOptions) {
  EXPECT_EQ(problem(options()), "--prompt: the prompt is missing");
  GenerateOptions both = options();
  both.prompt = both.input = "x";
  EXPECT_EQ(problem(both), "--prompt: both a prompt and a file of prompts are given");
  GenerateOptions bad = options();
  bad.prompt = "x";
  bad.sampling.top_p = 2.0;
  EXPECT_EQ(problem(bad), "top_p: top_p is 2");
  GenerateOptions dtype = options();
  dtype.prompt = "x";
  dtype.keys.push_back("dtype=int3");
  EXPECT_THAT(problem(dtype),
              HasSubstr("command line: dtype=int3: dtype is 'int3': expected one of bfloat16, float32"));
  GenerateOptions system = options();
  system.prompt = "x";
  system.system = "y";
  system.raw = true;
  EXPECT_EQ(problem(system), "--system: a system message needs the chat template, which --raw leaves out");
  write("in.jsonl", "{}");
  write("out.jsonl", "precious");
  GenerateOptions existing = options();
  existing.input = path("in.jsonl");
  existing.output = path("out.jsonl");
  EXPECT_THAT(problem(existing), HasSubstr("the output file exists already"));
}

TEST_F(Generate, SaysWhatTheModelLacks) {
  GenerateOptions one = options();
  one.prompt = "x";
  fs::remove(folder_ / "model/chat_template.jinja");
  EXPECT_EQ(problem(one), "--prompt: the model has no chat template, which messages need");
  fs::remove(folder_ / "model/tokenizer.json");
  EXPECT_EQ(problem(one), path("model/tokenizer.json") + ": the model has no tokenizer");
}

TEST_F(Generate, SaysWhichRowIsWrong) {
  const std::string good = "{\"prompt\": \"a\"}\n";
  EXPECT_EQ(problem_of_rows(good + "{\"text\": 1}\n"), "in.jsonl:2: 'text' is a number, not text");
  EXPECT_EQ(problem_of_rows("{\"text\": \"a story\"}\n"), "in.jsonl:1: the row is a text that asks nothing");
  EXPECT_THAT(problem_of_rows("{\"id\": 1}\n"), HasSubstr("in.jsonl:1: the columns fit no format"));
  EXPECT_EQ(problem_of_rows(good + "\n{\"prompt\": \"\"}\n"), "in.jsonl:3: the prompt is empty");
  EXPECT_EQ(problem_of_rows("{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\"}]}\n"),
            "in.jsonl:1: there is no message to answer");
  EXPECT_THAT(problem_of_rows(good + "{\"prompt\": 5}\n"), HasSubstr("in.jsonl:2"));
  EXPECT_THAT(problem_of_rows(good + "{\"prompt\": \n"), HasSubstr("in.jsonl:2"));
  EXPECT_EQ(problem_of_rows(Json{{"prompt", std::string(600, 'x')}}.dump()),
            "in.jsonl:1: the prompt has 602 tokens, and the model's context 512, the answer included");
  EXPECT_EQ(problem_of_rows("\n"), "in.jsonl: the file has no rows");
}

TEST(SamplingOverrides, LeaveTheModelsDefaultsAsTheyAre) {
  SamplingOptions defaults;
  defaults.do_sample = true;
  defaults.temperature = 0.6;
  SamplingOverrides overrides;
  overrides.top_k = 5;
  const SamplingOptions options = overrides.apply(defaults);
  EXPECT_TRUE(options.do_sample);
  EXPECT_EQ(options.temperature, 0.6);
  EXPECT_EQ(options.top_k, 5);
}

TEST(SamplingOverrides, StatingHowToDrawMeansToDraw) {
  SamplingOverrides overrides;
  EXPECT_FALSE(overrides.apply({}).do_sample);
  overrides.temperature = 0.7;
  EXPECT_TRUE(overrides.apply({}).do_sample);
  overrides.do_sample = false;
  EXPECT_FALSE(overrides.apply({}).do_sample);
}

}  // namespace
}  // namespace hone
