// Runs the examples of the documentation, and holds it against the program and itself. On a page, a fence "```LANGUAGE
// FILE" writes FILE and a fence "```bash" is run, in the order of the page, in a folder with the `quickstart/` of `hone
// quickstart` (after a few steps). Other fences are ignored.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "program.h"

namespace hone {
namespace {

namespace fs = std::filesystem;

struct Fence {
  std::string language, file, text;
  int line = 0;  ///< the page's line where it begins
};

std::vector<Fence> fences_of(const fs::path& page) {
  std::ifstream file(page);
  std::vector<Fence> fences;
  bool open = false;
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    if (line.rfind("```", 0) != 0) {
      if (open) fences.back().text += line + "\n";
      continue;
    }
    open = !open;
    if (!open) continue;
    const std::string info = line.substr(3);
    const size_t space = info.find(' ');
    Fence fence{.language = info.substr(0, space), .file = {}, .text = {}, .line = number};
    if (space != std::string::npos) fence.file = info.substr(space + 1);
    fences.push_back(fence);
  }
  EXPECT_FALSE(open) << page << ": a fence is not closed";
  return fences;
}

bool runs_something(const fs::path& page) {
  const std::vector<Fence> fences = fences_of(page);
  return std::any_of(fences.begin(), fences.end(), [](const Fence& fence) { return fence.language == "bash"; });
}

std::vector<std::string> pages() {
  const fs::path root = HONE_SOURCE_DIR;
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(root / "docs")) {
    if (entry.path().extension() == ".md" && runs_something(entry.path())) names.push_back(entry.path().stem());
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// The quickstart's folder, made once for all pages. Its models are trained too little to reach the bars, which does
/// not matter here.
const fs::path& quickstart() {
  static const Folder folder;
  static const fs::path made = [] {
    const fs::path path = folder / "quickstart";
    run_hone({"quickstart", "--output", path.string(), "--english-steps", "2", "--german-steps", "2"});
    return path;
  }();
  return made;
}

int shell(const fs::path& folder, const std::string& commands, const fs::path& output) {
  const std::string script = fmt::format("cd '{}' && PATH='{}':\"$PATH\" && set -euo pipefail\n{}", folder.string(),
                                         fs::path(hone_program()).parent_path().string(), commands);
  const fs::path file = folder / ".block.sh";
  std::ofstream(file) << script;
  const int status =
      std::system(fmt::format("bash '{}' > '{}' 2>&1 < /dev/null", file.string(), output.string()).c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

class Docs : public testing::TestWithParam<std::string> {};

TEST_P(Docs, TheCommandsOfThePageRun) {
  ASSERT_TRUE(fs::exists(quickstart() / "merged"));
  const Folder folder;
  fs::copy(quickstart(), folder / "quickstart", fs::copy_options::recursive);
  const fs::path page = fs::path(HONE_SOURCE_DIR) / "docs" / (GetParam() + ".md");
  for (const Fence& fence : fences_of(page)) {
    if (!fence.file.empty()) folder.write(fence.file, fence.text);
    if (fence.language != "bash") continue;
    const fs::path output = folder / ".output";
    const int code = shell(folder / "", fence.text, output);
    ASSERT_EQ(code, 0) << page.filename() << ":" << fence.line << "\n" << fence.text << read_file(output);
  }
}

INSTANTIATE_TEST_SUITE_P(Pages, Docs, testing::ValuesIn(pages()), [](const auto& page) {
  std::string name = page.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST(Readme, HasTheRowsOfTheSchema) {
  const std::string readme = read_file(fs::path(HONE_SOURCE_DIR) / "README.md");
  std::istringstream rows(run_hone({"schema", "--summary"}).out);
  size_t count = 0;
  for (std::string row; std::getline(rows, row); ++count) {
    EXPECT_NE(readme.find(row + "\n"), std::string::npos) << "README.md lacks this row of hone schema --summary:\n"
                                                          << row;
  }
  EXPECT_EQ(count, 5u);
}

/// The anchor that a heading gets: small letters, digits, hyphens and underscores; spaces become hyphens.
std::string anchor_of(const std::string& heading) {
  std::string anchor;
  for (const char c : heading) {
    if (c == ' ') anchor += '-';
    if (std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_')
      anchor += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return anchor;
}

/// The lines of a page outside of its fences.
std::vector<std::string> prose_of(const fs::path& page) {
  std::ifstream file(page);
  std::vector<std::string> lines;
  bool fence = false;
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("```", 0) == 0) {
      fence = !fence;
    } else if (!fence) {
      lines.push_back(line);
    }
  }
  return lines;
}

/// Whether a page has a heading with this anchor.
bool has_anchor(const fs::path& page, const std::string& anchor) {
  const std::vector<std::string> lines = prose_of(page);
  return std::any_of(lines.begin(), lines.end(), [&](const std::string& line) {
    const size_t text = line.find_first_not_of('#');
    return text != 0 && text != std::string::npos && line[text] == ' ' && anchor_of(line.substr(text + 1)) == anchor;
  });
}

TEST(Links, LeadToFilesAndHeadings) {
  const fs::path root = HONE_SOURCE_DIR;
  std::vector<fs::path> texts = {root / "README.md", root / "CHANGELOG.md", root / "CONTRIBUTING.md",
                                 root / "SECURITY.md", root / "bench/results/measurements.md"};
  for (const auto& entry : fs::directory_iterator(root / "docs")) texts.push_back(entry.path());
  size_t links = 0;
  for (const fs::path& page : texts) {
    for (const std::string& line : prose_of(page)) {
      for (size_t at = 0; (at = line.find("](", at)) != std::string::npos; ++at) {
        const std::string link = line.substr(at + 2, line.find(')', at) - at - 2);
        if (link.find("://") != std::string::npos) continue;
        const size_t hash = std::min(link.find('#'), link.size());
        const fs::path target = hash == 0 ? page : page.parent_path() / link.substr(0, hash);
        EXPECT_TRUE(fs::exists(target)) << page << ": " << link;
        EXPECT_TRUE(hash == link.size() || has_anchor(target, link.substr(hash + 1))) << page << ": " << link;
        ++links;
      }
    }
  }
  EXPECT_GT(links, 200u);
}

/// The commands in a text: indented lines that begin with the program's name, without the explanation after two spaces.
std::vector<std::string> commands_in(const std::string& text, const std::string& program) {
  std::vector<std::string> commands;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t begin = line.find_first_not_of(' ');
    if (begin == std::string::npos || begin == 0 || line.compare(begin, program.size() + 1, program + " ") != 0)
      continue;
    commands.push_back(line.substr(begin, line.find("  ", begin) - begin));
  }
  return commands;
}

TEST(Quickstart, ItsCommandsRunAsPrintedAndItWarnsOfNothing) {
  const Folder folder;
  const Outcome shown = run_hone(
      {"quickstart", "--output", (folder / "quickstart").string(), "--english-steps", "40", "--german-steps", "20"});
  EXPECT_EQ(shown.out.find("warning"), std::string::npos) << shown.out;
  EXPECT_EQ(shown.err.find("warning"), std::string::npos) << shown.err;
  // "Next, with your own model and data": of these there are now some.
  fs::create_directory_symlink("quickstart/merged", folder / "YOUR-MODEL");
  fs::copy(folder / "quickstart/data/english_test.jsonl", folder / "chats.jsonl");
  const std::vector<std::string> commands = commands_in(shown.out, "hone");
  EXPECT_EQ(commands.size(), 7u) << shown.out;
  for (const std::string& command : commands) {
    const fs::path output = folder / ".output";
    EXPECT_EQ(shell(folder / "", command, output), 0) << command << "\n" << read_file(output);
    EXPECT_EQ(read_file(output).find("warning: routers"), std::string::npos) << command << "\n" << read_file(output);
  }
}

}  // namespace
}  // namespace hone
