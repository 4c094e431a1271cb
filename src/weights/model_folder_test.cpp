#include "weights/model_folder.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/durable_file.h"
#include "core/error.h"
#include "core/folder_lock.h"
#include "core/root_testing.h"

namespace hone {
namespace {

namespace fs = std::filesystem;
using testing::TestRoot;
using Names = std::vector<std::string>;

/// A model of shards or of one file, every file of which holds `mark`.
void fill_with(const fs::path& folder, const std::string& mark, int shards) {
  const auto put = [&](const std::string& name) { write_durably(folder / name, mark); };
  put("config.json");
  if (shards == 0) return put("model.safetensors");
  for (int i = 1; i <= shards; ++i)
    put("model-0000" + std::to_string(i) + "-of-0000" + std::to_string(shards) + ".safetensors");
  put("model.safetensors.index.json");
}

FillFolder model(const std::string& mark, int shards) {
  return [=](const fs::path& temporary, FileChecksums&) { fill_with(temporary, mark, shards); };
}

/// The mark of the model that a loader finds: the index with its shards, or the single file; "" if none loads, "mixed"
/// if its files are of two.
std::string loads_as(const fs::path& folder, int shards) {
  const auto read = [&](const std::string& name) { return TestRoot::read(folder / name); };
  if (fs::exists(folder / "model.safetensors"))
    return read("model.safetensors") == read("config.json") ? read("config.json") : "mixed";
  if (!fs::exists(folder / "model.safetensors.index.json")) return "";
  const std::string mark = read("model.safetensors.index.json");
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    if ((name == "config.json" ||
         (name.starts_with("model-") && name.find("-of-0000" + std::to_string(shards)) != name.npos)) &&
        read(name) != mark)
      return "mixed";
  }
  return mark;
}

TEST(ModelFolder, ANewFolderAppearsWholeAndAFailureLeavesNothing) {
  const TestRoot root;
  write_directory(root / "deep/a/", model("one", 0));
  EXPECT_EQ(TestRoot::names_in(root / "deep/a"), (Names{"config.json", kManifestName, "model.safetensors"}));
  EXPECT_ANY_THROW(write_directory(root / "deep/b", [](const fs::path& temporary, FileChecksums&) {
    write_durably(temporary / "config.json", "x");
    throw std::runtime_error("disk full");
  }));
  EXPECT_EQ(TestRoot::names_in(root / "deep"), Names{"a"});
}

TEST(ModelFolder, OthersFoldersAndFilesStay) {
  const TestRoot root;
  root.write("a.tmp/notes");
  root.write("a.old/thesis.tex");
  write_directory(root / "a", model("one", 3));
  root.write("a/README.md", "mine");
  root.write("a/notes/thesis.tex");
  root.write("a/vocab.txt", "mine");
  write_directory(root / "a", model("two", 0));
  EXPECT_EQ(TestRoot::names_in(root / "a"),
            (Names{"README.md", "config.json", kManifestName, "model.safetensors", "notes", "vocab.txt"}));
  EXPECT_EQ(loads_as(root / "a", 0), "two");
  EXPECT_EQ(TestRoot::names_in(root.path()), (Names{"a", "a.old", "a.tmp"}));
}

TEST(ModelFolder, WhatTheOldManifestNamesGoesWithTheOldModel) {
  const TestRoot root;
  write_directory(root / "a", [](const fs::path& temporary, FileChecksums&) {
    fill_with(temporary, "one", 0);
    write_durably(temporary / "tokenizer.model", "of the old model");
  });
  write_directory(root / "a", model("two", 2));
  EXPECT_FALSE(fs::exists(root / "a/tokenizer.model"));
  EXPECT_EQ(loads_as(root / "a", 2), "two");
}

TEST(ModelFolder, LinksAtFinalNamesAreReplacedAndALinkToTheFolderStays) {
  const TestRoot root;
  root.write("victim", "precious");
  fs::create_directories(root / "a");
  fs::create_symlink(root / "victim", root / "a/model.safetensors");
  fs::create_symlink(root / "victim", root / "a/config.json");
  fs::create_symlink(root / "a", root / "link");
  write_directory(root / "link", model("one", 0));
  EXPECT_EQ(TestRoot::read(root / "victim"), "precious");
  EXPECT_TRUE(fs::is_symlink(root / "link"));
  EXPECT_EQ(loads_as(root / "a", 0), "one");
  fs::create_directories(root / "b/model.safetensors/inner");
  EXPECT_THROW(write_directory(root / "b", model("one", 0)), UserError);
  EXPECT_EQ(TestRoot::names_in(root / "b"), Names{"model.safetensors"});
}

TEST(ModelFolder, AWriterThatHoldsTheLockIsNotDisturbed) {
  const TestRoot root;
  write_directory(root / "a", model("one", 0));
  const FolderLock lock(root / "a");
  EXPECT_THROW(write_directory(root / "a", model("two", 0)), UserError);
  EXPECT_EQ(loads_as(root / "a", 0), "one");
}

/// Shards of the old model and of the new one.
class KilledSave : public ::testing::TestWithParam<std::pair<int, int>> {};

/// Killed later and later, so that every stage of the short save is met.
TEST_P(KilledSave, LeavesTheOldModelTheNewOneOrNoneAndTheNextCommandFinishes) {
  const auto [before, after] = GetParam();
  std::set<std::string> seen;
  for (int moment = 0; moment < 12; ++moment) {
    const TestRoot root;
    write_directory(root / "a", model("one", before));
    const pid_t child = fork();
    if (child == 0) {
      write_directory(root / "a", model("two", after));
      _exit(0);
    }
    usleep(static_cast<useconds_t>(moment * 800));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    const std::string now =
        loads_as(root / "a", TestRoot::read(root / "a/model.safetensors.index.json") == "two" ? after : before);
    EXPECT_TRUE(now.empty() || now == "one" || now == "two") << now << " at moment " << moment;
    require_finished(root / "a");
    const bool is_new = TestRoot::read(root / "a/config.json") == "two";
    EXPECT_EQ(loads_as(root / "a", is_new ? after : before), is_new ? "two" : "one") << moment;
    seen.insert(now);
    write_directory(root / "a", model("three", after));
    EXPECT_EQ(loads_as(root / "a", after), "three");
    for (const std::string& name : TestRoot::names_in(root / "a")) EXPECT_FALSE(parse_temporary(name)) << name;
  }
  EXPECT_TRUE(seen.contains("one"));
}

INSTANTIATE_TEST_SUITE_P(Shards, KilledSave,
                         ::testing::Values(std::pair(3, 3), std::pair(0, 2), std::pair(2, 0), std::pair(3, 2)));

TEST(ModelFolder, AnUnfinishedSaveIsFinishedByAReaderOrRefused) {
  const TestRoot root;
  write_directory(root / "a", model("one", 0));
  const std::string staged = "a/model.hone-0123abcd.save/";
  root.write(staged + "config.json", "two");
  root.write(staged + "model.safetensors", "two");
  root.write(
      staged + ".hone-plan.json",
      R"({"remove": ["model.safetensors", "hone_manifest.json"], "install": ["config.json", "model.safetensors"]})");
  {
    const FolderLock run(root / "a");
    EXPECT_THROW(require_finished(root / "a"), UserError);
    EXPECT_EQ(loads_as(root / "a", 0), "one") << "nothing was touched";
  }
  EXPECT_NO_THROW(require_finished(root / "a"));
  EXPECT_EQ(TestRoot::names_in(root / "a"), (Names{"config.json", "model.safetensors"}));
  EXPECT_EQ(loads_as(root / "a", 0), "two");
  root.write(staged + ".hone-plan.json", R"({"remove": ["../b"], "install": []})");
  EXPECT_THROW(require_finished(root / "a"), UserError) << "a plan of somebody else's";
}

}  // namespace
}  // namespace hone
