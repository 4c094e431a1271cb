#include "data/code/code_items.h"

#include <gtest/gtest.h>

#include <random>

namespace hone {
namespace {

/// "kind depth:signature" of every item, signatures on one line.
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

/// The structure with a ~ for every masked character that was no space.
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

/// Cuts and damages of real code: places stay inside the text and in order.
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

}  // namespace
}  // namespace hone
