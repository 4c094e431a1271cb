// libhone as a program of another project uses it: through its header alone, beside what the program hone does.
#include <gmock/gmock.h>
#include <hone/hone.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <memory>
#include <thread>

#include "app/chat/chat_model_testing.h"
#include "program.h"

namespace hone {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// What a call gave: its exit code, its result or its error.
struct Given {
  int code = 0;
  Json result;
  std::string message, where, fix;
};

using Call = int (*)(const char*, const hone_listener*, char**, hone_error**);

std::string taken(char* text) {
  const std::string copy = text == nullptr ? "" : text;
  hone_text_free(text);
  return copy;
}

Given given(int code, char* result, hone_error* error) {
  Given given{code, Json::parse(taken(result), nullptr, false), "", "", ""};
  if (error != nullptr) {
    given.message = hone_error_message(error);
    given.where = hone_error_where(error);
    given.fix = hone_error_fix(error);
    EXPECT_EQ(hone_error_code(error), code);
  }
  hone_error_free(error);
  return given;
}

/// Functions of C++ as a listener.
struct Listener {
  std::string log;
  std::function<bool(const Json&)> on_metrics;
  std::function<bool(int64_t, const std::string&)> on_text;

  hone_listener view() {
    return {this, [](void* user, const char* text) { static_cast<Listener*>(user)->log += text; },
            [](void* user, const char* row) {
              auto& self = *static_cast<Listener*>(user);
              return self.on_metrics && self.on_metrics(Json::parse(row)) ? 1 : 0;
            },
            [](void* user, int64_t sequence, const char* text) {
              auto& self = *static_cast<Listener*>(user);
              return self.on_text && self.on_text(sequence, text) ? 1 : 0;
            }};
  }
};

Given call(Call function, const Json& settings, Listener* listener = nullptr) {
  char* result = nullptr;
  hone_error* error = nullptr;
  const hone_listener view = listener != nullptr ? listener->view() : hone_listener{};
  const int code = function(settings.dump().c_str(), listener != nullptr ? &view : nullptr, &result, &error);
  return given(code, result, error);
}

class Library : public testing::Test {
 protected:
  Library() : model_((folder_ / "model").string()) {
    write_chat_model(model_);
    std::string rows;
    for (int i = 0; i < 12; ++i) rows += Json{{"prompt", std::to_string(i)}, {"response", "yes"}}.dump() + "\n";
    data_ = folder_.write("data.jsonl", rows);
  }

  Json run(const std::string& output, const Json& more = Json::object()) const {
    Json settings = {{"model_name_or_path", model_},
                     {"datasets", Json::array({{{"path", data_}}})},
                     {"output_dir", (folder_ / output).string()},
                     {"finetuning_type", "lora"},
                     {"dtype", "float32"},
                     {"device", "cpu"},
                     {"threads", 1},
                     {"max_steps", 4},
                     {"max_length", 32},
                     {"per_device_train_batch_size", 2},
                     {"gradient_accumulation_steps", 1},
                     {"report_to", Json::array({"jsonl"})}};
    settings.update(more);
    return settings;
  }

  const Folder folder_;
  const std::string model_;
  std::string data_;
};

TEST(LibraryVersion, IsTheProgramsOwn) { EXPECT_THAT(run_hone({"version"}).out, HasSubstr(hone_version())); }

TEST_F(Library, TrainsAsTheProgramDoesAndTellsEachStep) {
  Listener listener;
  std::vector<Json> rows;
  listener.on_metrics = [&](const Json& row) {
    rows.push_back(row);
    return false;
  };
  const Given trained = call(hone_train, run("out", {{"val_split", 2}, {"eval_steps", 2}}), &listener);
  ASSERT_EQ(trained.code, 0) << trained.message;
  EXPECT_EQ(trained.result["stopped"], false);
  EXPECT_EQ(trained.result["output_dir"], (folder_ / "out").string());
  EXPECT_EQ(rows, read_json_lines(folder_ / "out/metrics.jsonl"));
  EXPECT_EQ(trained.result["last"], rows.back());
  EXPECT_THAT(listener.log, HasSubstr("step"));

  std::vector<std::string> words = {"train"};
  const Json same = run("same", {{"val_split", 2}, {"eval_steps", 2}});
  for (const auto& [key, value] : same.items()) {
    words.push_back(key + "=" + value.dump());
  }
  ASSERT_EQ(run_hone(words).code, 0);
  EXPECT_EQ(read_file(folder_ / "same/adapter_model.safetensors"),
            read_file(folder_ / "out/adapter_model.safetensors"));
}

TEST_F(Library, AListenerStopsTrainingWhichResumes) {
  Listener listener;
  listener.on_metrics = [&](const Json& row) { return row["step"] == 2; };
  const Given stopped = call(hone_train, run("out"), &listener);
  ASSERT_EQ(stopped.code, 0) << stopped.message;
  EXPECT_EQ(stopped.result["stopped"], true);
  EXPECT_EQ(stopped.result["stopped_by"], "its caller");
  EXPECT_EQ(stopped.result["last"]["step"], 2);
  const Given resumed = call(hone_train, run("out", {{"resume", "auto"}}));
  ASSERT_EQ(resumed.code, 0) << resumed.message;
  EXPECT_EQ(resumed.result["stopped"], false);
  EXPECT_EQ(resumed.result["last"]["step"], 4);
}

TEST_F(Library, ErrorsHaveTheirPartsAndPrintNothing) {
  const Given typo = call(hone_train, run("out", {{"lerning_rate", 1e-4}}));
  EXPECT_EQ(typo.code, 2);
  EXPECT_THAT(typo.message, HasSubstr("lerning_rate"));
  EXPECT_THAT(typo.message + typo.fix, HasSubstr("learning_rate"));
  EXPECT_FALSE(typo.where.empty());
  EXPECT_EQ(call(hone_plan, {{"config", "no_such.yaml"}}).code, 2);
  EXPECT_THAT(call(hone_evaluate, Json::array()).message, HasSubstr("JSON object"));
  hone_error* error = nullptr;
  EXPECT_EQ(hone_merge(R"({"modell": "x"})", nullptr, &error), 2);
  EXPECT_THAT(given(2, nullptr, error).message, HasSubstr("Did you mean 'model'"));
  EXPECT_EQ(hone_train("{", nullptr, nullptr, nullptr), 2) << "a caller may pass neither result nor error";
}

TEST_F(Library, PlansEvaluatesAndMerges) {
  ASSERT_EQ(call(hone_train, run("out")).code, 0);
  Json plan = run("plan");
  plan["memory"] = "24GB";
  EXPECT_GT(call(hone_plan, plan).result["configured"]["total"], 0);
  const Json evaluation = {{"model", model_}, {"datasets", data_},  {"adapter", (folder_ / "out").string()},
                           {"base", true},    {"dtype", "float32"}, {"device", "cpu"},
                           {"max_length", 32}};
  const Given evaluated = call(hone_evaluate, evaluation);
  ASSERT_EQ(evaluated.code, 0) << evaluated.message;
  EXPECT_GT(evaluated.result["base"]["eval_loss"], 0);
  Listener listener;
  const hone_listener view = listener.view();
  const Json merge = {
      {"model", model_}, {"adapter", (folder_ / "out").string()}, {"output", (folder_ / "merged").string()}};
  ASSERT_EQ(hone_merge(merge.dump().c_str(), &view, nullptr), 0) << listener.log;
  EXPECT_TRUE(std::filesystem::exists(folder_ / "merged/model.safetensors"));
  EXPECT_FALSE(listener.log.empty());
}

struct FreesModel {
  void operator()(hone_model* model) const { hone_model_free(model); }
};

TEST_F(Library, AModelInMemoryAnswersAsTheProgramDoes) {
  hone_model* opened = nullptr;
  hone_error* error = nullptr;
  const Json settings = {{"model", model_}, {"dtype", "float32"}, {"device", "cpu"}, {"max_length", 64}};
  ASSERT_EQ(hone_model_open(settings.dump().c_str(), nullptr, &opened, &error), 0) << given(2, nullptr, error).message;
  const std::unique_ptr<hone_model, FreesModel> model(opened);
  Listener listener;
  std::vector<std::string> streamed(2);
  listener.on_text = [&](int64_t sequence, const std::string& text) {
    streamed[static_cast<size_t>(sequence)] += text;
    return false;
  };
  const hone_listener view = listener.view();
  const auto ask = [&](const Json& request, const hone_listener* with) {
    char* result = nullptr;
    hone_error* failed = nullptr;
    const int code = hone_model_generate(model.get(), request.dump().c_str(), with, &result, &failed);
    return given(code, result, failed);
  };
  const Json chat = Json::array({{{"role", "user"}, {"content", "Hello"}}});
  const Given answered = ask({{"prompts", Json::array({"Hello", chat})}, {"max_new_tokens", 8}}, &view);
  ASSERT_EQ(answered.code, 0) << answered.message;
  const Json& answers = answered.result["answers"];
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_EQ(answers[0], answers[1]) << "a text is a message of the user";
  EXPECT_THAT(streamed, ElementsAre(answers[0]["text"], answers[1]["text"]));
  const Outcome program = run_hone({"generate", "--model", model_, "--dtype", "float32", "--device", "cpu", "--prompt",
                                    "Hello", "--max-new-tokens", "8"});
  EXPECT_EQ(program.out, answers[0]["text"].get<std::string>() + "\n");

  listener.on_text = [](int64_t, const std::string&) { return true; };
  const Given ended = ask({{"prompts", Json::array({"Hello"})}, {"max_new_tokens", 8}}, &view);
  EXPECT_EQ(ended.result["answers"][0]["finish_reason"], "stopped");
  EXPECT_THAT(ask({{"prompts", Json::array()}}, nullptr).message, HasSubstr("nothing to answer"));
  EXPECT_THAT(ask({{"prompts", Json::array({"a"})}, {"tempreature", 1}}, nullptr).message,
              HasSubstr("Did you mean 'temperature'"));
  EXPECT_EQ(ask({{"prompts", Json::array({"again"})}, {"max_new_tokens", 2}}, nullptr).code, 0);
}

TEST_F(Library, CallsWaitForEachOtherAndACallbackMayNotCall) {
  Listener listener;
  Given within;
  listener.on_metrics = [&](const Json&) {
    within = call(hone_plan, run("plan"));
    return true;
  };
  Given other;
  std::thread second([&] { other = call(hone_train, run("second", {{"max_steps", 1}})); });
  EXPECT_EQ(call(hone_train, run("first"), &listener).code, 0);
  second.join();
  EXPECT_EQ(other.code, 0) << other.message;
  EXPECT_THAT(within.message, HasSubstr("a callback calls the library"));
}

TEST_F(Library, SignalsStopARunAndBelongToTheCallerAfterwards) {
  struct sigaction before {};
  sigaction(SIGTERM, nullptr, &before);
  Listener listener;
  listener.on_metrics = [](const Json&) {
    raise(SIGTERM);
    return false;
  };
  const Given stopped = call(hone_train, run("out"), &listener);
  ASSERT_EQ(stopped.code, 0) << stopped.message;
  EXPECT_EQ(stopped.result["stopped_by"], "SIGTERM");
  struct sigaction after {};
  sigaction(SIGTERM, nullptr, &after);
  EXPECT_EQ(after.sa_handler, before.sa_handler);
  hone_stop();  // without a call: nothing
  EXPECT_EQ(call(hone_train, run("more")).result["stopped"], false);
}

TEST_F(Library, NothingIsPrinted) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const int standard = dup(STDOUT_FILENO), error = dup(STDERR_FILENO);
  dup2(ends[1], STDOUT_FILENO);
  dup2(ends[1], STDERR_FILENO);
  close(ends[1]);
  const int trained = call(hone_train, run("out")).code, failed = call(hone_train, run("out")).code;
  dup2(standard, STDOUT_FILENO);
  dup2(error, STDERR_FILENO);
  std::string printed(4096, '\0');
  printed.resize(static_cast<size_t>(std::max<ssize_t>(0, read(ends[0], printed.data(), printed.size()))));
  close(ends[0]);
  close(standard);
  close(error);
  EXPECT_EQ(trained, 0);
  EXPECT_EQ(failed, 2) << "the folder is taken";
  EXPECT_THAT(printed, IsEmpty());
}

/// The Python package over the library of this build.
TEST_F(Library, PythonTrainsAndAsks) {
  if (std::system("python3 -c '' 2> /dev/null") != 0) GTEST_SKIP() << "no python3";
  const std::string script = folder_.write("script.py", R"(
import json, sys
import hone
run, model = json.load(open(sys.argv[1])), sys.argv[2]
assert hone.version() == sys.argv[3]
steps, evaluations = [], []
ended = hone.train(run, val_split=2, eval_steps=2, on_step=steps.append, on_eval=evaluations.append)
assert not ended["stopped"] and [row["step"] for row in steps] == [1, 2, 3, 4], (ended, steps)
assert len(evaluations) == 2 and "eval_loss" in evaluations[0], evaluations
try:
    hone.train(run, output_dir=run["output_dir"] + "-typo", lerning_rate=1)
    raise SystemExit("a typo was accepted")
except hone.HoneError as error:
    assert "lerning_rate" in error.message and error.code == 2 and error.where, error
def fails(row):
    raise ValueError("of the caller")
try:
    hone.train(run, output_dir=run["output_dir"] + "-raised", on_step=fails)
    raise SystemExit("what a callback raises was lost")
except ValueError as error:
    assert str(error) == "of the caller"
log = []
assert hone.train(run, output_dir=run["output_dir"] + "-stopped", on_step=lambda row: False, on_log=log.append)["stopped"]
assert any("stopped by its caller" in text for text in log), log
assert hone.plan(run, memory="24GB")["configured"]["total"] > 0
with hone.Model(model, adapter=run["output_dir"], device="cpu", dtype="float32", max_length=64) as answering:
    parts = []
    one = answering.generate("Hello", max_new_tokens=4, on_text=parts.append)
    assert "".join(parts) == one["text"], (parts, one)
    chat = answering.generate([{"role": "user", "content": "Hello"}], max_new_tokens=4)
    many = answering.generate(["Hello", "Hello"], max_new_tokens=4)
    assert chat == one and many == [one, one], (one, chat, many)
hone.merge(model, run["output_dir"], run["output_dir"] + "-merged")
print("all held")
)");
  const std::string settings = folder_.write("run.json", run("python").dump());
  const std::string command = "PYTHONPATH='" HONE_SOURCE_DIR "/python' HONE_LIBRARY='" HONE_LIBRARY "' python3 '" +
                              script + "' '" + settings + "' '" + model_ + "' '" + hone_version() + "' 2>&1";
  FILE* pipe = popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string output;
  for (char buffer[4096]; fgets(buffer, sizeof buffer, pipe) != nullptr;) output += buffer;
  EXPECT_EQ(pclose(pipe), 0) << output;
  EXPECT_EQ(output, "all held\n");
}

}  // namespace
}  // namespace hone
