#include "report/tracker/package_store.h"

#include <gmock/gmock.h>

#include <csignal>
#include <cstdlib>
#include <fstream>

#include "core/base/error.h"
#include "core/text/json.h"
#include "report/folder_testing.h"
#include "report/tracker/tracker_sender.h"

namespace hone {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// Stands in for a package: writes each call as a line of JSON, and does what a run named like a fault asks for.
constexpr const char* kPackage = R"PY(
import json, os
def note(**values):
    with open(os.environ["HONE_TEST_CALLS"], "a") as file:
        file.write(json.dumps(values) + "\n")
class Config:
    def update(self, params, allow_val_change=False):
        if "refused" in params:
            raise ValueError("no such param")
        note(params=params)
class Run:
    id, url, dir, name, config = "r1", "http://tracker/r1", "/runs/r1", "brave-run", Config()
    def log(self, row, step):
        print("noise of a package")
        if "dies" in row:
            os._exit(1)
        note(step=step, row=row)
    def finish(self, exit_code=None):
        note(finish=exit_code)
def init(**stated):
    note(init=stated)
    if stated.get("project") == "locked":
        raise PermissionError("log in first")
    return Run()
)PY";

class PackageStore : public testing::Test {
 protected:
  PackageStore() {
    for (const char* package : {"wandb", "trackio"}) {
      std::filesystem::create_directories(folder_ / package);
      std::ofstream(folder_ / package + "/__init__.py") << kPackage;
    }
    calls_ = folder_ / "calls.jsonl";
    setenv("PYTHONPATH", folder_.path().c_str(), 1);
    setenv("PYTHONDONTWRITEBYTECODE", "1", 1);
    setenv("HONE_TEST_CALLS", calls_.c_str(), 1);
  }
  ~PackageStore() override {
    unsetenv("PYTHONPATH");
    unsetenv("PYTHONDONTWRITEBYTECODE");
    unsetenv("HONE_TEST_CALLS");
  }
  void SetUp() override {
    if (std::system("python3 -c '' 2> /dev/null") != 0) GTEST_SKIP() << "no python3";
  }

  std::vector<Json> calls() const {
    std::ifstream file(calls_);
    std::vector<Json> lines;
    for (std::string line; std::getline(file, line);) lines.push_back(Json::parse(line));
    return lines;
  }

  PackageOptions options(const std::string& package) const {
    PackageOptions options;
    options.package = package;
    options.project = "p";
    options.run_name = "first";
    options.output_dir = folder_.path();
    return options;
  }

  static std::vector<std::string> texts(TrackerSender& sender) {
    std::vector<std::string> texts;
    for (const TrackerNotice& notice : sender.take_notices()) texts.push_back(notice.text);
    return texts;
  }

  const TestFolder folder_;
  std::string calls_;
};

TrackerPatience quick() {
  TrackerPatience patience;
  patience.together = std::chrono::milliseconds(20);
  return patience;
}

TEST_F(PackageStore, ARunReachesThePackage) {
  PackageOptions asked = options("wandb");
  asked.tags = {"a"};
  asked.settings = {{"mode", "offline"}};
  TrackerSender sender(make_package_store(asked), {{"lr", "1e-4"}}, quick());
  const std::vector<Metric> metrics = {{"step", 1}, {"train/loss", 2.5}, {"lr", 1e-4}};
  sender.log(1, metrics);
  sender.log(2, metrics);
  const TrackerCounts counts = sender.end(TrackerStatus::kFinished);
  EXPECT_EQ(counts.sent, 4);
  EXPECT_TRUE(counts.closed);
  EXPECT_EQ(sender.run_id(), "r1");
  EXPECT_THAT(texts(sender), ElementsAre("Weights & Biases: http://tracker/r1"));
  const Json row = {{"train/loss", 2.5}, {"lr", 1e-4}};
  EXPECT_THAT(
      calls(),
      ElementsAre(
          Json{{"init",
                {{"dir", folder_.path()}, {"tags", {"a"}}, {"project", "p"}, {"name", "first"}, {"mode", "offline"}}}},
          Json{{"params", {{"lr", "1e-4"}}}}, Json{{"step", 1}, {"row", row}}, Json{{"step", 2}, {"row", row}},
          Json{{"finish", 0}}));
}

TEST_F(PackageStore, AResumedRunGoesOnWithItsOwn) {
  PackageOptions asked = options("trackio");
  write_package_run(asked, "brave-run");
  continue_package_run(asked);
  EXPECT_EQ(asked.run_id, "brave-run");
  TrackerSender sender(make_package_store(asked), {}, quick());
  EXPECT_TRUE(sender.end(TrackerStatus::kKilled).closed);
  EXPECT_EQ(calls().front()["init"]["resume"], "allow");
  EXPECT_EQ(calls().front()["init"]["name"], "brave-run");
}

TEST_F(PackageStore, WhatThePackageRaisesStopsNoRun) {
  PackageOptions locked = options("wandb");
  locked.project = "locked";
  TrackerSender refused(make_package_store(locked), {}, quick());
  refused.log(1, std::vector<Metric>{{"loss", 1}});
  EXPECT_EQ(refused.end(TrackerStatus::kFinished).dropped, 1);
  EXPECT_THAT(texts(refused),
              ElementsAre("Weights & Biases is switched off, training continues: PermissionError: log in "
                          "first"));
  TrackerSender dying(make_package_store(options("wandb")), {{"refused", "1"}, {"kept", "2"}}, quick());
  dying.log(1, std::vector<Metric>{{"dies", 1}});
  EXPECT_EQ(dying.end(TrackerStatus::kFinished).dropped, 1);
  const std::vector<std::string> said = texts(dying);
  ASSERT_EQ(said.size(), 3u);
  EXPECT_THAT(said[1], HasSubstr("rejects some values: ValueError: no such param"));
  EXPECT_THAT(said[2], HasSubstr("its process has ended"));
  EXPECT_THAT(calls(), testing::Contains(Json{{"params", {{"kept", "2"}}}})) << "the others";
}

TEST_F(PackageStore, AMissingPackageIsNamedWithTheWayOut) {
  EXPECT_NO_THROW(require_package("wandb", "report_to"));
  try {
    require_package("no_such_package", "report_to");
    ADD_FAILURE() << "it was found";
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("pip install no_such_package"));
  }
  setenv("HONE_PYTHON", "/no/such/python", 1);
  EXPECT_EQ(python_of_trackers(), "/no/such/python");
  EXPECT_THROW(require_package("wandb", "report_to"), UserError);
  TrackerSender sender(make_package_store(options("wandb")), {}, quick());
  sender.end(TrackerStatus::kFinished);
  unsetenv("HONE_PYTHON");
  EXPECT_THAT(calls(), IsEmpty());
}

}  // namespace
}  // namespace hone
