// Tests of the command line: hone eval with a task.
#include <gmock/gmock.h>

#include "app/chat/chat_model_testing.h"
#include "program.h"

namespace hone {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using Words = std::vector<std::string>;

Words operator+(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

constexpr const char* kChoices =
    R"({"question": "ab", "choices": ["x", "yz", "the sea"], "answer": 1})"
    "\n"
    R"({"question": "What is it?", "choices": ["é", "no"], "answer": "B"})"
    "\n"
    R"({"question": "q", "choices": {"text": ["one", "two"], "label": ["1", "2"]}, "answerKey": "1"})"
    "\n"
    R"({"ctx": "He ran", "endings": ["off.", "away from it all.", "up", "down"], "label": "3"})"
    "\n";

/// A model of random weights with a tokenizer of bytes: token 3 + b is the byte b.
class Tasks : public testing::Test {
 protected:
  Tasks() { write_chat_model(folder_ / "model"); }

  Words words(const Words& more) const {
    return Words{"eval",
                 "model_name_or_path=" + (folder_ / "model").string(),
                 "dtype=float32",
                 "device=cpu",
                 "threads=1",
                 "max_length=128",
                 "max_new_tokens=6"} +
           more;
  }
  Outcome eval(const Words& more, int ranks = 1) const {
    const Words launcher = {"launch", "-n", std::to_string(ranks), "--device", "cpu", "--"};
    return run_hone((ranks > 1 ? launcher : Words{}) + words(more));
  }
  Json result(const Words& more, int ranks = 1) const {
    const Outcome outcome = eval(more + Words{"--json"}, ranks);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return Json::parse(outcome.out, nullptr, false);
  }
  std::vector<Json> said() const { return read_json_lines(folder_ / "said.jsonl"); }
  Words predictions() const { return {"--predictions", (folder_ / "said.jsonl").string(), "--force"}; }
  std::string error(const Words& more) const {
    const Outcome outcome = eval(more);
    EXPECT_EQ(outcome.code, 2) << outcome.out;
    return outcome.err;
  }

  /// The log-likelihood of `continuation` after `context`, by the loss on their tokens.
  double log_likelihood(const std::string& context, const std::string& continuation) const {
    Json ids = Json::array(), labels = Json::array();
    for (const char c : context + continuation) {
      const int id = 3 + static_cast<uint8_t>(c);
      labels.push_back(ids.size() < context.size() ? -100 : id);
      ids.push_back(id);
    }
    const std::string data = folder_.write("tokens.jsonl", Json{{"input_ids", ids}, {"labels", labels}}.dump() + "\n");
    const Json loss = result({"datasets=" + data});
    return -loss["eval_loss"].get<double>() * loss["num_supervised_tokens"].get<double>();
  }

  const Folder folder_;
};

TEST_F(Tasks, ChoicesAreScoredByTheirLikelihood) {
  const std::string task = folder_.write("task.jsonl", kChoices);
  const Json scores = result(Words{"--task", task, "--metrics", "acc,acc_norm,acc_bytes"} + predictions())["task"];
  const std::vector<Json> rows = said();
  ASSERT_EQ(rows.size(), 4u);
  const std::string ask = "Question: ab\nAnswer:";
  const std::vector<std::string> choices = {" x", " yz", " the sea"};
  for (size_t i = 0; i < choices.size(); ++i) {
    EXPECT_NEAR(rows[0]["log_likelihoods"][i].get<double>(), log_likelihood(ask, choices[i]), 1e-4) << choices[i];
  }
  EXPECT_NEAR(rows[3]["log_likelihoods"][1].get<double>(), log_likelihood("He ran", " away from it all."), 1e-4);
  EXPECT_EQ(rows[0]["reference"], 1);
  EXPECT_EQ(rows[1]["reference"], 1);
  EXPECT_EQ(rows[2]["reference"], 0);
  EXPECT_EQ(rows[3]["reference"], 3);
  EXPECT_EQ(scores["rows"], 4);
  for (const char* metric : {"acc", "acc_norm", "acc_bytes"}) {
    double sum = 0;
    for (const Json& row : rows) {
      double best = -1e30;
      size_t chosen = 0;
      for (size_t i = 0; i < row["choices"].size(); ++i) {
        const std::string text = row["choices"][i];
        double value = row["log_likelihoods"][i];
        if (metric == std::string("acc_bytes")) value /= static_cast<double>(text.size());
        if (metric == std::string("acc_norm")) value /= text == "é" ? 1.0 : static_cast<double>(text.size());
        if (value > best) {
          best = value;
          chosen = i;
        }
      }
      EXPECT_EQ(row[metric].get<double>(), row["reference"] == chosen ? 1.0 : 0.0) << row;
      sum += row[metric].get<double>();
    }
    EXPECT_DOUBLE_EQ(scores[metric].get<double>(), sum / 4) << metric;
    EXPECT_TRUE(scores.contains(std::string(metric) + "_stderr"));
  }
}

TEST_F(Tasks, ExamplesGoBeforeTheQuestion) {
  const std::string task = folder_.write("task.jsonl", kChoices);
  result(Words{"--task", task, "--num-fewshot", "1", "--limit", "1"} + predictions());
  const std::vector<Json> rows = said();
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0]["id"], 1);  // the first row is the example
  const std::string before = "Question: ab\nAnswer: yz\n\nQuestion: What is it?\nAnswer:";
  EXPECT_NEAR(rows[0]["log_likelihoods"][1].get<double>(), log_likelihood(before, " no"), 1e-4);
}

TEST_F(Tasks, TemplatesMakeQuestionsAndChoices) {
  const std::string task = folder_.write("task.jsonl", R"({"q": "ab", "a": ["x", "yz"], "key": 0})");
  result(Words{"--task", task, "--doc-to-text", R"({{q}}:\nA. {{a[0]}})", "--doc-to-choice", R"(["A", "B"])",
               "--doc-to-target", "key"} +
         predictions());
  EXPECT_NEAR(said().at(0)["log_likelihoods"][1].get<double>(), log_likelihood("ab:\nA. x", " B"), 1e-4);
}

TEST_F(Tasks, AnswersAreThoseOfGenerate) {
  const std::string rows =
      R"({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "yes"}]})"
      "\n"
      R"({"question": "And?", "answer": "no"})"
      "\n";
  const std::string task = folder_.write("task.jsonl", rows);
  const Json scores = result(Words{"--task", task, "--metrics", "exact_match,rougeL"} + predictions())["task"];
  EXPECT_EQ(scores["rows"], 2);
  const std::string answers = (folder_ / "answers.jsonl").string();
  const Outcome generated =
      run_hone({"generate", "--model", (folder_ / "model").string(), "--input", task, "--output", answers, "--dtype",
                "float32", "--device", "cpu", "--threads", "1", "--max-new-tokens", "6"});
  ASSERT_EQ(generated.code, 0) << generated.err;
  const std::vector<Json> expected = read_json_lines(answers), predicted = said();
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(predicted.at(i)["generated_text"], expected.at(i)["generated_text"]);
  EXPECT_EQ(predicted[0]["reference"], "yes");
  EXPECT_EQ(predicted[0]["prompt"], "Hi");
}

TEST_F(Tasks, AnAnswerIsFoundByAPatternAndEndsAtAText) {
  // What the model says to this prompt, then a task whose reference is a part of that.
  const std::string free = folder_.write("free.jsonl", R"({"prompt": "abc", "completion": "x"})");
  result(Words{"--task", free, "--until", "never seen"} + predictions());
  const std::string text = said().at(0)["generated_text"];
  ASSERT_FALSE(text.empty());
  const std::string task =
      folder_.write("task.jsonl", Json{{"prompt", "abc"}, {"completion", "## " + text + " !"}}.dump() + "\n");
  const Json whole = result(Words{"--task", task, "--answer-pattern", "^(?:## )?([^!]*)", "--until", "never seen"});
  EXPECT_EQ(whole["task"]["exact_match"], 1.0);
  const Json cut = result(Words{"--task", task, "--until", text} + predictions());
  EXPECT_EQ(said().at(0)["generated_text"], "");
  EXPECT_EQ(cut["task"]["exact_match"], 0.0);
  const std::string two = folder_.write("two.jsonl", Json{{"prompt", "abc"}, {"completion", "#1"}}.dump() + "\n" +
                                                         Json{{"prompt", "abc"}, {"completion", "none"}}.dump() + "\n");
  EXPECT_THAT(error({"--task", two, "--answer-pattern", "#(.)"}), HasSubstr("finds no answer in the reference"));
}

TEST_F(Tasks, RanksGiveTheNumbersOfOne) {
  const std::string choices = folder_.write("choices.jsonl", kChoices);
  const std::string asked = folder_.write("asked.jsonl", R"({"question": "Hi", "answer": "yes"})"
                                                         "\n"
                                                         R"({"question": "And?", "answer": "no"})"
                                                         "\n"
                                                         R"({"question": "So", "answer": "well"})"
                                                         "\n");
  for (const Words& what : {Words{"--task", choices}, Words{"--task", asked, "--metrics", "rougeL"}}) {
    const Json one = result(what + predictions());
    const std::string lines = read_file(folder_ / "said.jsonl");
    for (const char* stage : {"zero_stage=0", "zero_stage=3"}) {
      EXPECT_EQ(result(what + predictions() + Words{stage}, 2), one);
      EXPECT_EQ(read_file(folder_ / "said.jsonl"), lines);
    }
  }
}

TEST_F(Tasks, TheBaseIsBesideWithTheDifference) {
  const std::string model = (folder_ / "model").string();
  const std::string data = folder_.write("data.jsonl", R"({"question": "Hi", "answer": "yes"})");
  const Outcome trained = run_hone(train_arguments(model, data, folder_ / "lora",
                                                   {"max_steps=2", "dtype=float32", "finetuning_type=lora",
                                                    "lora_target_modules=[attention]", "learning_rate=0.1"}));
  ASSERT_EQ(trained.code, 0) << trained.err;
  const std::string task = folder_.write("task.jsonl", kChoices);
  const Words compared = {"--task", task, "--adapter", (folder_ / "lora").string(), "--base"};
  const Json both = result(compared + predictions());
  EXPECT_EQ(both["base"]["task"], result({"--task", task})["task"]);
  const double base = both["base"]["task"]["acc"], tuned = both["tuned"]["task"]["acc"];
  EXPECT_NEAR(both["improvement"]["task"]["acc_points"].get<double>(), 100 * (tuned - base), 1e-9);
  for (const Json& row : said()) EXPECT_NE(row["log_likelihoods"], row["base"]["log_likelihoods"]);
  EXPECT_EQ(Json::parse(read_file(folder_ / "lora/evaluation_results.json")), both);
  const Outcome again = eval(compared);  // its own results may be replaced
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_THAT(again.out, HasSubstr("acc_norm"));
  EXPECT_THAT(again.out, HasSubstr(" ± "));
}

TEST_F(Tasks, AreBesideTheLossOfEvaluationData) {
  const std::string task = folder_.write("task.jsonl", kChoices);
  const std::string data = folder_.write("data.jsonl", R"({"question": "Hi", "answer": "yes"})");
  const Json both = result({"eval_datasets=" + data, "--task", task});
  Json alone = result({"eval_datasets=" + data});
  alone["task"] = result({"--task", task})["task"];
  EXPECT_EQ(both, alone);
}

TEST_F(Tasks, SayWhatDoesNotGoTogether) {
  const std::string choices = folder_.write("choices.jsonl", kChoices);
  const std::string asked = folder_.write("asked.jsonl", R"({"question": "Hi", "answer": "yes"})");
  const std::string open = folder_.write("open.jsonl", R"({"question": "Hi"})");
  EXPECT_THAT(error({"--metrics", "acc"}), HasSubstr("--task FILE"));
  EXPECT_THAT(error({"--task", choices, "--metrics", "acc_nrm"}), HasSubstr("Did you mean 'acc_norm'"));
  EXPECT_THAT(error({"--task", choices, "--metrics", "acc,rougeL"}), HasSubstr("evaluate twice"));
  EXPECT_THAT(error({"--task", choices, "--until", "x"}), HasSubstr("scored by likelihood"));
  EXPECT_THAT(error({"--task", choices, "--ignore-case"}), HasSubstr("scored by likelihood"));
  EXPECT_THAT(error({"--task", asked, "--metrics", "acc"}), HasSubstr("needs rows of multiple choice"));
  EXPECT_THAT(error({"--task", asked, "--metrics", "rougeL", "--ignore-case"}), HasSubstr("of exact_match"));
  EXPECT_THAT(error({"--task", asked, "--group-select", "1"}), HasSubstr("--answer-pattern"));
  EXPECT_THAT(error({"--task", asked, "--answer-pattern", "("}), HasSubstr("is not a regular expression"));
  EXPECT_THAT(error({"--task", asked, "--num-fewshot", "1"}), HasSubstr("none is left"));
  EXPECT_THAT(error({"--task", asked, "--fewshot-file", asked}), HasSubstr("--num-fewshot"));
  EXPECT_THAT(error({"--task", asked, "--doc-to-text", "{{question}}"}), HasSubstr("--doc-to-target"));
  EXPECT_THAT(error({"--task", asked, "--doc-to-text", "{{wrong}}", "--doc-to-target", "answer"}),
              HasSubstr("the columns of the row are question, answer"));
  EXPECT_THAT(error({"--task", open}), HasSubstr("no answer to compare with"));
  EXPECT_THAT(error({"--task", choices, "--predictions", choices}), HasSubstr("the task"));
  const std::string mixed =
      folder_.write("mixed.jsonl", std::string(kChoices) + R"({"question": "Hi", "answer": "x"})");
  EXPECT_THAT(error({"--task", mixed}), HasSubstr("not those of multiple choice"));
  const std::string wrong = folder_.write("wrong.jsonl", R"({"question": "q", "choices": ["a", "b"], "answer": 2})");
  EXPECT_THAT(error({"--task", wrong}), HasSubstr("does not name one of the 2 choices"));
  const std::string said = folder_.write("mine.jsonl", "mine\n");
  EXPECT_THAT(error({"--task", asked, "--predictions", said}), HasSubstr("exists already"));
  EXPECT_EQ(read_file(said), "mine\n");
}

}  // namespace
}  // namespace hone
