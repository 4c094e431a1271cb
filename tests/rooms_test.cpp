// Every #include of src/ stays within what its room may include (docs/architecture.md, The rooms).
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

using Rooms = std::map<std::string, std::set<std::string>>;

const fs::path kRoot = HONE_SOURCE_DIR;

/// The table of allowed includes and its transitive closure: a room's headers include those of other rooms.
Rooms allowed_rooms() {
  Rooms rooms = {
      {"core", {}},
      {"formats", {"core"}},
      {"tape", {"core", "formats"}},
      {"kernels", {"core", "tape", "formats"}},
      {"ops", {"core", "tape", "formats", "kernels"}},
      {"params", {"core", "tape", "formats", "kernels", "ops"}},
      {"dist", {"core", "ops", "params"}},
      {"nn", {"core", "tape", "ops", "params"}},
      {"weights", {"core", "ops", "params"}},
      {"models", {"nn", "params", "weights"}},
      {"text", {"core"}},
      {"data", {"core", "text", "hub"}},
      {"optim", {"core", "ops", "params", "dist"}},
      {"report", {"core"}},
      {"hub", {"core", "report"}},
      {"session", {"core", "params", "dist", "weights", "models", "hub"}},
      {"infer", {"core", "tape", "ops", "params", "dist", "nn", "weights", "models", "session", "text", "hub"}},
  };
  rooms["config"] = {"session", "data", "optim"};
  rooms["train"] = {"config", "infer"};
  rooms["app"] = {"train"};
  rooms["library"] = {"app"};
  for (size_t round = 0; round < rooms.size(); ++round) {
    for (auto& [name, allowed] : rooms) {
      const std::set<std::string> direct = allowed;
      for (const std::string& room : direct) allowed.insert(rooms[room].begin(), rooms[room].end());
    }
  }
  for (auto& [name, allowed] : rooms) allowed.insert(name);
  return rooms;
}

struct Include {
  std::string where;   ///< file:line
  std::string target;  ///< as written
  bool quoted = false;
};

std::vector<Include> includes_of(const fs::path& path) {
  static const std::regex pattern(R"re(^\s*#\s*include\s*(["<])([^">]+)[">])re");
  std::ifstream file(path);
  std::vector<Include> includes;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    std::smatch match;
    if (!std::regex_search(line, match, pattern)) continue;
    includes.push_back(
        {fs::relative(path, kRoot).string() + ":" + std::to_string(number), match[2].str(), match[1] == "\""});
  }
  return includes;
}

/// Prefixes of the headers of CUDA and its libraries.
const std::vector<const char*> kCudaHeaders = {"cuda", "cublas", "nccl", "nvrtc"};

/// The forbidden includes of a file in `room`, one line each.
std::vector<std::string> violations(const fs::path& path, const std::string& room, const Rooms& rooms) {
  std::vector<std::string> result;
  const bool may_use_cuda =
      room == "core" || room == "dist" || path.filename().string().find("_cuda.") != std::string::npos;
  for (const Include& include : includes_of(path)) {
    const std::string target = include.target.substr(0, include.target.find('/'));
    if (!include.quoted) {
      const bool is_cuda = std::any_of(kCudaHeaders.begin(), kCudaHeaders.end(),
                                       [&](const char* prefix) { return include.target.starts_with(prefix); });
      if (is_cuda && !may_use_cuda) {
        result.push_back(include.where + ": " + include.target + " outside core, dist and *_cuda.{cu,cpp,h}");
      }
    } else if (!rooms.contains(target)) {
      result.push_back(include.where + ": \"" + include.target + "\" does not start with a room");
    } else if (!rooms.at(room).contains(target)) {
      result.push_back(include.where + ": " + room + " may not include " + include.target);
    }
  }
  return result;
}

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

TEST(Rooms, IncludeOnlyWhatTheTableAllows) {
  const Rooms rooms = allowed_rooms();
  std::vector<std::string> wrong;
  size_t files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(kRoot / "src")) {
    const std::string extension = entry.path().extension().string();
    if (!entry.is_regular_file() || (extension != ".h" && extension != ".cpp" && extension != ".cu")) continue;
    const std::string room = fs::relative(entry.path(), kRoot / "src").begin()->string();
    ASSERT_TRUE(rooms.contains(room)) << entry.path() << " is in no room";
    const std::vector<std::string> found = violations(entry.path(), room, rooms);
    wrong.insert(wrong.end(), found.begin(), found.end());
    ++files;
  }
  EXPECT_GT(files, 100u);
  EXPECT_TRUE(wrong.empty()) << joined(wrong);
}

TEST(Rooms, TheBuildLinksOnlyWhatTheTableAllows) {
  const Rooms rooms = allowed_rooms();
  std::ifstream file(kRoot / "CMakeLists.txt");
  const std::regex pattern(R"(^hone_room\((\w+)\s*(.*)\))");
  std::set<std::string> built;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    std::smatch match;
    if (!std::regex_search(line, match, pattern)) continue;
    const std::string room = match[1], arguments = match[2];
    ASSERT_TRUE(rooms.contains(room)) << "CMakeLists.txt:" << number;
    built.insert(room);
    const size_t begin = arguments.find("ROOMS "), end = arguments.find("LINKS ");
    if (begin == std::string::npos) continue;
    std::istringstream linked(arguments.substr(begin + 6, end == std::string::npos ? end : end - begin - 6));
    for (std::string other; linked >> other;) {
      EXPECT_TRUE(rooms.at(room).contains(other)) << "CMakeLists.txt:" << number << ": " << room << " links " << other;
    }
  }
  EXPECT_GE(built.size(), 14u);
}

/// Tests, and what they share: they may include more, and write files.
bool is_of_tests(const fs::path& path) {
  const std::string stem = path.stem().string();
  return stem.ends_with("_test") || stem.ends_with("_testing");
}

/// The op of a path below src/, "ops/linear"; for kernels and formats the folder; "" for other paths, and for tests,
/// which may include all ops.
std::string folder_of(const fs::path& path) {
  const std::string room = path.begin()->string();
  if (is_of_tests(path)) return "";
  if (room == "kernels" || room == "formats") return path.parent_path().string();
  if (room != "ops" || std::distance(path.begin(), path.end()) < 3) return "";
  return (room / *std::next(path.begin())).string();
}

using Folders = std::map<std::string, std::set<std::string>>;

/// A folder that includes itself through others, or "".
std::string find_cycle(const Folders& folders) {
  for (const auto& [start, ignored] : folders) {
    std::set<std::string> reached;
    std::vector<std::string> open(folders.at(start).begin(), folders.at(start).end());
    while (!open.empty()) {
      const std::string folder = open.back();
      open.pop_back();
      if (folder == start) return start;
      if (!reached.insert(folder).second || !folders.contains(folder)) continue;
      open.insert(open.end(), folders.at(folder).begin(), folders.at(folder).end());
    }
  }
  return "";
}

TEST(Rooms, FoldersOfOpsAndKernelsHaveNoCyclesAndNoOpReadsAnothersInside) {
  Folders folders;
  std::vector<std::string> wrong;
  for (const auto& entry : fs::recursive_directory_iterator(kRoot / "src")) {
    if (!entry.is_regular_file()) continue;
    const std::string from = folder_of(fs::relative(entry.path(), kRoot / "src"));
    if (from.empty()) continue;
    for (const Include& include : includes_of(entry.path())) {
      const fs::path target = include.target;
      const std::string to = folder_of(target);
      if (!include.quoted || to.empty() || to == from) continue;
      folders[from].insert(to);
      if (to.starts_with("ops/") && target.parent_path() != to) wrong.push_back(include.where + ": " + include.target);
    }
  }
  EXPECT_GT(folders.size(), 20u);
  EXPECT_EQ(find_cycle(folders), "");
  EXPECT_TRUE(wrong.empty()) << joined(wrong);
  EXPECT_EQ(find_cycle({{"a", {"b"}}, {"b", {"c"}}, {"c", {"b"}}}), "b");
}

/// Whether one of the folders is in the other: a folder and its parts are read together.
bool are_nested(const fs::path& a, const fs::path& b) { return a.parent_path() == b || b.parent_path() == a; }

TEST(Rooms, FoldersHaveNoCycles) {
  Folders folders;
  for (const auto& entry : fs::recursive_directory_iterator(kRoot / "src")) {
    const fs::path path = fs::relative(entry.path(), kRoot / "src");
    if (!entry.is_regular_file() || is_of_tests(path)) continue;
    const fs::path from = path.parent_path();
    for (const Include& include : includes_of(entry.path())) {
      const fs::path to = fs::path(include.target).parent_path();
      if (include.quoted && to != from && !are_nested(from, to)) folders[from.string()].insert(to.string());
    }
  }
  EXPECT_GT(folders.size(), 60u);
  EXPECT_EQ(find_cycle(folders), "");
}

/// Files that may create, replace or remove files, and why not through one of the others.
const std::map<std::string, std::string> kWriters = {
    {"core/files/durable_file.cpp", "writes every file under a temporary name, syncs and renames it"},
    {"core/files/output_files.cpp", "the rule for files that a command writes for its user"},
    {"core/files/folder_lock.cpp", "the file of a lock"},
    {"core/files/partial_lines.cpp", "lines that a command has ready, which its rule has allowed"},
    {"weights/model_folder.cpp", "puts a model into its folder"},
    {"weights/safetensors.cpp", "a file of a model that is being staged"},
    {"weights/shard_writer.cpp", "the same, by several ranks"},
    {"weights/placed_file.cpp", "the same, by several threads"},
    {"weights/tensor_file.cpp", "the same, where a rank has failed"},
    {"weights/adapter_save.cpp", "a file of an adapter that is being staged"},
    {"train/save/run_folder.cpp", "sets the results of a run aside, by their names"},
    {"train/save/checkpoint_folder.cpp", "renames and removes checkpoints, by the names of their files"},
    {"train/save/saved_tokenizer.cpp", "tokenizer files of a model that is being staged"},
    {"train/save/saved_chat.cpp", "the same, of its chat settings"},
    {"train/plan/rank_group.cpp", "a file of the ranks that tells whether they share the output folder"},
    {"train/report/trace_file.cpp", "a time line grows with its run, and is complete after each step"},
    {"session/device_facts.cpp", "a file of the kernel that is none, by which it measures this process anew"},
    {"train/run/trainer.cpp", "a link from the folder of ranks' logs to run.log"},
    {"hub/repo_cache.cpp", "links and locks of the hub's cache, whose layout is that of other programs"},
    {"hub/part_file.cpp", "files of that cache that arrive in pieces and outlive their program"},
    {"data/dataset/token_cache.cpp", "files of the cache, which has names of its own"},
    {"dist/control/run_secret.cpp", "the secret of a run, readable by its user alone"},
    {"dist/transport/shared_memory_transport.cpp", "memory that another rank has made"},
    {"report/metrics_file.cpp", "metrics.jsonl of a run, which is set aside with its results"},
    {"app/verify/thinned_case.cpp", "a folder of tests"},
};

/// Lines of a source that create, replace or remove files, or open them for writing.
std::vector<std::string> writing_lines(const fs::path& path) {
  static const std::regex pattern(
      R"((\bo?fstream\b\s*[\w({])|(\b(rename|renameat|renameat2|remove_all|unlink|unlinkat|rmdir|truncate|creat|symlink|link)\()|)"
      R"((\bremove\((?!_))|(\b(fopen|freopen|tmpfile|mkstemp|mkdtemp|copy_file|create_symlink|create_hard_link|)"
      R"(create_directory_symlink|resize_file)\()|(\bO_(CREAT|TRUNC|WRONLY|RDWR|APPEND)\b))");
  static const std::regex erase_idiom(R"(std::remove(_if)?\(|\w\.(remove|rename|link)\(|->(remove|link)\()");
  const auto may_match = [](const std::string& text) {  // the expressions are slow
    for (const char* part : {"ofstream", " fstream", "rename", "remove", "unlink", "rmdir", "trunc", "creat", "link(",
                             "open(", "tmpfile", "mkstemp", "mkdtemp", "copy_file", "_link", "resize_file", "O_"}) {
      if (text.find(part) != std::string::npos) return true;
    }
    return false;
  };
  std::ifstream file(path);
  std::vector<std::string> found;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    if (!may_match(line)) continue;
    const size_t comment = line.find("//");
    const std::string code = std::regex_replace(line.substr(0, comment), erase_idiom, "");
    if (std::regex_search(code, pattern) && code.find("\"/dev/null\"") == std::string::npos) {
      found.push_back(fs::relative(path, kRoot / "src").string() + ":" + std::to_string(number) + ": " + line);
    }
  }
  return found;
}

TEST(Writers, NoOtherSourceCreatesReplacesOrRemovesFiles) {
  std::vector<std::string> wrong;
  std::set<std::string> writers;
  for (const auto& entry : fs::recursive_directory_iterator(kRoot / "src")) {
    const std::string extension = entry.path().extension().string();
    if (!entry.is_regular_file() || (extension != ".h" && extension != ".cpp" && extension != ".cu")) continue;
    if (is_of_tests(entry.path())) continue;
    const std::vector<std::string> found = writing_lines(entry.path());
    if (found.empty()) continue;
    const std::string name = fs::relative(entry.path(), kRoot / "src").string();
    if (kWriters.contains(name)) {
      writers.insert(name);
    } else {
      wrong.insert(wrong.end(), found.begin(), found.end());
    }
  }
  EXPECT_TRUE(wrong.empty())
      << joined(wrong)
      << "write through core/files/output_files.h, weights/model_folder.h or core/files/durable_file.h";
  for (const auto& [name, reason] : kWriters) EXPECT_TRUE(writers.contains(name)) << name << " writes no more";
}

TEST(Writers, AreRecognised) {
  const fs::path path = fs::path(::testing::TempDir()) / "rooms_test_writer.cpp";
  std::ofstream(path) << "std::ofstream file(path);\nfs::rename(a, b);\nopen(p, O_CREAT);\nfs::remove_all(p);\n"
                      << "names.remove(3);\nstd::remove_if(a, b, f);\nstd::ifstream in(path);  // unlink(it)\n";
  const std::vector<std::string> found = writing_lines(path);
  fs::remove(path);
  EXPECT_EQ(found.size(), 4u) << joined(found);
}

TEST(Rooms, AWrongIncludeIsNamedWithFileAndLine) {
  const fs::path path = fs::path(::testing::TempDir()) / "rooms_test_wrong.h";
  std::ofstream(path) << "#pragma once\n\n#include <cuda_runtime.h>\n#include \"core/base/error.h\"\n"
                      << "#include \"train/step/engine.h\"\n#include \"engine.h\"\n";
  const std::vector<std::string> found = violations(path, "nn", allowed_rooms());
  fs::remove(path);
  ASSERT_EQ(found.size(), 3u) << joined(found);
  EXPECT_NE(found[0].find("rooms_test_wrong.h:3: cuda_runtime.h"), std::string::npos) << found[0];
  EXPECT_NE(found[1].find("rooms_test_wrong.h:5: nn may not include train/step/engine.h"), std::string::npos)
      << found[1];
  EXPECT_NE(found[2].find("does not start with a room"), std::string::npos) << found[2];
}

}  // namespace
