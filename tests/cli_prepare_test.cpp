// Tests of data preparation through the command line: the verb prepare, the cache, and data that change during a run.
#include <gmock/gmock.h>

#include "program.h"

namespace hone {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

namespace fs = std::filesystem;

/// A tiny model with a chat template, and chat data.
class Preparation : public testing::Test {
 protected:
  Preparation() {
    const fs::path fixtures = fs::path(HONE_SOURCE_DIR) / "tests/fixtures", tokenizer = folder_ / "tokenizer";
    fs::create_directories(tokenizer);
    fs::copy_file(fixtures / "tokenizers/qwen3/tokenizer.json", tokenizer / "tokenizer.json");
    fs::copy_file(fixtures / "templates/chatml.jinja", tokenizer / "chat_template.jinja");
    folder_.write("tokenizer/tokenizer_config.json", R"({"eos_token": "<|im_end|>"})");
    Json config = tiny_config();
    config["vocab_size"] = 151936;
    model_ = make_model(folder_, config, tokenizer.string());
    fs::remove(fs::path(model_) / "model.safetensors");  // preparation does not need weights
  }

  static std::string rows(int count) {
    std::string text;
    for (int i = 0; i < count; ++i) {
      const std::string number = std::to_string(i);
      text += Json{{"messages",
                    {{{"role", "user"}, {"content", "Say " + number}}, {{"role", "assistant"}, {"content", number}}}}}
                  .dump() +
              "\n";
    }
    return text;
  }
  Outcome prepare(std::vector<std::string> more, const std::string& verb = "prepare") {
    std::vector<std::string> arguments = {verb, "model_name_or_path=" + model_, "datasets=" + data_, "threads=2"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_hone(arguments);
  }

  Folder folder_;
  std::string model_, data_ = folder_.write("chat.jsonl", rows(30));
};

TEST_F(Preparation, ReportsAndWritesNothingUnlessAsked) {
  folder_.write("chat.jsonl", rows(30) + rows(2));
  const Outcome outcome = prepare({"val_split=3"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out,
              AllOf(HasSubstr("lengths of the rows of chat, in tokens"), HasSubstr("█"), HasSubstr("[[0<|im_end|>]]"),
                    HasSubstr("end of turn: <|im_end|> ("), HasSubstr("validation: 3 samples"),
                    HasSubstr("MB/s with 2 threads"), HasSubstr("nothing was written")));
  EXPECT_THAT(outcome.out + outcome.err, HasSubstr("repeat an earlier one"));
  EXPECT_THAT(outcome.out, Not(HasSubstr("\x1b[")));  // no colour in a pipe
}

TEST_F(Preparation, TemplatesThatAreBuiltInAreNamed) {
  const Outcome same = prepare({"chat_template=chatml"});
  ASSERT_EQ(same.code, 0) << same.err;
  EXPECT_THAT(same.out, AllOf(HasSubstr("[[0<|im_end|>]]"), Not(HasSubstr("renders chats otherwise"))));
  const Outcome other = prepare({"chat_template=qwen"});
  ASSERT_EQ(other.code, 0) << other.err;
  EXPECT_THAT(other.out, AllOf(HasSubstr("[[0<|im_end|>]]"), HasSubstr("You are Qwen"),
                               HasSubstr("own template renders chats otherwise than chat_template qwen")));
  const Outcome missing = prepare({"chat_template=llama3"});
  EXPECT_EQ(missing.code, 2);
  EXPECT_THAT(missing.err, AllOf(HasSubstr("<|start_header_id|>"), HasSubstr("add_special_tokens: [")));
  const Outcome unknown = prepare({"chat_template=chatlm"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.err, AllOf(HasSubstr("Did you mean 'chatml'"), HasSubstr("deepseek_v3")));
}

TEST_F(Preparation, CallsInOpenAisFormGiveTheSamplesOfObjects) {
  const auto row = [](const Json& content, const Json& arguments) {
    const Json call = {{"type", "function"}, {"function", {{"name", "weather"}, {"arguments", arguments}}}};
    Json answer = {{"role", "assistant"}, {"tool_calls", Json::array({call})}};
    if (content != "missing") answer["content"] = content;
    const Json messages = {{{"role", "user"}, {"content", "Rome?"}}, answer};
    return Json{{"messages", messages}}.dump() + "\n";
  };
  const std::string file = folder_.write(
      "calls.jinja",
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}"
      "{{ c.function.name + c.function.arguments }};{{ c.function.arguments | tojson }}"
      "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }};{% endfor %}{% endfor %}<|im_end|>\n{% endfor %}");
  const Json object = {{"city", "Rome"}, {"days", 2}};
  for (const std::string& data : {row(nullptr, object), row(nullptr, object.dump()), row("missing", object),
                                  row("missing", {{"city", "Rome"}, {"days", 2}, {"query", nullptr}})}) {
    folder_.write("chat.jsonl", data);
    const Outcome outcome = prepare({"data_checks=warn", "chat_template_file=" + file, "--debug", "1"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_THAT(
        outcome.out,
        HasSubstr(R"([[weather{"city": "Rome", "days": 2};{"city": "Rome", "days": 2}city=Rome;days=2;<|im_end|>]])"))
        << data;
  }
}

TEST_F(Preparation, WritesTheSamplesOfARepositoryAsOneFile) {
  folder_.write("code/a.py", "def f(x):\n    return x + 1\n");
  data_ = R"([{"path": ")" + (folder_ / "code").string() + R"(", "type": "code", "min_tokens": 2}])";
  const Outcome outcome = prepare({"--output", (folder_ / "out").string()});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("full_file: 1 found, 1 created"), HasSubstr("all_data.jsonl")));
  const std::vector<Json> rows = read_json_lines(folder_ / "out/all_data.jsonl");
  ASSERT_FALSE(rows.empty());
  EXPECT_EQ(rows[0]["text"], "def f(x):\n    return x + 1\n");
  data_ = (folder_ / "out/all_data.jsonl").string();
  EXPECT_THAT(prepare({}).out, HasSubstr("columns not used: file, line, type"));
  EXPECT_THAT(prepare({"--output", "x"}).err, HasSubstr("where the samples of type code go"));
}

TEST_F(Preparation, RefusesColumnsThatTurnTheMeaningRound) {
  folder_.write("chat.jsonl", R"({"prompt": "q", "completion": "a", "label": false, "id": 1})"
                              "\n");
  const Outcome refused = prepare({});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("ignore_columns: [label]"));
  const Outcome settled = prepare({"ignore_columns=[label]"});
  EXPECT_EQ(settled.code, 0) << settled.err;
  EXPECT_THAT(settled.out, HasSubstr("data chat: columns not used: id, label"));
}

TEST_F(Preparation, KeepsTokensThatLaterRunsUse) {
  const std::string cache = "tokenized_cache=" + (folder_ / "cache").string();
  EXPECT_THAT(prepare({cache}, "preprocess").out, HasSubstr("tokenized_cache: chat: built in "));
  const Outcome again = prepare({cache});
  EXPECT_THAT(again.out, AllOf(HasSubstr("tokenized_cache: chat: reused from "), HasSubstr("[[0<|im_end|>]]")));
  folder_.write("chat.jsonl", rows(31));
  EXPECT_THAT(prepare({cache}).out, AllOf(HasSubstr("built ("), HasSubstr("chat.jsonl has changed")));
  EXPECT_THAT(prepare({cache, "max_length=100"}).out, HasSubstr("max_length is 100, was "));
}

TEST_F(Preparation, ShowsWholeSamples) {
  const Outcome outcome = prepare({"--debug", "5"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  for (const char* answer : {"[[0<|", "[[6<|", "[[12<|", "[[18<|", "[[24<|"}) {
    EXPECT_THAT(outcome.out, HasSubstr(answer));
  }
}

TEST_F(Preparation, SplitsRowsOverNodesWithoutAModel) {
  const fs::path out = folder_ / "shards";
  const Outcome outcome = run_hone({"prepare", "datasets=" + data_, "--split-nodes", "4", "--output", out.string()});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(read_json_lines(out / "training_data_node_0.jsonl").size(), 7u);
  EXPECT_EQ(read_json_lines(out / "training_data_node_3.jsonl").size(), 9u);
  EXPECT_EQ(Json::parse(read_file(out / "dataset_stats.json"))["total_samples"], 30);
  const fs::path other = folder_ / "guide";
  const Outcome typed = run_hone({"prepare", "--input", data_, "--num_nodes", "4", "--output_dir", other.string()});
  ASSERT_EQ(typed.code, 0) << typed.err;
  EXPECT_EQ(read_file(other / "training_data_node_3.jsonl"), read_file(out / "training_data_node_3.jsonl"));
}

TEST_F(Preparation, RefusesWhatCannotBeMeant) {
  const auto fails = [](const Outcome& outcome, const char* text) {
    EXPECT_EQ(outcome.code, 2);
    EXPECT_THAT(outcome.err, HasSubstr(text));
  };
  fails(run_hone({"prepare", "datasets=" + data_}), "model_name_or_path is not stated");
  fails(prepare({"--split-nodes", "4"}), "--output");
  fails(prepare({"--output", "x"}), "--split-nodes");
  fails(prepare({"--split-nodes", "31", "--output", (folder_ / "x").string()}),
        "30 rows cannot be split over 31 nodes");
  fails(prepare({"--debug", "0"}), "--debug");
  fails(prepare({"tokenized_cache=" + data_}), "tokenized_cache");
  fails(prepare({"data_checks=ignore"}), "data_checks");
}

TEST_F(Preparation, StopsAtDataThatIsNoGroundToTrainOnUnlessToldOtherwise) {
  folder_.write("chat.jsonl", rows(10) + R"({"messages": [{"role": "user", "content": "alone"}]})");
  const Outcome stopped = prepare({});
  EXPECT_EQ(stopped.code, 2);
  EXPECT_THAT(stopped.err, AllOf(HasSubstr("1 of the 11 rows"), HasSubstr("data_checks: warn")));
  const Outcome warned = prepare({"data_checks=warn"});
  EXPECT_EQ(warned.code, 0);
  EXPECT_THAT(warned.out + warned.err, HasSubstr("1 of the 11 rows"));
}

TEST(DataOfAResumedRun, AreHeldAgainstThoseItStoppedWith) {
  const Folder folder;
  const std::string model = make_model(folder);
  const std::string data = folder.write("data.jsonl", progressions(40));
  const auto train = [&](std::vector<std::string> more) {
    return run_hone(train_arguments(model, data, folder / "out", more));
  };
  ASSERT_EQ(train({"max_steps=2", "save_steps=2"}).code, 0);
  folder.write("data.jsonl", progressions(40) + progressions(1, 9));
  const Outcome refused = train({"max_steps=4", "resume=auto"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err,
              AllOf(HasSubstr("the data set 'data' ("), HasSubstr("data.jsonl) has changed: 41 samples of"),
                    HasSubstr("was 40 samples of"), HasSubstr("ignore_data_skip: true")));
  const Outcome batches = run_hone([&] {
    folder.write("data.jsonl", progressions(40));
    return train_arguments(model, data, folder / "out", {"max_steps=4", "resume=auto", "seed=7"});
  }());
  EXPECT_EQ(batches.code, 2);
  EXPECT_THAT(batches.err, HasSubstr("data_seed is 7, was 42"));

  folder.write("data.jsonl", progressions(41, 3));
  const Outcome anew = train({"max_steps=4", "save_steps=3", "resume=auto", "ignore_data_skip=true"});
  ASSERT_EQ(anew.code, 0) << anew.err;
  EXPECT_THAT(anew.out,
              HasSubstr("ignore_data_skip: the run starts from the beginning of the data; the data set 'data'"));
  const std::vector<Json> lines = read_json_lines(folder / "out/metrics.jsonl");
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_LT(lines[2]["epoch"].get<double>(), lines[1]["epoch"].get<double>());
  // From then on the run uses them.
  fs::remove_all(folder / "out/checkpoint-4");
  const Outcome next = train({"max_steps=4", "resume=auto"});
  ASSERT_EQ(next.code, 0) << next.err;
  EXPECT_EQ(read_json_lines(folder / "out/metrics.jsonl").back()["loss"], lines.back()["loss"]);
}

TEST(DataOfAResumedRun, OtherValidationDataOnlyWarn) {
  const Folder folder;
  const std::string model = make_model(folder);
  const std::string data = folder.write("data.jsonl", progressions(40));
  const std::string eval = "eval_datasets=" + folder.write("eval.jsonl", progressions(4, 2));
  ASSERT_EQ(run_hone(train_arguments(model, data, folder / "out", {"max_steps=2", "save_steps=2", eval})).code, 0);
  folder.write("eval.jsonl", progressions(5, 3));
  const Outcome resumed = run_hone(train_arguments(model, data, folder / "out", {"max_steps=3", "resume=auto", eval}));
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_THAT(resumed.out + resumed.err, HasSubstr("the validation data differ from those of the stopped run"));
}

}  // namespace
}  // namespace hone
