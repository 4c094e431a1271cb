#include "app/bench/grid/grid_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "app/bench/grid/grid_report.h"
#include "app/bench/grid/grid_testing.h"
#include "core/base/error.h"
#include "core/text/json.h"

namespace hone {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

class GridRowsTest : public ::testing::Test {
 protected:
  GridRowsTest() {
    std::string name = (fs::temp_directory_path() / "hone_grid_XXXXXX").string();
    folder_ = mkdtemp(name.data());
  }
  ~GridRowsTest() override { fs::remove_all(folder_); }

  fs::path file() const { return folder_ / "grid.jsonl"; }
  std::string text() const {
    std::ifstream in(file(), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void write(const std::string& text) const { std::ofstream(file(), std::ios::binary) << text; }

  fs::path folder_;
};

/// A process that exited with `code`.
CapturedProcess exited(int code, const std::string& out, const std::string& err) {
  return {.status = code << 8, .seconds = 2, .peak_resident_bytes = 1000, .out = out, .err = err};
}

GridScenario scenario() { return grid_of("include: [{model: qwen3-8b}]").scenarios.front(); }

Json row_of(const CapturedProcess& process) { return make_row(scenario(), process, 60); }

Json measured(double tokens, double plan) {
  return {{"tokens_per_second", tokens},
          {"step_ms", {{"median", 10.0}, {"min", 9.0}, {"max", 11.0}}},
          {"model_tflops", 1.5},
          {"memory", {{"plan", plan}, {"used", 2 * plan}, {"used_before", 5}, {"host", 7}}}};
}

TEST(GridRow, SaysHowTheScenarioEnded) {
  const Json good = row_of(exited(0, "NCCL version 2\n{\"tokens_per_second\": 5}\nbye\n", "note\n"));
  EXPECT_EQ(good["status"], "measured");
  EXPECT_EQ(good["result"]["tokens_per_second"], 5);
  EXPECT_EQ(good["scenario"]["model"], "qwen3-8b");
  EXPECT_EQ(good["command"], "hone bench step --model qwen3-8b --json -");

  const std::string fit = "error: the step needs 9 GB, 8 GB are free\n  where: memory plan\n  fix:   lower --batch\n";
  EXPECT_EQ(row_of(exited(2, "", fit))["status"], "does not fit");
  EXPECT_EQ(row_of(exited(4, "", "error: the GPU has no 9.00 GB of memory left\n"))["status"], "does not fit");

  const Json refused = row_of(exited(2, "",
                                     "note: x\nrank 1: error: 'fulll' is not a mode.\n  where: --mode\n"
                                     "  fix:   use full\nrank 0: error: another\n  fix:   other\n"));
  EXPECT_EQ(refused["status"], "refused");
  EXPECT_EQ(refused["message"], "'fulll' is not a mode.");
  EXPECT_EQ(refused["fix"], "use full");
  EXPECT_EQ(refused["exit_code"], 2);

  CapturedProcess slow;
  slow.status = 15;
  slow.timed_out = true;
  EXPECT_EQ(row_of(slow)["status"], "timed out");
  EXPECT_EQ(row_of(slow)["message"], "it took longer than 60 s");

  const Json killed = row_of({.status = 9, .err = std::string(10'000, 'x') + "\nlast\n"});
  EXPECT_EQ(killed["status"], "crashed");
  EXPECT_EQ(killed["signal"], 9);
  EXPECT_EQ(killed["stderr"], "last\n") << "whole lines of the last 4 kB";
  EXPECT_EQ(row_of(exited(4, "", "rank 0 was ended by signal 11\n"))["message"], "rank 0 was ended by signal 11");
  EXPECT_EQ(row_of(exited(3, "", ""))["message"], "it ended with exit code 3");
  for (const char* out : {"", "no JSON", "}{", "{\"tokens"}) EXPECT_EQ(row_of(exited(0, out, ""))["status"], "crashed");
}

TEST_F(GridRowsTest, TheLastRowOfACommandCountsAndAllStay) {
  const std::string command = scenario().command_line();
  {
    GridRows rows(file());
    EXPECT_EQ(rows.find(command), nullptr);
    rows.add(row_of(exited(2, "", "error: no\n")));
    rows.add(row_of(exited(0, "{\"a\": 1}", "")));
    EXPECT_EQ(status_of(*rows.find(command)), GridStatus::kMeasured);
  }
  const GridRows rows(file());
  EXPECT_EQ((*rows.find(command))["result"]["a"], 1);
  const std::string lines = text();
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 2);
}

TEST_F(GridRowsTest, AnUnfinishedLastLineIsIgnoredAndRewritten) {
  const std::string whole = row_of(exited(0, "{\"a\": 1}", "")).dump() + "\n";
  for (size_t kept : {size_t{0}, size_t{1}, whole.size() / 2, whole.size() - 1}) {
    write(whole + whole.substr(0, kept));
    GridRows rows(file());
    EXPECT_EQ(text(), whole + whole.substr(0, kept)) << "reading changes nothing";
    Json other = row_of(exited(2, "", "error: no\n"));
    other["command"] = "hone bench step --model other";
    rows.add(other);
    EXPECT_EQ(text(), whole + other.dump() + "\n") << kept;
  }
}

TEST_F(GridRowsTest, AForeignFileIsRefusedAndStays) {
  const std::string good = row_of(exited(0, "{\"a\": 1}", "")).dump() + "\n";
  for (const std::string bad : {"{}\n", "[1]\n", "{\"command\": 1, \"status\": \"x\"}\n", "hello\n", "\xff\n"}) {
    write(good + bad);
    try {
      const GridRows rows(file());
      ADD_FAILURE() << bad;
    } catch (const UserError& error) {
      EXPECT_EQ(error.where(), file().string() + ":2");
    }
    EXPECT_EQ(text(), good + bad);
  }
}

TEST_F(GridRowsTest, CsvHasASettingAColumnAndQuotesWhatNeedsIt) {
  const GridFile grid = grid_of("matrix: {model: ['a,\"b\"', c, d], setup: {x: {batch: 2}}}\nmemory: host");
  GridRows rows(file());
  CapturedProcess process = exited(0, measured(1000.5, 4).dump(), "");
  rows.add(make_row(grid.scenarios[0], process, 60));
  rows.add(make_row(grid.scenarios[1], exited(2, "", "error: one, two\n"), 60));
  const std::string csv = grid_csv(grid, rows);
  EXPECT_THAT(csv, HasSubstr("status,model,batch,setup,tokens_per_second,step_ms,"));
  EXPECT_THAT(csv, HasSubstr("host_plan_bytes,host_peak_bytes,wall_s"));
  EXPECT_THAT(csv, Not(HasSubstr("plan_bytes,device_bytes")));
  EXPECT_THAT(csv, HasSubstr("\nmeasured,\"a,\"\"b\"\"\",2,x,1000.5,10.0,9.0,11.0,1.5,"));
  EXPECT_THAT(csv, HasSubstr(",7,1000,2.0,"));
  EXPECT_THAT(csv, HasSubstr("\nrefused,c,2,x,,,,,,"));
  EXPECT_THAT(csv, HasSubstr("\"one, two\""));
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 3) << "the third was not run";
}

TEST_F(GridRowsTest, TheTableShowsWhatDiffersAndWhyAScenarioHasNoNumbers) {
  const GridFile grid = grid_of("defaults: {steps: 7}\nmatrix: {model: [a], batch: [1, 2, 4, 8]}");
  GridRows rows(file()), before(folder_ / "before.jsonl");
  rows.add(make_row(grid.scenarios[0], exited(0, measured(900, 4e9).dump(), ""), 60));
  before.add(make_row(grid.scenarios[0], exited(0, measured(1000, 4e9).dump(), ""), 60));
  rows.add(make_row(grid.scenarios[1], exited(2, "", "error: no\n  where: memory plan\n  fix: less\n"), 60));
  rows.add(make_row(grid.scenarios[2], exited(2, "", "error: not this\n"), 60));
  const std::string table = grid_table(grid, rows, &before, false, 0);
  for (const char* text :
       {"batch", "tokens/s", "plan", "device", "of before", "900", "10.0", "4.0 GB", "8.0 GB", "90.0 %", "does not fit",
        "not run", "2: does not fit: no; less", "3: refused: not this\n"}) {
    EXPECT_THAT(table, HasSubstr(text));
  }
  EXPECT_THAT(table, Not(HasSubstr("steps"))) << "all have the same";
  EXPECT_THAT(table, Not(HasSubstr("host"))) << "memory is counted by plan and device";
  EXPECT_EQ(grid_summary(grid, rows), "1 measured, 1 does not fit, 1 refused, 1 not run");
}

TEST_F(GridRowsTest, AReasonOfSeveralScenariosIsSaidOnce) {
  const GridFile grid = grid_of("matrix: {model: [a], batch: [1, 2, 4]}");
  GridRows rows(file());
  for (const GridScenario& scenario : grid.scenarios) {
    rows.add(make_row(scenario, exited(2, "", "error: no such thing.\n  fix: another\n"), 60));
  }
  EXPECT_THAT(grid_table(grid, rows, nullptr, false, 0), HasSubstr("\n\n  1, 2, 3: refused: no such thing; another\n"));
}

}  // namespace
}  // namespace hone
