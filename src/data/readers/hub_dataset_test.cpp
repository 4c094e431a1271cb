#include "data/readers/hub_dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "core/base/error.h"
#include "core/files/root_testing.h"
#include "hub/hub_server_testing.h"

namespace hone {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::HubEnvironment;
using testing::HubServer;
using ::testing::IsEmpty;
using testing::TestRoot;

/// "CONFIGURATION[*]/SPLIT: FILE FILE", one for each split.
std::vector<std::string> said(const std::vector<HubConfiguration>& configurations) {
  std::vector<std::string> lines;
  for (const HubConfiguration& configuration : configurations) {
    for (const HubConfiguration::Split& split : configuration.splits) {
      std::string line = configuration.name + (configuration.is_default ? "*" : "") + "/" + split.name + ":";
      for (const std::string& file : split.files) line += " " + file;
      lines.push_back(line);
    }
  }
  return lines;
}

TEST(HubDataset, ConfigurationsOfTheReadme) {
  const std::vector<std::string> paths = {
      "README.md", "a/train-1.parquet", "a/train-2.parquet", "a/test-1.parquet", "b/x.jsonl", "b/deep/y.jsonl", "c.csv",
      "load.py"};
  const auto stated = [&](const std::string& yaml) {
    return said(stated_configurations("---\n" + yaml + "---\n# x\n", paths));
  };
  EXPECT_THAT(
      stated("configs:\n- config_name: a\n  default: true\n  data_files:\n  - split: train\n    path: a/train-*\n"
             "  - split: test\n    path: [a/test-*]\n- config_name: b\n  data_files: 'b/*'\n"),
      ElementsAre("a*/train: a/train-1.parquet a/train-2.parquet", "a*/test: a/test-1.parquet", "b/train: b/x.jsonl"));
  EXPECT_THAT(stated("configs:\n- config_name: all\n  data_files: '**/*.jsonl'\n"),
              ElementsAre("all/train: b/deep/y.jsonl b/x.jsonl"));
  EXPECT_THAT(stated("configs:\n- data_dir: ./a/\n"),
              ElementsAre("default/test: a/test-1.parquet", "default/train: a/train-1.parquet a/train-2.parquet"));
  EXPECT_THAT(stated("configs:\n- config_name: x\n  data_dir: b\n  data_files: {train: x.jsonl, rest: deep/*}\n"),
              ElementsAre("x/train: b/x.jsonl", "x/rest: b/deep/y.jsonl"));
  EXPECT_THAT(stated("license: mit\n"), IsEmpty());
  EXPECT_THAT(said(stated_configurations("no head", paths)), IsEmpty());
  EXPECT_THAT(stated("configs:\n- config_name: x\n  data_files: '../*'\n"), ElementsAre("x/train:"));
  for (const char* yaml :
       {"configs: 1\n", "configs: [1]\n", "configs: [{data_files: [[a]]}]\n", "configs: [\n", "a: b: c\n"}) {
    EXPECT_THROW(stated(yaml), UserError) << yaml;
  }
}

TEST(HubDataset, ConfigurationsByNames) {
  const auto found = [](const std::vector<std::string>& paths) { return said(found_configurations(paths)); };
  EXPECT_THAT(found({"data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet",
                     "data/test_sft-00000-of-00001.parquet", "README.md", "data/notes.txt"}),
              ElementsAre("default*/test_sft: data/test_sft-00000-of-00001.parquet",
                          "default*/train: data/train-00000-of-00002.parquet data/train-00001-of-00002.parquet"));
  EXPECT_THAT(found({"my_train_part.jsonl", "dev.jsonl", "x/testing/a.jsonl"}),
              ElementsAre("default*/test: x/testing/a.jsonl", "default*/train: my_train_part.jsonl",
                          "default*/validation: dev.jsonl"));
  EXPECT_THAT(found({"a.jsonl", "b.jsonl", ".hidden.json", "dataset_info.json"}),
              ElementsAre("default*/train: a.jsonl b.jsonl"));
  EXPECT_THAT(
      found({"main/train-00000-of-00001.parquet", "main/test-00000-of-00001.parquet",
             "socratic/train-00000-of-00001.parquet"}),
      ElementsAre("main/test: main/test-00000-of-00001.parquet", "main/train: main/train-00000-of-00001.parquet",
                  "socratic/train: socratic/train-00000-of-00001.parquet"));
  EXPECT_THAT(found({"trainers.jsonl"}), ElementsAre("default*/train: trainers.jsonl"));
  EXPECT_THAT(found({"x.zip"}), IsEmpty());
}

TEST(HubDataset, ConfigurationsOfTheParquetCopy) {
  EXPECT_THAT(said(parquet_configurations({"default/train/0000.parquet", "default/train/0001.parquet",
                                           "default/test/0000.parquet", "big/partial-train/0000.parquet", "README.md",
                                           ".gitattributes"})),
              ElementsAre("big/train: big/partial-train/0000.parquet", "default*/test: default/test/0000.parquet",
                          "default*/train: default/train/0000.parquet default/train/0001.parquet"));
}

class HubDatasets : public ::testing::Test {
 protected:
  HubDatasets() : environment_(server_.endpoint(), root_.path()) {}
  std::vector<std::string> files(const std::string& name, const std::string& configuration = "",
                                 const std::string& split = "") {
    std::vector<std::string> paths;
    for (const std::string& file : files_of_dataset(name, split, configuration).files) {
      paths.push_back(fs::path(file).lexically_relative(root_ / "hub"));
      EXPECT_TRUE(fs::is_regular_file(file));
    }
    return paths;
  }
  std::string error(const std::string& name, const std::string& configuration = "", const std::string& split = "") {
    try {
      files(name, configuration, split);
    } catch (const UserError& error) {
      return error.message() + " | " + error.fix();
    }
    return "";
  }
  const TestRoot root_;
  HubServer server_;
  HubEnvironment environment_;
};

TEST_F(HubDatasets, AreReadByNameAndSplit) {
  HubServer::Repository& data = server_["datasets/org/data"];
  data.files["train.jsonl"] = {"{}"};
  data.files["test.jsonl"] = {"{}"};
  const std::string place = "datasets--org--data/snapshots/" + data.commit + "/";
  EXPECT_THAT(files("org/data", "", "train"), ElementsAre(place + "train.jsonl"));
  EXPECT_EQ(server_.requests("test.jsonl"), 0);
  EXPECT_THAT(error("org/data"), AllOf(HasSubstr("the splits test, train"), HasSubstr("split: test")));
  EXPECT_THAT(error("org/data", "", "trian"), HasSubstr("Did you mean 'train'?"));
  EXPECT_THAT(error("org/data", "x"), AllOf(HasSubstr("no configuration 'x'"), HasSubstr("default")));
  EXPECT_THAT(error("org/none"), HasSubstr("has no dataset 'org/none'"));
  EXPECT_THAT(files("org/data@" + data.commit, "", "test"), ElementsAre(place + "test.jsonl"));
  const int calls = server_.requests("");
  environment_.set("HF_HUB_OFFLINE", "1");
  EXPECT_THAT(files("org/data", "", "train[:1]"), ElementsAre(place + "train.jsonl"));
  EXPECT_EQ(server_.requests(""), calls);
  EXPECT_EQ(name_from_path("org/data@main"), "data");
}

TEST_F(HubDatasets, OtherFormatsAreReadAsTheHubsParquet) {
  server_["datasets/org/zipped"].files["data.zip"] = {"x", true};
  EXPECT_THAT(error("org/zipped"), HasSubstr("no file that is read"));
  HubServer::Repository& copy = server_["datasets/org/zipped@refs/convert/parquet"];
  copy.commit = std::string(40, 'e');
  copy.files["main/train/0000.parquet"] = {"x", true};
  EXPECT_THAT(files("org/zipped"),
              ElementsAre("datasets--org--zipped/snapshots/" + copy.commit + "/main/train/0000.parquet"));
  EXPECT_TRUE(fs::exists(root_ / "hub/datasets--org--zipped/refs/refs/convert/parquet"));
  // A program says what the files mean: they are not guessed.
  HubServer::Repository& script = server_["datasets/org/script"];
  script.files["script.py"] = {"x"};
  script.files["raw.jsonl"] = {"{}"};
  server_["datasets/org/script@refs/convert/parquet"] = copy;
  EXPECT_THAT(files("org/script", "main"),
              ElementsAre("datasets--org--script/snapshots/" + copy.commit + "/main/train/0000.parquet"));
  EXPECT_EQ(server_.requests("script.py"), 0);
}

TEST_F(HubDatasets, AFolderOfThatNameComesFirst) {
  server_["datasets/org/data"].files["train.jsonl"] = {"{}"};
  root_.write("org/data/own.jsonl", "{}");
  const fs::path before = fs::current_path();
  fs::current_path(root_.path());
  EXPECT_FALSE(is_hub_dataset("org/data"));
  EXPECT_THAT(files_of_dataset("org/data", "").files, ElementsAre("org/data/own.jsonl"));
  EXPECT_FALSE(is_hub_dataset("org/dota")) << "a folder beside it is meant";
  fs::current_path(before);
  EXPECT_TRUE(is_hub_dataset("org/data"));
  EXPECT_FALSE(is_hub_dataset("org/data.jsonl"));
}

}  // namespace
}  // namespace hone
