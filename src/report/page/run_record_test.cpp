#include "report/page/run_record.h"

#include <gmock/gmock.h>

#include <filesystem>

#include "core/base/error.h"
#include "core/text/json.h"
#include "report/folder_testing.h"
#include "report/page/load_record.h"
#include "report/page/record_text.h"

namespace hone {
namespace {

using testing::HasSubstr;

class RunRecord : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) const { write_text(folder_ / name, text); }
  void append(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name, std::ios::binary | std::ios::app) << text;
  }
  Json record(const RecordLimits& limits = {}) const { return read_run_record(folder_.path(), limits); }
  std::string notes() const { return record()["notes"].dump(); }

  TestFolder folder_;
};

TEST_F(RunRecord, AFolderWithoutARunIsRefused) {
  EXPECT_THROW(record(), UserError) << "empty";
  write("notes.txt", "mine");
  EXPECT_THROW(record(), UserError);
  EXPECT_THROW(read_run_record(folder_ / "absent"), UserError);
}

TEST_F(RunRecord, ARunThatWasKilledShowsWhatItHasWritten) {
  write("metrics.jsonl",
        "{\"step\":0,\"eval_loss\":5.0}\n{\"step\":1,\"loss\":4.0,\"tokens_per_second\":10,\"memory/max_alloc\":7}\n"
        "{\"step\":2,\"loss\":null,\"nonfinite\":{\"loss\":\"NaN\"}}\n{\"step\":2,\"eval_loss\":3.0}\n"
        "{\"step\":3,\"loss\":2.5,\"memory/max_alloc\":6}\n{\"step\":4,\"lo");
  const Json found = record();
  EXPECT_EQ(found["state"]["kind"], "open");
  EXPECT_EQ(found["step"], 3);
  EXPECT_EQ(found["series"]["loss"]["x"], (Json{1, 2, 3}));
  EXPECT_EQ(found["series"]["loss"]["y"], (Json{4.0, nullptr, 2.5}));
  EXPECT_EQ(found["summary"]["loss"], 2.5);
  EXPECT_EQ(found["summary"]["eval_loss"], 3.0) << "that before training does not count";
  EXPECT_EQ(found["summary"]["eval_step"], 2);
  EXPECT_EQ(found["summary"]["memory"], 7);
  EXPECT_THAT(notes(), HasSubstr("the last line is not complete"));
}

TEST_F(RunRecord, ALastLineThatIsWholeButForItsEndCounts) {
  write("metrics.jsonl", "{\"step\":1,\"loss\":4.0}");
  EXPECT_EQ(record()["summary"]["loss"], 4.0);
  EXPECT_EQ(record()["notes"].size(), 0u);
}

TEST_F(RunRecord, DamagedFilesAreLeftOutAndNamed) {
  write("metrics.jsonl", "\x01\xff garbage\n[1]\n{\"step\":\"x\"}\n{\"step\":5,\"loss\":1}\n{\"step\":4,\"loss\":2}\n" +
                             std::string(200, '[') + "\n");
  write("training_info.json", "{\"metadata\": [], \"metrics\": 3}");
  write("run_plan.json", "not json");
  write("expert_load.jsonl",
        "{\"step\":1,\"layers\":7}\n{\"step\":2,\"layers\":[[]]}\n{\"step\":3,\"layers\":[[\"x\"]]}\n");
  write("generations.jsonl", "{\"step\":1,\"prompt\":5,\"generated_text\":{}}\n");
  std::filesystem::create_directory(folder_ / "config.resolved.yaml");
  const Json found = record();
  EXPECT_EQ(found["summary"]["loss"], 1);
  EXPECT_TRUE(found["load"].is_null());
  EXPECT_EQ(found["state"]["kind"], "open");
  EXPECT_THAT(notes(), HasSubstr("4 lines left out"));
  EXPECT_THAT(notes(), HasSubstr("1 line left out of steps that came before"));
  EXPECT_THAT(notes(), HasSubstr("run_plan.json is not JSON"));
  EXPECT_THAT(notes(), HasSubstr("config.resolved.yaml cannot be read"));
}

TEST_F(RunRecord, AnEndBeforeTheLastStepIsOfAnEarlierStart) {
  write("metrics.jsonl", "{\"step\":8,\"loss\":1}\n");
  write("training_info.json", R"({"metadata":{"status":"stopped by SIGTERM"},"metrics":{"global_step":8}})");
  EXPECT_EQ(record()["state"]["kind"], "stopped");
  write("training_info.json", R"({"metadata":{"status":"completed"},"metrics":{"global_step":8}})");
  EXPECT_EQ(record()["state"]["kind"], "done");
  write("training_info.json", R"({"metadata":{"status":"completed"},"metrics":{"global_step":7}})");
  EXPECT_EQ(record()["state"]["kind"], "open");
}

TEST_F(RunRecord, WarningsAreThereOnceWithTheirFurtherLines) {
  const std::string time = "2026-11-28 09:05:00.123  ";
  write("run.log", time + "INFO     fine\n" + time + "WARNING  disk\n  is full\n" + time + "WARNING  other\n" + time +
                       "WARNING  disk\n  is full\n" + time + "ERROR    ftp://me:word@host/x fails\n");
  const Json warnings = record()["warnings"];
  ASSERT_EQ(warnings.size(), 3u);
  EXPECT_EQ(warnings[0]["text"], "other");
  EXPECT_EQ(warnings[1]["text"], "disk\nis full");
  EXPECT_EQ(warnings[1]["times"], 2);
  EXPECT_EQ(warnings[1]["last"], "2026-11-28 09:05:00");
  EXPECT_EQ(warnings[2]["level"], "error");
  EXPECT_EQ(warnings[2]["text"], "ftp://…@host/x fails");
}

TEST_F(RunRecord, FirstAndLastAnswersToAPrompt) {
  write("generations.jsonl",
        R"({"step":0,"prompt":"p","generated_text":"a","expected":"e","finish_reason":"length"}
{"step":0,"prompt":"q","generated_text":"x","expected":"f"}
{"step":5,"prompt":"p","generated_text":"b","expected":"e","finish_reason":"stop"}
{"step":9,"prompt":"p","generated_text":"c","expected":"e","finish_reason":"stop"}
)");
  write("metrics.jsonl", "");
  const Json answers = record()["answers"];
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_EQ(answers[0]["first"], (Json{{"step", 0}, {"text", "a"}, {"finished", false}}));
  EXPECT_EQ(answers[0]["last"], (Json{{"step", 9}, {"text", "c"}, {"finished", true}}));
  EXPECT_FALSE(answers[1].contains("last"));
  EXPECT_EQ(record({.samples = 1})["answers"].size(), 1u);
  EXPECT_FALSE(record({.details = false}).contains("answers"));
}

TEST_F(RunRecord, AReaderAddsWhatIsNewAndShowsWhatAWholeReadShows) {
  RunRecordReader reader(folder_.path());
  EXPECT_THROW(reader.read(), UserError);
  const auto same = [&](const char* what) {
    SCOPED_TRACE(what);
    Json found = reader.read();
    EXPECT_EQ(found, record());
    return found;
  };
  write("metrics.jsonl", "{\"step\":1,\"loss\":4.0}\n{\"step\":2,\"loss\":3.0}\n");
  write("generations.jsonl", "{\"step\":1,\"prompt\":\"p\",\"generated_text\":\"a\"}\n");
  write("expert_load.jsonl", "{\"step\":1,\"layers\":[[0.5,0.5]]}\n");
  write("run.log", "2026-11-28 09:05:00.123  WARNING  disk\n");
  same("at first");
  append("metrics.jsonl", "{\"step\":3,\"loss\":2.0,\"eta\":9}\n{\"step\":4,\"loss\"");
  append("generations.jsonl", "{\"step\":3,\"prompt\":\"p\",\"generated_text\":\"b\"}\nnothing\n");
  append("expert_load.jsonl", "{\"step\":3,\"layers\":[[0.75,0.25]]}");
  append("run.log", "  is full");
  Json found = same("lines appended, and half a line");
  EXPECT_EQ(found["step"], 3);
  EXPECT_EQ(found["load"]["steps"], (Json{1, 3}));
  EXPECT_EQ(found["warnings"][0]["text"], "disk\nis full");
  append("metrics.jsonl", ":1.5}\n");
  append("expert_load.jsonl", "\n{\"step\":5,\"layers\":[[1.0,0.0]]}\n");
  append("run.log", " of files\n");
  found = same("the line is whole");
  EXPECT_EQ(found["summary"]["loss"], 1.5);
  EXPECT_EQ(found["lines"], 4) << "each line once";
  EXPECT_EQ(found["notes"].size(), 1u) << found["notes"];
  write("metrics.jsonl", "{\"step\":1,\"loss\":4.0}\n");
  EXPECT_EQ(same("a shorter file")["step"], 1);
  write("run.log", "");
  std::filesystem::remove(folder_ / "generations.jsonl");
  EXPECT_EQ(same("no answers")["answers"].size(), 0u);
}

TEST(RunRecordText, SecretsAndLongTextsAreCut) {
  EXPECT_EQ(without_secrets("mlflow_tracking_uri: \"https://me:word@host:5000/x\"\nlora_r: 8\n"),
            "mlflow_tracking_uri: \"https://…@host:5000/x\"\nlora_r: 8\n");
  EXPECT_EQ(without_secrets("  wandb_api_key: abc\nadd_tokens: [a]\nhub_access_token: null"),
            "  wandb_api_key: …\nadd_tokens: [a]\nhub_access_token: null");
  EXPECT_EQ(without_secrets("a@b.c, https://host/p@q"), "a@b.c, https://host/p@q");
  EXPECT_EQ(clipped("abc", 3), "abc");
  EXPECT_EQ(clipped("aäb", 2), "a…") << "no half characters";
}

TEST(LoadRecord, NamesDeadAndHotExpertsOfTheLastRow) {
  LoadRecord load;
  load.add(Json{{"step", 1}, {"layers", {{0.25, 0.25, 0.25, 0.25}, {1.0, 0.0, 0.0, 0.0}}}});
  load.add(Json{{"step", 2}, {"layers", {{0.25, 0.25, 0.5, 0.0}}}});  // other sizes
  load.add(Json{{"step", 3}, {"layers", {{0.7, 0.1, 0.2, 0.0}, {0.25, 0.25, 0.25, 0.25}}}});
  const Json json = load.json(1000);
  EXPECT_EQ(json["steps"], (Json{1, 3}));
  EXPECT_EQ(json["bytes"], "ICAgIIAAAABaDRoAICAgIA==");
  EXPECT_EQ(json["dead"], (Json{{0, 3}}));
  EXPECT_EQ(json["hot"].dump(), "[[0,0,2.8]]");
  EXPECT_EQ(load.json(8)["steps"], Json{3}) << "of one row, the last";
  EXPECT_TRUE(load.json(7).is_null());
}

TEST(LoadRecord, ALongRunKeepsItsEnds) {
  LoadRecord load;
  for (int64_t step = 1; step <= 5000; ++step) load.add(Json{{"step", step}, {"layers", {{0.5, 0.5}}}});
  const Json steps = load.json(40)["steps"];
  ASSERT_EQ(steps.size(), 20u);
  EXPECT_EQ(steps.front(), 1);
  EXPECT_EQ(steps.back(), 5000);
  for (size_t i = 1; i < steps.size(); ++i) {
    const int64_t gap = steps[i].get<int64_t>() - steps[i - 1].get<int64_t>();
    EXPECT_GT(gap, 150);
    EXPECT_LT(gap, 400);
  }
}

TEST(LoadRecord, ALoadIsAByte) {
  EXPECT_EQ(load_byte(0, 4), 0);
  EXPECT_EQ(load_byte(1e-9, 4), 1) << "few tokens are not none";
  EXPECT_EQ(load_byte(0.25, 4), 32);
  EXPECT_EQ(load_byte(1, 128), 255);
}

}  // namespace
}  // namespace hone
