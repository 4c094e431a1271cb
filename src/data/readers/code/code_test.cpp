#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "core/base/error.h"
#include "core/base/processor_time_testing.h"
#include "core/text/json.h"
#include "data/dataset/dataset_reader.h"
#include "data/dataset/prepared_files.h"
#include "data/readers/code/code_items.h"
#include "data/readers/code/code_repository.h"

namespace hone {
namespace {

/// "kind depth:signature" of every item, with signatures on one line.
std::string items(const std::string& text, CodeLanguage language) {
  static constexpr const char* kKinds[] = {"import", "fn", "struct", "trait", "impl", "mod"};
  std::string all;
  for (const CodeItem& item : code_items(text, language)) {
    std::string heading = text.substr(item.declaration, item.signature_end - item.declaration);
    for (char& c : heading) c = c == '\n' ? ' ' : c;
    heading.erase(heading.find_last_not_of(' ') + 1);
    all += std::string(kKinds[static_cast<size_t>(item.kind)]) + std::to_string(item.depth) + "[" + heading + "]";
  }
  return all;
}

/// The text of item `index`, from its documentation to its end.
std::string whole(const std::string& text, CodeLanguage language, size_t index) {
  const std::vector<CodeItem> found = code_items(text, language);
  return index < found.size() ? text.substr(found[index].begin, found[index].end - found[index].begin) : "";
}

/// The structure with a ~ for every masked character that was not a space.
std::string masked(const std::string& text, CodeLanguage language) {
  std::string structure = code_structure(text, language);
  EXPECT_EQ(structure.size(), text.size());
  for (size_t i = 0; i < structure.size(); ++i) {
    if (structure[i] == ' ' && text[i] != ' ') structure[i] = '~';
  }
  return structure;
}

TEST(CodeStructure, OfRustHasNoLiteralsAndComments) {
  EXPECT_EQ(masked("a /* { /* } */ */ b", CodeLanguage::kRust), "a ~~ ~ ~~ ~ ~~ ~~ b");
  EXPECT_EQ(masked("f(r#\"}\"#, '}', '\\'', b\"}\", 'a)", CodeLanguage::kRust), "f(~~~~~~, ~~~, ~~~~, ~~~~, 'a)");
  EXPECT_EQ(masked("fn f<'a>(x: &'a str) {}", CodeLanguage::kRust), "fn f<'a>(x: &'a str) {}");
  EXPECT_EQ(masked("x = \"a\\\"}\" // }\ny", CodeLanguage::kRust), "x = ~~~~~~ ~~ ~\ny");
  EXPECT_EQ(masked("let r#type = bar;", CodeLanguage::kRust), "let r#type = bar;");
}

TEST(CodeStructure, OfCppHasNoPreprocessorLinesAndOneBranch) {
  EXPECT_EQ(masked("a /* { /* } */ b", CodeLanguage::kCpp), "a ~~ ~ ~~ ~ ~~ b");
  EXPECT_EQ(masked("f(R\"x(})\" )x\", 1'000, '}')", CodeLanguage::kCpp), "f(R~~~~~~ ~~~, 1_000, ~~~)");
  EXPECT_EQ(masked("#define A { \\\n {\nb", CodeLanguage::kCpp), "~~~~~~~ ~ ~ ~\n ~\nb");
  EXPECT_EQ(masked("#if A\nx {\n#else\ny {\n#endif\n}", CodeLanguage::kCpp), "~~~ ~\nx {\n~~~~~\n~ ~\n~~~~~~\n}");
}

TEST(CodeStructure, OfPythonKeepsTheQuotes) {
  EXPECT_EQ(masked("x = '''a\n{''' # {\n", CodeLanguage::kPython), "x = '''~\n~''' ~ ~\n");
  EXPECT_EQ(masked("f'{x}' + rb\"\\\"{\"", CodeLanguage::kPython), "f'~~~' + rb\"~~~\"");
}

TEST(RustItems, AreFoundWithModifiersGenericsAndWhereClauses) {
  EXPECT_EQ(
      items("use std::{fmt, io};\n"
            "pub(crate) async unsafe fn f<'a, T: Into<u8>>(x: &'a T) -> Result<(), E>\nwhere T: Copy { if x { } }\n"
            "extern \"C\" fn g();\n"
            "const fn h() -> [u8; 2] { [0; 2] }\n"
            "const X: S = S { a: 1 };\n"
            "static Y: fn() = || { };\n"
            "pub struct P<T>(T, u8) where T: Copy;\nstruct U;\nenum E { A { x: u8 }, B }\nunion W { a: u8 }\n",
            CodeLanguage::kRust),
      "import0[use std::{fmt, io}]"
      "fn0[pub(crate) async unsafe fn f<'a, T: Into<u8>>(x: &'a T) -> Result<(), E> where T: Copy]"
      "fn0[extern \"C\" fn g();]fn0[const fn h() -> [u8; 2]]"
      "struct0[pub struct P<T>(T, u8) where T: Copy]struct0[struct U]struct0[enum E]struct0[union W]");
}

TEST(RustItems, NestInTraitsImplsAndModules) {
  EXPECT_EQ(items("mod a;\nmod b {\n  pub trait T: Sized { const N: usize = 1; fn f(&self); fn g() { } }\n"
                  "  unsafe impl<T> Send for X<T> where T: Send { fn h(&self) { let s = \"}\"; } type A = u8; }\n}\nfn "
                  "end() {}",
                  CodeLanguage::kRust),
            "mod0[mod a]mod0[mod b]trait1[pub trait T: Sized]fn2[fn f(&self);]fn2[fn g()]"
            "impl1[unsafe impl<T> Send for X<T> where T: Send]fn2[fn h(&self)]fn0[fn end()]");
}

TEST(RustItems, SkipMacrosAndMarkTests) {
  const std::string text =
      "macro_rules! m { ($x:expr) => { fn not_this() {} }; }\nlazy_static! { static ref A: u8 = 1; }\n"
      "/// Adds.\n/// Really.\n#[inline]\n#[must_use = \"}\"]\nfn add() { }\n"
      "#[cfg(test)]\nmod tests {\n  #[test]\n  fn t() {}\n}\nfn later() {}\n";
  EXPECT_EQ(items(text, CodeLanguage::kRust), "fn0[fn add()]mod0[mod tests]fn1[fn t()]fn0[fn later()]");
  const std::vector<CodeItem> found = code_items(text, CodeLanguage::kRust);
  EXPECT_FALSE(found[0].is_test);
  EXPECT_TRUE(found[1].is_test && found[2].is_test);
  EXPECT_FALSE(found[3].is_test);
  EXPECT_EQ(whole(text, CodeLanguage::kRust, 0),
            "/// Adds.\n/// Really.\n#[inline]\n#[must_use = \"}\"]\nfn add() { }");
}

TEST(CppItems, AreFoundInNamespacesAndClasses) {
  EXPECT_EQ(items("#include <vector>\n#include \"a.h\"\nnamespace a::b {\n"
                  "template <class T, int N = (1 > 0)>\nclass Box : public Base<T>, private Other {\n public:\n"
                  "  explicit Box(int x) : x_(x), y_{1}, Base<T>(x) { run(); }\n  ~Box() = default;\n"
                  "  bool operator==(const Box&) const = default;\n  int operator()(int a) const { return a; }\n"
                  "  static int f();\n  int x_ = 1, y_{};\n private:\n  enum class E { kA, kB };\n};\n"
                  "inline int g(const std::vector<int>& v = {}) noexcept { return v[0]; }\n"
                  "struct S f2();\nconst int table[] = {1, 2};\nauto lambda = [](int x) { return x; };\n"
                  "using X = int;\ntypedef struct { int a; } Y;\n}  // namespace\n",
                  CodeLanguage::kCpp),
            "import0[#include <vector>]import0[#include \"a.h\"]mod0[namespace a::b]"
            "struct1[template <class T, int N = (1 > 0)> class Box : public Base<T>, private Other]"
            "fn2[explicit Box(int x)]fn2[~Box() = default;]fn2[bool operator==(const Box&) const = default;]"
            "fn2[int operator()(int a) const]fn2[static int f();]struct2[enum class E]"
            "fn1[inline int g(const std::vector<int>& v = {}) noexcept]fn1[struct S f2();]"
            "struct1[typedef struct]");
}

TEST(CppItems, UnderstandConceptsRequiresAndMacros) {
  EXPECT_EQ(items("template <class T>\nconcept Small = requires(T t) { t.size(); } && sizeof(T) < 8;\n"
                  "template <class T> requires Small<T>\nvoid f(T t) { }\n"
                  "template <class T>\n  requires requires(T t) { t.x(); }\nint g(T t) { return 0; }\n"
                  "TEST(Suite, Name) {\n  EXPECT_TRUE(1);\n}\nHONE_MACRO(x);\nextern \"C\" {\nvoid h(int);\n}\n"
                  "__global__ void __launch_bounds__(128) kernel(float* x) { x[0] = 1'0; }\n",
                  CodeLanguage::kCpp),
            "trait0[template <class T> concept Small = requires(T t) { t.size(); } && sizeof(T) < 8;]"
            "fn0[template <class T> requires Small<T> void f(T t)]"
            "fn0[template <class T>   requires requires(T t) { t.x(); } int g(T t)]"
            "fn0[TEST(Suite, Name)]fn1[void h(int);]"
            "fn0[__global__ void __launch_bounds__(128) kernel(float* x)]");
}

TEST(CppItems, KeepTheirDocumentation) {
  const std::string text =
      "int a;\n\n/// One.\n/// Two.\nint f() { return R\"(})\"[0]; }\n\n/**\n * Three.\n */\nstruct S {};\n";
  EXPECT_EQ(whole(text, CodeLanguage::kCpp, 0), "/// One.\n/// Two.\nint f() { return R\"(})\"[0]; }");
  EXPECT_EQ(whole(text, CodeLanguage::kCpp, 1), "/**\n * Three.\n */\nstruct S {};");
}

TEST(PythonItems, AreFoundWithDecoratorsDocstringsAndBases) {
  const std::string text =
      "import os\nfrom a import (b,\n  c)\n\n# About f.\n@cache\n@other(x={'a': 1})\nasync def f(a: dict = {'x': 1},\n"
      "            b=lambda y: y) -> int:\n    '''Doc: {\n    more'''\n    def inner(): pass\n    return 1\n\n"
      "class A(Base, metaclass=Meta):\n    x: int = 1\n\n    @property\n    def p(self): return ':'\n\nclass "
      "T(Protocol):\n"
      "    def q(self) -> int: ...\n\nif True:\n    def hidden(): pass\n";
  EXPECT_EQ(items(text, CodeLanguage::kPython),
            "import0[import os]import0[from a import (b,   c)]"
            "fn0[async def f(a: dict = {'x': 1},             b=lambda y: y) -> int:]"
            "struct0[class A(Base, metaclass=Meta):]fn1[def p(self):]trait0[class T(Protocol):]fn1[def q(self) -> int:]"
            "fn0[def hidden():]");
  const std::vector<CodeItem> found = code_items(text, CodeLanguage::kPython);
  EXPECT_EQ(text.substr(found[2].begin, 31), "# About f.\n@cache\n@other(x={'a'");
  EXPECT_TRUE(text.substr(0, found[2].heading_end).ends_with("more'''"));
  EXPECT_TRUE(text.substr(0, found[2].end).ends_with("return 1"));
}

/// Truncated and damaged code: offsets stay inside the text and in order.
TEST(CodeItems, SurviveRubbish) {
  const std::string seeds[] = {
      "impl<'a> X<'a> { fn f(&self) -> &'a str { r#\"}\"# } }\n#[test] fn t() { '\\u{41}'; }\nmacro_rules! m { () => "
      "{} }",
      "template <class T> struct A : B<T> { A() : x{1} {} operator int(); };\n#if 1\n{\n#else\n#endif\nconcept C = "
      "requires { 1; };",
      "@d\nclass A(B):\n    '''doc'''\n    def f(self, a={}, *b):\n        return '''x\n'''\n",
      "((((((((((((({{{{{{{{{{{{[[[[[[[[",
      "}}}}))))]]]]",
      "fn fn fn struct struct class class def def",
      "\"\"\"\"\"\"\"'''''''"};
  std::mt19937 random(7);
  for (const std::string& seed : seeds) {
    for (int round = 0; round < 400; ++round) {
      std::string text = seed.substr(random() % (seed.size() + 1) / 2);
      for (unsigned edits = random() % 6; edits > 0 && !text.empty(); --edits) {
        text[random() % text.size()] = "{}()[]<>'\"\\/#*;:=\n a"[random() % 20];
      }
      for (const CodeLanguage language : {CodeLanguage::kRust, CodeLanguage::kCpp, CodeLanguage::kPython}) {
        ASSERT_EQ(code_structure(text, language).size(), text.size());
        for (const CodeItem& item : code_items(text, language)) {
          ASSERT_LE(item.begin, item.declaration) << text;
          ASSERT_LE(item.declaration, item.signature_end) << text;
          ASSERT_LE(item.signature_end, item.heading_end) << text;
          ASSERT_LE(item.heading_end, item.end) << text;
          ASSERT_LE(item.end, text.size()) << text;
        }
      }
    }
  }
}

TEST(CodeItems, DeepNestingIsNoProblem) {
  std::string text;
  for (int i = 0; i < 20000; ++i) text += "mod a { ";
  EXPECT_LE(code_items(text, CodeLanguage::kRust).size(), 70u);
  std::string cpp;
  for (int i = 0; i < 20000; ++i) cpp += "namespace a { ";
  EXPECT_LE(code_items(cpp, CodeLanguage::kCpp).size(), 70u);
}

namespace fs = std::filesystem;

/// Counts tokens: words, and other characters except spaces.
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
  for (int i = 0; i < 100; ++i) text += "let a" + std::to_string(i) + " = 1;\n";  // 5 tokens per line
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
  const double begin = processor_seconds();
  EXPECT_FALSE(IgnorePatterns({"*a*a*a*a*a*a*a*b"}).ignores(std::string(255, 'a'), false));
  EXPECT_TRUE(IgnorePatterns({"*a*a*a*a*a*a*a*b"}).ignores(std::string(255, 'a') + "b", false));
  EXPECT_LT(processor_seconds() - begin, 5);
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
  EXPECT_LE(longest(1), 12);  // chunks, each with space for eos
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
