#include "data/code/code_repository.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>

#include "core/error.h"
#include "data/code/code_file.h"
#include "data/dataset_reader.h"

namespace hone {
namespace {

namespace fs = std::filesystem;

/// A token is a word or a character that is no space.
int64_t count_words(std::string_view text) {
  int64_t count = 0;
  bool in_word = false;
  for (const unsigned char c : text) {
    const bool word = std::isalnum(c) || c == '_';
    count += std::isspace(c) || (word && in_word) ? 0 : 1;
    in_word = word;
  }
  return count;
}

class CodeRepository : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(testing::TempDir()) /
            ("code_" + std::string(testing::UnitTest::GetInstance()->current_test_info()->name()));
    fs::remove_all(root_);
  }
  void TearDown() override { fs::remove_all(root_); }

  void write(const std::string& name, const std::string& text) {
    fs::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name, std::ios::binary) << text;
  }

  /// "file:line kind" of every sample.
  std::vector<std::string> read(const CodeOptions& options) {
    CodeReader reader(root_.string(), options, count_words);
    std::vector<std::string> all;
    texts_.clear();
    for (CodeReader::Sample sample; reader.next(sample);) {
      all.push_back(fs::relative(sample.file, root_).string() + ":" + std::to_string(sample.line) + " " +
                    std::string(name_of(sample.kind)));
      texts_.push_back(sample.text);
    }
    statistics_ = reader.statistics();
    EXPECT_EQ(reader.bytes_read(), reader.bytes_total());
    return all;
  }

  std::string refusal(const CodeOptions& options) {
    try {
      (void)read(options);
    } catch (const UserError& error) {
      return error.message();
    }
    return "";
  }

  static CodeOptions small() {
    CodeOptions options;
    options.samples.min_tokens = 1;
    return options;
  }

  fs::path root_;
  std::vector<std::string> texts_;
  CodeStatistics statistics_;
};

TEST_F(CodeRepository, GivesEverySampleOfEveryFileInOrder) {
  write("src/lib.rs",
        "use a::b;\n\n/// A point.\npub struct P { x: u8 }\n\nimpl P {\n    pub fn x(&self) -> u8 { self.x }\n}\n"
        "pub trait T { fn t(&self); }\n");
  write("a.py", "import os\n\ndef f(x):\n    '''Doc.'''\n    return x\n");
  write("main.cpp", "#include <a>\nint main() { return 0; }\n");
  const std::vector<std::string> expected = {"a.py:1 full_file",
                                             "a.py:3 function_signature",
                                             "a.py:1 module_structure",
                                             "main.cpp:1 full_file",
                                             "main.cpp:2 function_signature",
                                             "main.cpp:1 module_structure",
                                             "src/lib.rs:1 full_file",
                                             "src/lib.rs:7 function_signature",
                                             "src/lib.rs:9 function_signature",
                                             "src/lib.rs:3 struct_definition",
                                             "src/lib.rs:9 trait_definition",
                                             "src/lib.rs:6 impl_block",
                                             "src/lib.rs:1 module_structure"};
  EXPECT_EQ(read(small()), expected);
  EXPECT_EQ(texts_[1], "def f(x):\n    '''Doc.'''");
  EXPECT_EQ(texts_[2], "# a.py\nimport os\ndef f(x):\n");
  EXPECT_EQ(texts_[7], "    pub fn x(&self) -> u8");
  EXPECT_EQ(texts_[9], "/// A point.\npub struct P { x: u8 }");
  EXPECT_EQ(texts_[12],
            "// src/lib.rs\nuse a::b\npub struct P { … }\nimpl P { … }\n    pub fn x(&self) -> u8 { … }\n"
            "pub trait T { … }\n    fn t(&self);\n");
  EXPECT_EQ(
      statistics_.to_text("; "),
      "rust: 1 files, 125 bytes, 7 samples; cpp: 1 files, 38 bytes, 3 samples; python: 1 files, 49 bytes, 3 samples; "
      "full_file: 3 found, 3 created; function_signature: 4 found, 4 created; struct_definition: 1 found, 1 created; "
      "trait_definition: 1 found, 1 created; impl_block: 1 found, 1 created; module_structure: 3 found, 3 created");
}

TEST_F(CodeRepository, ChunksOverlapAndCoverTheFile) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += "let a" + std::to_string(i) + " = 1;\n";  // 5 tokens a line
  write("long.rs", text);
  CodeOptions options = small();
  options.samples.max_tokens = 52;
  options.samples.overlap = 12;
  options.samples.kinds = {CodeSampleKind::kFullFile, CodeSampleKind::kChunk};
  const std::vector<std::string> samples = read(options);
  ASSERT_EQ(samples.size(), 13u) << "10 lines a chunk, 2 of them again in the next";
  EXPECT_EQ(samples[1], "long.rs:9 chunk");
  std::string joined = texts_[0];
  for (size_t i = 1; i < texts_.size(); ++i) {
    EXPECT_LE(count_words(texts_[i]), 52);
    const size_t shared = texts_[i].find('\n', texts_[i].find('\n') + 1) + 1;
    EXPECT_TRUE(joined.ends_with(texts_[i].substr(0, shared)));
    joined += texts_[i].substr(shared);
  }
  EXPECT_EQ(joined, text);
}

TEST_F(CodeRepository, ALineLongerThanAChunkIsAChunk) {
  std::string line = "x = [";
  for (int i = 0; i < 50; ++i) line += "1, ";
  write("a.py", "a = 1\n" + line + "]\nb = 2\n");
  CodeOptions options = small();
  options.samples.max_tokens = 10;
  options.samples.overlap = 9;
  const std::vector<std::string> samples = read(options);
  ASSERT_EQ(samples.size(), 3u);
  EXPECT_EQ(texts_[1], line + "]\n");
}

TEST_F(CodeRepository, LeavesOutWhatIsExcludedBinaryHugeOrOfTests) {
  const std::string code = "fn main() {}\n";
  for (const char* name : {"src/a.rs", "target/b.rs", ".git/c.rs", "x/node_modules/d.rs", "src/gen/e.rs",
                           "src/tests/f.rs", "g_test.rs", "build/h.rs", "keep.rs"}) {
    write(name, code);
  }
  write("binary.rs", std::string("fn\0main", 7));
  write("latin.rs", "// \xE4\n");
  write("huge.rs", std::string(5000, '/'));
  write("read.me", "x");
  fs::create_symlink(root_, root_ / "loop");
  CodeOptions options = small();
  options.samples.kinds = {CodeSampleKind::kFullFile};
  options.samples.include_tests = false;
  options.exclude_patterns = {"src/gen/", "!build/"};
  options.max_file_bytes = 4000;
  const std::vector<std::string> expected = {"build/h.rs:1 full_file", "keep.rs:1 full_file", "src/a.rs:1 full_file"};
  EXPECT_EQ(read(options), expected);
  EXPECT_EQ(statistics_.binary, 2);
  EXPECT_EQ(statistics_.huge, 1);
  EXPECT_EQ(statistics_.tests, 2);
  EXPECT_EQ(statistics_.other_files, 1);
  EXPECT_EQ(statistics_.ignored, 4) << ".git, target, node_modules and src/gen";
}

TEST_F(CodeRepository, IsReadAsADataSetOfTexts) {
  write("a.py", "x = 1\ndef f(x):\n    return x\n");
  DatasetEntry entry{.path = root_.string(), .format = SampleFormat::kText, .samples = 2, .code = small()};
  entry.code->samples.kinds = {CodeSampleKind::kFullFile, CodeSampleKind::kFunctionSignature, CodeSampleKind::kChunk};
  DatasetReader reader(entry, count_words);
  DatasetRow row;
  ASSERT_TRUE(reader.next(row));
  EXPECT_EQ(row.where(), (root_ / "a.py").string());
  EXPECT_EQ(std::get<PromptCompletion>(read_row(row, entry.mapping)).completion, "x = 1\ndef f(x):\n    return x\n");
  ASSERT_TRUE(reader.next(row));
  EXPECT_EQ(row.where(), (root_ / "a.py").string() + ":2");
  EXPECT_FALSE(reader.next(row));
  EXPECT_EQ(reader.format(), SampleFormat::kText);
  EXPECT_EQ(
      reader.decision(),
      "python: 1 files, 29 bytes, 2 samples; full_file: 1 found, 1 created; function_signature: 1 found, 1 created");
  EXPECT_THROW(DatasetReader(entry, {}), UserError) << "without a tokenizer";
}

TEST_F(CodeRepository, CountsWhatIsTooShortOrTooLong) {
  write("a.rs", "fn f() {}\nstruct S { a: u8, b: u8, c: u8, d: u8, e: u8, f: u8 }\n");
  CodeOptions options;
  options.samples.min_tokens = 6;
  options.samples.max_tokens = 20;
  options.samples.overlap = 0;
  (void)read(options);
  const CodeKindCount signatures = statistics_.kinds[static_cast<size_t>(CodeSampleKind::kFunctionSignature)];
  EXPECT_EQ(signatures.too_short, 1);
  const CodeKindCount structs = statistics_.kinds[static_cast<size_t>(CodeSampleKind::kStructDefinition)];
  EXPECT_EQ(structs.found, 1);
  EXPECT_EQ(structs.too_long, 1);
}

TEST_F(CodeRepository, RefusesWhatMakesNoSense) {
  EXPECT_EQ(refusal(small()), "a data set of type code is a folder of source files");
  write("a.txt", "x");
  EXPECT_NE(refusal(small()).find("no source file to read"), std::string::npos);
  write("a.rs", "x");
  CodeOptions options = small();
  options.samples.overlap = 4096;
  EXPECT_NE(refusal(options).find("overlap 4096 is not below max_tokens"), std::string::npos);
  options = small();
  options.languages = {"pyhton"};
  EXPECT_NE(refusal(options).find("Did you mean 'python'"), std::string::npos);
  options = small();
  options.exclude_patterns = {"[a"};
  EXPECT_NE(refusal(options).find("is not a pattern"), std::string::npos);
  EXPECT_THROW((void)code_sample_kind_of("functions"), UserError);
}

TEST(CodeOptions, AreReadFromAnEntry) {
  const CodeOptions options = CodeOptions::parse(Json{{"kinds", {"chunk"}},
                                                      {"max_tokens", 100},
                                                      {"include_tests", false},
                                                      {"languages", {"rust"}},
                                                      {"max_file_size", 10}},
                                                 "x");
  EXPECT_EQ(options.samples.kinds, std::vector<CodeSampleKind>{CodeSampleKind::kChunk});
  EXPECT_EQ(options.samples.overlap, 50) << "256 would not be below max_tokens";
  EXPECT_FALSE(options.samples.include_tests);
  EXPECT_EQ(options.max_file_bytes, 10);
  EXPECT_THROW((void)CodeOptions::parse(Json{{"max_tokens", 10}, {"overlap", 10}}, "x"), UserError);
  EXPECT_THROW((void)CodeOptions::parse(Json{{"kinds", {"chunks"}}}, "x"), UserError);
}

TEST(IgnorePatterns, MatchAsGitDoes) {
  const auto ignored = [](const char* pattern, const char* path, bool folder = false) {
    return IgnorePatterns({pattern}).ignores(path, folder);
  };
  EXPECT_TRUE(ignored("target/", "a/target", true));
  EXPECT_FALSE(ignored("target/", "a/target", false));
  EXPECT_TRUE(ignored("*.pb.h", "a/b/x.pb.h"));
  EXPECT_FALSE(ignored("*.pb.h", "a/x.pb.hpp"));
  EXPECT_TRUE(ignored("/a", "a", true));
  EXPECT_FALSE(ignored("/a", "b/a", true));
  EXPECT_TRUE(ignored("a/*.c", "a/x.c"));
  EXPECT_FALSE(ignored("a/*.c", "a/b/x.c"));
  EXPECT_TRUE(ignored("a/**/x.c", "a/x.c"));
  EXPECT_TRUE(ignored("a/**/x.c", "a/b/c/x.c"));
  EXPECT_TRUE(ignored("a/**", "a/b/c"));
  EXPECT_TRUE(ignored("x[0-9]?.c", "x7z.c"));
  EXPECT_FALSE(ignored("x[!0-9]?.c", "x7z.c"));
  const IgnorePatterns several({"*.c", "!keep.c"});
  EXPECT_TRUE(several.ignores("a.c", false));
  EXPECT_FALSE(several.ignores("b/keep.c", false));
}

TEST(IgnorePatterns, ManyStarsTakeNoLonger) {
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_FALSE(IgnorePatterns({"*a*a*a*a*a*a*a*b"}).ignores(std::string(255, 'a'), false));
  EXPECT_TRUE(IgnorePatterns({"*a*a*a*a*a*a*a*b"}).ignores(std::string(255, 'a') + "b", false));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
}

TEST_F(CodeRepository, WhatIsPutAroundATextIsAmongItsTokens) {
  write("a.py", "a = 1\nb = 2\nc = 3\nd = 4\n");  // 12 tokens
  CodeOptions options;
  options.samples.kinds = {CodeSampleKind::kFullFile, CodeSampleKind::kChunk};
  options.samples.max_tokens = 12;
  options.samples.overlap = 0;
  options.samples.min_tokens = 1;
  const auto longest = [&](int64_t around) {
    CodeReader reader(root_.string(), options, [&](std::string_view text) { return count_words(text) + around; });
    int64_t most = 0;
    for (CodeReader::Sample sample; reader.next(sample);) most = std::max(most, count_words(sample.text) + around);
    return most;
  };
  EXPECT_EQ(longest(0), 12);  // the whole file
  EXPECT_LE(longest(1), 12);  // chunks, of which each has room for eos
  EXPECT_GT(longest(1), 6);
}

TEST_F(CodeRepository, SamplesBecomeADataSetOfText) {
  write("src/a.py", "def f(x):\n    return x\n");
  write("b.py", "y = \"\u00e9\"\n");
  CodeOptions options;
  options.samples.kinds = {CodeSampleKind::kFullFile};
  options.samples.min_tokens = 1;
  const fs::path output = root_ / "out";
  DatasetEntry entry{root_.string()};
  entry.code = options;
  const CodeFile written = write_code_file({entry}, count_words, output);
  EXPECT_EQ(written.path, output / "all_data.jsonl");
  EXPECT_EQ(written.samples, 2);
  ASSERT_EQ(written.statistics.size(), 1u);
  EXPECT_NE(written.statistics[0].find("full_file: 2 found, 2 created"), std::string::npos) << written.statistics[0];
  const DatasetEntry again{written.path.string()};
  DatasetReader reader(again);
  std::vector<Json> rows;
  for (DatasetRow row; reader.next(row);) {
    EXPECT_EQ(row.format, SampleFormat::kText);
    rows.push_back(parse_row(row.raw));
  }
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[1]["text"], "def f(x):\n    return x\n");
  EXPECT_EQ(rows[1]["type"], "full_file");
  EXPECT_EQ(rows[1]["line"], 1);
}

}  // namespace
}  // namespace hone
