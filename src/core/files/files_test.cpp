#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <iterator>
#include <thread>

#include "core/base/error.h"
#include "core/files/durable_file.h"
#include "core/files/file_bytes.h"
#include "core/files/folder_lock.h"
#include "core/files/input_files.h"
#include "core/files/output_files.h"
#include "core/files/root_testing.h"
#include "core/text/json.h"
#include "core/text/untrusted_json.h"

namespace hone {
namespace {

class DurableFile : public ::testing::Test {
 protected:
  DurableFile() {
    std::string name = (std::filesystem::temp_directory_path() / "hone_file_XXXXXX").string();
    folder_ = mkdtemp(name.data());
  }
  ~DurableFile() override { std::filesystem::remove_all(folder_); }

  static std::string contents(const std::filesystem::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  size_t files() const { return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder_), {})); }

  std::filesystem::path folder_;
};

TEST_F(DurableFile, ReplacesAFileAndLeavesNothingElseBehind) {
  write_durably(folder_ / "a", "first, and longer");
  write_durably(folder_ / "a", "second");
  EXPECT_EQ(contents(folder_ / "a"), "second");
  EXPECT_EQ(files(), 1u);
}

TEST_F(DurableFile, AFailureLeavesWhatWasThere) {
  std::filesystem::create_directories(folder_ / "taken" / "inside");
  EXPECT_THROW(write_durably(folder_ / "taken", "x"), UserError);  // a file cannot replace a folder
  EXPECT_TRUE(std::filesystem::is_directory(folder_ / "taken" / "inside"));
  EXPECT_EQ(files(), 1u);
  EXPECT_THROW(write_durably(folder_ / "absent" / "b", "x"), UserError);
}

TEST_F(DurableFile, IsMappedAsItWasWritten) {
  write_durably(folder_ / "a", "some bytes");
  const MappedFile mapped(folder_ / "a");
  const auto bytes = mapped.bytes();
  EXPECT_EQ(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()), "some bytes");
  write_durably(folder_ / "empty", "");
  EXPECT_TRUE(MappedFile(folder_ / "empty").bytes().empty());
  EXPECT_THROW(MappedFile(folder_ / "absent"), UserError);
}

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

TEST(Temporary, NamesAreRecognisedAndOthersAreNot) {
  const auto name = parse_temporary(temporary_beside("out/checkpoint-4", "old").filename().string());
  ASSERT_TRUE(name);
  EXPECT_EQ(name->base, "checkpoint-4");
  EXPECT_EQ(name->ending, "old");
  for (const char* other : {"made.tmp", "made.old", "a.hone-1234.tmp", "a.hone-1234567g.tmp", "a.hone-12345678",
                            ".hone.lock", "a.hone-12345678.", ".hone-12345678.tmp"}) {
    EXPECT_FALSE(parse_temporary(other)) << other;
  }
  EXPECT_NE(temporary_beside("a"), temporary_beside("a"));
  EXPECT_EQ(temporary_beside("folder/a/").parent_path(), "folder");
}

TEST(Temporary, AFolderGoesAwayUnlessItGetsItsName) {
  const testing::TestRoot root;
  { const TemporaryFolder lost(root / "a"); }
  EXPECT_TRUE(testing::TestRoot::names_in(root.path()).empty());
  {
    TemporaryFolder kept(root / "a");
    std::ofstream(kept.path() / "file") << "x";
    kept.rename_to((root / "a").string() + "/");
  }
  EXPECT_EQ(testing::TestRoot::names_in(root / "a"), Names{"file"});
  TemporaryFolder late(root / "a");
  EXPECT_THROW(late.rename_to(root / "a"), UserError) << "something stands there";
}

TEST(Temporary, LeftoversOfTheDeadAreRemovedAndNothingElse) {
  const testing::TestRoot root;
  root.write("a.tmp/thesis.tex");
  root.write("a.hone-00000000.tmp/no-marker");
  root.write("b.hone-00000001.tmp/.hone-temporary");
  root.write("a.hone-00000002.tmp/.hone-temporary");
  root.write("c.hone-00000003.tmp");
  fs::create_symlink(root / "a.tmp", root / "d.hone-00000004.tmp");
  const TemporaryFolder alive(root / "a");
  remove_leftovers(root.path(), false, "a");
  EXPECT_FALSE(fs::exists(root / "a.hone-00000002.tmp"));
  EXPECT_TRUE(fs::exists(root / "b.hone-00000001.tmp")) << "of another name";
  EXPECT_TRUE(fs::exists(root / "c.hone-00000003.tmp")) << "a file, which somebody may be writing";
  remove_leftovers(root.path(), true);
  EXPECT_FALSE(fs::exists(root / "b.hone-00000001.tmp"));
  EXPECT_FALSE(fs::exists(root / "c.hone-00000003.tmp"));
  EXPECT_TRUE(fs::exists(alive.path()));
  EXPECT_TRUE(fs::exists(root / "a.hone-00000000.tmp/no-marker"));
  EXPECT_TRUE(fs::exists(root / "a.tmp/thesis.tex"));
  EXPECT_TRUE(fs::is_symlink(root / "d.hone-00000004.tmp"));
}

TEST(Temporary, AFolderThatCannotBeRemovedKeepsItsMarker) {
  if (geteuid() == 0) GTEST_SKIP() << "root removes files from a read-only folder";
  const testing::TestRoot root;
  root.write("a.hone-00000001.tmp/.hone-temporary");
  root.write("a.hone-00000001.tmp/merged/model.safetensors");
  fs::permissions(root / "a.hone-00000001.tmp/merged", fs::perms::owner_read | fs::perms::owner_exec);
  remove_leftovers(root.path(), false, "a");
  EXPECT_TRUE(fs::exists(root / "a.hone-00000001.tmp/.hone-temporary")) << "nobody would know it any more";
  fs::permissions(root / "a.hone-00000001.tmp/merged", fs::perms::owner_all);
  remove_leftovers(root.path(), false, "a");
  EXPECT_TRUE(testing::TestRoot::names_in(root.path()).empty());
}

TEST(Temporary, AnEmptyFolderOfAKilledProgramIsRemoved) {
  const testing::TestRoot root;
  fs::create_directory(root / "a.hone-00000001.tmp");
  remove_leftovers(root.path(), false, "a");
  EXPECT_TRUE(testing::TestRoot::names_in(root.path()).empty());
}

using ::testing::HasSubstr;

class Outputs : public ::testing::Test {
 protected:
  Outputs() {
    root_.write("mine.txt", "mine");
    root_.write("data/rows.jsonl", "rows");
    rule_.inputs.add(root_ / "data", "the data set");
    forced_ = rule_;
    forced_.replace = true;
  }

  std::string refusal(const fs::path& path, const OutputRule& rule) const {
    try {
      write_output(path, "new", rule);
    } catch (const UserError& error) {
      EXPECT_EQ(error.where(), path.string());
      return error.message();
    }
    return "";
  }
  std::string text(const std::string& name) const { return testing::TestRoot::read(root_ / name); }

  testing::TestRoot root_;
  OutputRule rule_, forced_;
};

TEST_F(Outputs, AreWrittenWithTheirFolders) {
  write_output(root_ / "new/folder/a.txt", "new", rule_);
  EXPECT_EQ(text("new/folder/a.txt"), "new");
  EXPECT_EQ(testing::TestRoot::names_in(root_ / "new/folder"), Names{"a.txt"});
}

TEST_F(Outputs, ReplaceAFileOnlyIfTheUserSaysSo) {
  EXPECT_THAT(refusal(root_ / "mine.txt", rule_), HasSubstr("exists already"));
  EXPECT_EQ(text("mine.txt"), "mine");
  EXPECT_EQ(refusal(root_ / "mine.txt", forced_), "");
  EXPECT_EQ(text("mine.txt"), "new");
  OutputRule again = rule_;
  again.is_earlier = [](std::string_view beginning) { return beginning == "new"; };
  EXPECT_EQ(refusal(root_ / "mine.txt", again), "") << "an earlier result";
}

TEST_F(Outputs, NeverReplaceAnInput) {
  fs::create_hard_link(root_ / "data/rows.jsonl", root_ / "hard.jsonl");
  fs::create_symlink(root_ / "data/rows.jsonl", root_ / "link.jsonl");
  for (const char* name : {"data/rows.jsonl", "hard.jsonl", "link.jsonl", "data/more.jsonl"}) {
    EXPECT_THAT(refusal(root_ / name, forced_), HasSubstr("the data set would be written over")) << name;
  }
  EXPECT_EQ(text("data/rows.jsonl"), "rows");
}

TEST_F(Outputs, AreNotWrittenThroughLinks) {
  fs::create_symlink(root_ / "mine.txt", root_ / "link");
  fs::create_symlink(root_ / "absent", root_ / "dangling");
  for (const char* name : {"link", "dangling"}) {
    EXPECT_THAT(refusal(root_ / name, rule_), HasSubstr("a link")) << name;
    EXPECT_TRUE(fs::is_symlink(root_ / name));
    EXPECT_EQ(refusal(root_ / name, forced_), "");
    EXPECT_EQ(text(name), "new");
    EXPECT_FALSE(fs::is_symlink(root_ / name));
  }
  EXPECT_EQ(text("mine.txt"), "mine");
  EXPECT_FALSE(fs::exists(root_ / "absent"));
}

TEST_F(Outputs, AreNeitherFoldersNorDevices) {
  EXPECT_THAT(refusal(root_.path(), forced_), HasSubstr("a folder"));
  ASSERT_EQ(mkfifo((root_ / "pipe").c_str(), 0600), 0);
  fs::create_symlink("/dev/full", root_ / "full");
  for (const char* name : {"pipe", "full"})
    EXPECT_THAT(refusal(root_ / name, forced_), HasSubstr("a device or a pipe"));
  EXPECT_THAT(refusal("/dev/full", forced_), HasSubstr("a device or a pipe"));
}

TEST_F(Outputs, RecordsAreAddedToFilesOfRecords) {
  rule_.is_earlier = [](std::string_view beginning) { return beginning.starts_with('{'); };
  const auto fails = [&](const char* name) {
    EXPECT_THROW(append_output(root_ / name, "{}\n", rule_), UserError) << name;
  };
  append_output(root_ / "a.jsonl", "{}\n", rule_);
  append_output(root_ / "a.jsonl", "{}\n", rule_);
  EXPECT_EQ(text("a.jsonl"), "{}\n{}\n");
  root_.write("open.jsonl", "{}");
  append_output(root_ / "open.jsonl", "{}\n", rule_);
  EXPECT_EQ(text("open.jsonl"), "{}\n{}\n") << "the last line had no end";
  fs::create_symlink(root_ / "a.jsonl", root_ / "link");
  for (const char* name : {"mine.txt", "data/rows.jsonl", "data/new.jsonl", "link"}) fails(name);
  EXPECT_EQ(text("mine.txt"), "mine");
}

TEST_F(Outputs, FilesOfASetAppearTogether) {
  const auto fill = [](const fs::path& folder) {
    write_durably(folder / "a", "a");
    write_durably(folder / "b", "b");
  };
  write_output_set((root_ / "set").string() + "/", rule_, fill);
  EXPECT_EQ(testing::TestRoot::names_in(root_ / "set"), (Names{"a", "b"}));
  // One that may not be replaced: none is moved.
  root_.write("old/b", "mine");
  EXPECT_THROW(write_output_set(root_ / "old", rule_, fill), UserError);
  EXPECT_EQ(testing::TestRoot::names_in(root_ / "old"), Names{"b"});
  EXPECT_EQ(text("old/b"), "mine");
  write_output_set(root_ / "old", forced_, fill);
  EXPECT_EQ(text("old/b"), "b");
  // A failure before the end leaves nothing, and a killed program's folder is removed by the next.
  fs::create_directories(root_ / "old/output.hone-00000001.tmp");
  EXPECT_THROW(write_output_set(root_ / "old", forced_,
                                [](const fs::path& folder) {
                                  write_durably(folder / "c", "c");
                                  throw UserError("no space", (folder / "d").string());
                                }),
               UserError);
  EXPECT_EQ(testing::TestRoot::names_in(root_ / "old"), (Names{"a", "b"}));
  EXPECT_THROW(write_output_set(root_ / "data/inside", forced_, fill), UserError);
  EXPECT_THROW(write_output_set(root_ / "mine.txt", forced_, fill), UserError);
}

using Clock = std::chrono::steady_clock;

class Files : public ::testing::Test {
 protected:
  Files() {
    std::string name = (fs::temp_directory_path() / "hone_files_XXXXXX").string();
    folder_ = mkdtemp(name.data());
    std::ofstream(folder_ / "text") << "0123456789";
    EXPECT_EQ(mkfifo((folder_ / "pipe").c_str(), 0644), 0);
  }
  ~Files() override { fs::remove_all(folder_); }

  std::string refusal(const fs::path& path, FileSource source = FileSource::kRegular, uint64_t most = 1000) const {
    const Clock::time_point begin = Clock::now();
    std::string what;
    try {
      read_whole_file(path, most, source);
    } catch (const UserError& error) {
      EXPECT_EQ(error.where(), path.string());
      what = error.message();
    }
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(9));
    return what;
  }

  fs::path folder_;
};

TEST_F(Files, OnlyRegularOnesAreReadAndNobodyWaits) {
  EXPECT_EQ(read_whole_file(folder_ / "text"), "0123456789");
  EXPECT_THAT(refusal(folder_ / "pipe"), HasSubstr("a pipe"));
  EXPECT_THAT(refusal(folder_), HasSubstr("a folder"));
  EXPECT_THAT(refusal("/dev/zero"), HasSubstr("a device"));
  EXPECT_THAT(refusal("/dev/zero", FileSource::kAlsoPipe), HasSubstr("a device"));
  EXPECT_THAT(refusal(folder_ / "nothing"), HasSubstr("No such file"));
  EXPECT_THROW(FileBytes(folder_ / "pipe"), UserError);
}

TEST_F(Files, LinksAreFollowed) {
  fs::create_symlink("text", folder_ / "link");
  EXPECT_EQ(read_whole_file(folder_ / "link"), "0123456789");
  fs::create_symlink("/dev/zero", folder_ / "zero");
  EXPECT_THAT(refusal(folder_ / "zero"), HasSubstr("a device"));
  fs::create_symlink("loop", folder_ / "loop");
  EXPECT_NE(refusal(folder_ / "loop"), "");
}

TEST_F(Files, LargerOnesThanAllowedAreRefused) {
  EXPECT_EQ(refusal(folder_ / "text", FileSource::kRegular, 10), "");
  EXPECT_THAT(refusal(folder_ / "text", FileSource::kRegular, 9), HasSubstr("more than the 9 bytes"));
  // Its reported size is 0.
  EXPECT_FALSE(read_whole_file("/proc/self/status").empty());
  EXPECT_THAT(refusal("/proc/self/status", FileSource::kRegular, 9), HasSubstr("more than the 9 bytes"));
}

TEST_F(Files, APipeThatTheUserTypedIsReadToItsEnd) {
  std::thread writer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));  // the reader has opened it before
    std::ofstream pipe(folder_ / "pipe");
    pipe << std::string(100'000, 'x') << std::flush;
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    pipe << "end";
  });
  const std::string text = read_whole_file(folder_ / "pipe", 1'000'000, FileSource::kAlsoPipe);
  writer.join();
  EXPECT_EQ(text.size(), 100'003u);
  EXPECT_TRUE(text.ends_with("xend"));
}

TEST_F(Files, APipeIsReadUpToItsBoundAndNotWaitedForWithoutAWriter) {
  EXPECT_THAT(refusal(folder_ / "pipe", FileSource::kAlsoPipe), HasSubstr("nobody writes to this pipe"));
  std::thread writer([&] { std::ofstream(folder_ / "pipe") << std::string(2000, 'x'); });
  EXPECT_THAT(refusal(folder_ / "pipe", FileSource::kAlsoPipe), HasSubstr("more than the 1000 bytes"));
  writer.join();
}

TEST_F(Files, WhatIsNotThereIsNoError) {
  EXPECT_EQ(read_whole_file_if_there(folder_ / "nothing"), std::nullopt);
  EXPECT_EQ(read_whole_file_if_there(folder_ / "text" / "below"), std::nullopt);
  EXPECT_EQ(read_whole_file_if_there(folder_ / "text"), "0123456789");
  EXPECT_THROW(read_whole_file_if_there(folder_ / "pipe"), UserError);
  EXPECT_EQ(read_json_if_there(folder_ / "nothing"), std::nullopt);
  std::ofstream(folder_ / "json") << "{\"a\": 1}";
  EXPECT_EQ(read_json(folder_ / "json"), (Json{{"a", 1}}));
}

TEST_F(Files, BytesAreReadFromAnywhere) {
  const FileBytes file(folder_ / "text");
  EXPECT_EQ(file.size(), 10u);
  EXPECT_EQ(file.read(3, 4), "3456");
  EXPECT_THROW(file.read(8, 3), UserError);
  EXPECT_THROW(file.read(~uint64_t{0}, 3), UserError);
}

std::string refusal(const fs::path& folder) {
  try {
    const FolderLock lock(folder);
  } catch (const UserError& error) {
    return error.message();
  }
  return "";
}

TEST(FolderLock, OneHoldsItAndItsFileGoesWithIt) {
  const testing::TestRoot root;
  {
    const FolderLock lock(root.path());
    EXPECT_THAT(refusal(root.path()), HasSubstr("pid " + std::to_string(getpid())));
    EXPECT_EQ(FolderLock::try_take(root.path()), nullptr);
    EXPECT_TRUE(holds_nothing(root.path()));
  }
  EXPECT_FALSE(fs::exists(root / kLockName));
  EXPECT_NE(FolderLock::try_take(root.path()), nullptr);
}

TEST(FolderLock, EndsWithItsProcessHoweverThatEnds) {
  const testing::TestRoot root;
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    const FolderLock lock(root.path());
    const ssize_t told = write(ready[1], "x", 1);
    pause();
    _exit(told == 1 ? 0 : 1);
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  EXPECT_THAT(refusal(root.path()), HasSubstr("pid " + std::to_string(child)));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_TRUE(fs::exists(root / kLockName)) << "a killed process leaves the file";
  EXPECT_EQ(refusal(root.path()), "");
  close(ready[0]);
  close(ready[1]);
}

TEST(FolderLock, IsWaitedForWhileItsHolderEnds) {
  const testing::TestRoot root;
  auto held = std::make_unique<FolderLock>(root.path());
  EXPECT_THROW(FolderLock::take_within(root.path(), std::chrono::milliseconds(50)), UserError);
  std::thread holder([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    held.reset();
  });
  EXPECT_NE(FolderLock::take_within(root.path(), std::chrono::seconds(20)), nullptr);
  holder.join();
}

TEST(FolderLock, AFolderThatCannotBeWrittenIsAnError) {
  const testing::TestRoot root;
  EXPECT_THAT(refusal(root / "absent"), HasSubstr("cannot be written"));
  root.write("victim", "mine");
  fs::create_symlink(root / "victim", root / kLockName);
  EXPECT_THAT(refusal(root.path()), HasSubstr("cannot be written"));
  EXPECT_EQ(testing::TestRoot::read(root / "victim"), "mine");
}

// The lock on a file system without kernel locks.
constexpr LockTimes kFast{.heartbeat = 0.05, .stale = 0.6};

TEST(FolderLockWithoutKernelLocks, AHolderThatTouchesItsFileKeepsItAndAStaleOneLosesIt) {
  const testing::TestRoot root;
  std::string warned;
  {
    const HeartbeatLock first(root.path(), kFast);
    EXPECT_THROW(HeartbeatLock(root.path(), kFast), UserError);
    EXPECT_THROW(HeartbeatLock(root.path(), kFast), UserError) << "still";
  }
  EXPECT_FALSE(fs::exists(root / kLockName));
  root.write(kLockName, "host7, pid 4711, since yesterday\n");
  const auto begin = std::chrono::steady_clock::now();
  const HeartbeatLock second(root.path(), kFast);
  EXPECT_GT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(300)) << "it might have been alive";
  EXPECT_THAT(testing::TestRoot::read(root / kLockName), HasSubstr(std::to_string(getpid())));
}

TEST(FolderLockWithoutKernelLocks, OfSeveralThatTakeOverAStaleOneOneGetsIt) {
  const testing::TestRoot root;
  root.write(kLockName, "host7, pid 4711, since yesterday\n");
  std::atomic<int> taken = 0, refused = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 6; ++i) {
    threads.emplace_back([&] {
      try {
        const HeartbeatLock lock(root.path(), kFast);
        ++taken;
        std::this_thread::sleep_for(std::chrono::seconds(3));
      } catch (const UserError&) {
        ++refused;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(taken, 1);
  EXPECT_EQ(refused, 5);
}

class InputFilesTest : public ::testing::Test {
 protected:
  InputFilesTest() {
    root_.write("blobs/1234", "weights");
    fs::create_directories(root_ / "model");
    fs::create_symlink("../blobs/1234", root_ / "model/model.safetensors");
    root_.write("model/config.json");
    root_.write("out/data/x.jsonl");
    root_.write("out/metrics.jsonl");
    fs::create_symlink(root_ / "model", root_ / "link");
    inputs_.add(root_ / "model", "the model");
    inputs_.add(root_ / "out/data/x.jsonl", "the data set");
    inputs_.add(root_ / "absent", "nothing");
  }
  bool refused(const fs::path& output) const {
    try {
      inputs_.refuse(output);
    } catch (const UserError& error) {
      EXPECT_NE(error.where().find(output.filename().string()), std::string::npos);
      return true;
    }
    return false;
  }

  testing::TestRoot root_;
  InputFiles inputs_;
};

TEST_F(InputFilesTest, WhatIsReadIsFoundUnderAnyName) {
  EXPECT_TRUE(refused(root_ / "model"));
  EXPECT_TRUE(refused(root_ / "model/"));
  EXPECT_TRUE(refused(root_ / "link"));
  EXPECT_TRUE(refused(root_ / "link/config.json"));
  EXPECT_TRUE(refused(root_ / "blobs/1234")) << "what a link of the model leads to";
  EXPECT_TRUE(refused(root_ / "out/../out/data/./x.jsonl"));
  fs::create_hard_link(root_ / "model/config.json", root_ / "hard");
  EXPECT_TRUE(refused(root_ / "hard"));
}

TEST_F(InputFilesTest, AFolderAroundAnInputAndAPathInsideOneAreRefused) {
  EXPECT_TRUE(refused(root_.path()));
  EXPECT_TRUE(refused(root_ / "out"));
  EXPECT_TRUE(refused(root_ / "out/data"));
  EXPECT_TRUE(refused(root_ / "model/new/deep"));
  EXPECT_THROW(inputs_.refuse_inside(root_ / "link/run"), UserError);
}

TEST_F(InputFilesTest, WhatIsApartIsFree) {
  EXPECT_FALSE(refused(root_ / "out/metrics.jsonl"));
  EXPECT_FALSE(refused(root_ / "model-2"));
  EXPECT_FALSE(refused(root_ / "absent"));
  EXPECT_NO_THROW(inputs_.refuse_inside(root_ / "out"));
}

}  // namespace
}  // namespace hone
