#include "weights/pickle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"

namespace hone {
namespace {

using Kind = PickleValue::Kind;
using testing::HasSubstr;

std::string text(const char* word) {
  return std::string("\x8c") + static_cast<char>(std::string_view(word).size()) + word;
}

Pickle parse(const std::string& program, const std::set<std::string>& allowed = {}) {
  return Pickle::parse("\x80\x04" + program + ".", allowed, "file");
}

std::string problem(const std::string& program, const std::set<std::string>& allowed = {}) {
  try {
    parse(program, allowed);
  } catch (const UserError& error) {
    EXPECT_EQ(error.where(), "file");
    return error.message();
  }
  return "none";
}

TEST(Pickle, ReadsValues) {
  // {"a": (1, -2, 300), "b": [True, None, 2.5]}, with a remembered text.
  const Pickle pickle =
      parse(std::string("}(") + text("a") + "\x94" + "K\x01" + "J\xfe\xff\xff\xff" + "M\x2c\x01" + "\x87" + text("b") +
            "](" + "\x88" + "N" + std::string("G\x40\x04\0\0\0\0\0\0", 9) + "eu");
  const PickleValue* a = pickle.root().find("a");
  ASSERT_TRUE(a && a->is(Kind::kTuple) && a->items.size() == 3u);
  EXPECT_EQ(a->items[0]->integer, 1);
  EXPECT_EQ(a->items[1]->integer, -2);
  EXPECT_EQ(a->items[2]->integer, 300);
  const PickleValue* b = pickle.root().find("b");
  ASSERT_TRUE(b && b->is(Kind::kList) && b->items.size() == 3u);
  EXPECT_EQ(b->items[0]->integer, 1);
  EXPECT_TRUE(b->items[1]->is(Kind::kNone));
  EXPECT_TRUE(b->items[2]->is(Kind::kFloat));
  EXPECT_EQ(pickle.root().find("c"), nullptr);
}

TEST(Pickle, CallsAreDescribedAndNotMade) {
  const Pickle pickle =
      parse(text("torch") + text("Size") + "\x93" + "K\x02K\x03\x86\x85R}" + text("x") + "K\x07sb", {"torch.Size"});
  EXPECT_TRUE(pickle.root().is_object("torch.Size"));
  EXPECT_EQ(pickle.root().arguments->items[0]->items[1]->integer, 3);
  EXPECT_EQ(pickle.root().find("x")->integer, 7);
}

TEST(Pickle, ForeignNamesAreRefusedByName) {
  const std::string evil = "cos\nsystem\n" + text("touch owned") + "\x85R";
  EXPECT_THAT(problem(evil, {"torch.Size"}), HasSubstr("'os.system'"));
  EXPECT_THAT(problem(text("builtins") + text("eval") + "\x93", {"builtins.dict"}), HasSubstr("'builtins.eval'"));
  // Neither a prefix nor a dotted name slips through.
  EXPECT_THAT(problem("ctorch\nSize.x\n", {"torch.Size"}), HasSubstr("'torch.Size.x'"));
  EXPECT_EQ(problem("ctorch\nSize\n", {"torch.Size"}), "none");
}

TEST(Pickle, CallsDoNotCopyTheirArguments) {
  // A tuple of a million values is what 2,000 calls get.
  std::string bytes = "(" + std::string(1'000'000, 'N') +
                      "tq\x01"
                      "0"
                      "ctorch\nSize\nq\x02"
                      "0"
                      "](";
  for (int i = 0; i < 2000; ++i) bytes += "h\x02h\x01R";
  const Pickle pickle = parse(bytes + "e", {"torch.Size"});
  ASSERT_EQ(pickle.root().items.size(), 2000u);
  EXPECT_EQ(pickle.root().items[0]->arguments, pickle.root().items[1999]->arguments);
  EXPECT_EQ(pickle.root().items[0]->arguments->items.size(), 1'000'000u);
}

TEST(Pickle, ManyValuesOfFewBytesAreRefused) {
  EXPECT_THAT(problem("](" + std::string(15'000'000, ']') + "e"), HasSubstr("more values than a file of its size"));
  EXPECT_THAT(problem(")" + std::string(15'000'000, '\x85')), HasSubstr("more values than a file of its size"));
  EXPECT_THAT(problem(std::string(17'000'000, 'N')), HasSubstr("stacks more values"));
  EXPECT_THAT(problem(std::string(1'000'000, '(')), HasSubstr("more marks"));
  // Numbers of a file are shared, so that a checkpoint of many ranks fits.
  std::string many = "](";
  for (int i = 0; i < 1'000'000; ++i) many += "K\x07K\x08\x86";
  EXPECT_EQ(problem(many + "e"), "none");
}

TEST(Pickle, FieldsOfAnObjectAreAmongItsFirst) {
  std::string state = "}(";
  for (int i = 0; i < 70; ++i) state += text(("k" + std::to_string(i)).c_str()) + "K" + static_cast<char>(i);
  const Pickle pickle = parse(state + "u");
  EXPECT_EQ(pickle.root().find("k63")->integer, 63);
  EXPECT_EQ(pickle.root().find("k64"), nullptr);
}

TEST(Pickle, CirclesEnd) {
  // A list that holds itself.
  const Pickle pickle = parse(std::string("]\x94h") + std::string(1, '\0') + "a");
  EXPECT_EQ(pickle.root().items.front(), &pickle.root());
}

TEST(Pickle, DamagedOnesAreErrors) {
  EXPECT_THAT(problem(""), HasSubstr("other than one value"));
  EXPECT_THAT(problem("K\x01K\x01"), HasSubstr("other than one value"));
  EXPECT_THAT(problem("0"), HasSubstr("lacks its operands"));
  EXPECT_THAT(problem("(0"), HasSubstr("lacks its operands"));
  EXPECT_THAT(problem("t"), HasSubstr("lacks its mark"));
  EXPECT_THAT(problem("h\x05"), HasSubstr("not remembered"));
  EXPECT_THAT(problem("}(K\x01u"), HasSubstr("key without a value"));
  EXPECT_THAT(problem("K\x01)R"), HasSubstr("not a class or function"));
  EXPECT_THAT(problem("K\x01K\x01"
                      "b"),
              HasSubstr("not an object"));
  EXPECT_THAT(problem("K\x01K\x01"
                      "a"),
              HasSubstr("takes none"));
  EXPECT_THAT(problem("\xff"), HasSubstr("0xff"));
  EXPECT_THAT(problem(std::string("\x8d\xff\xff\xff\xff\xff\xff\xff\xff", 9)), HasSubstr("cut off"));
  EXPECT_THAT(problem(std::string("\x8a\x09") + std::string(9, '\x01')), HasSubstr("larger than any size"));
  EXPECT_THAT(problem("ctorch"), HasSubstr("cut off"));
}

TEST(Pickle, EveryShortenedFileIsAnError) {
  const std::string program = "\x80\x04}(" + text("a") + "\x94" + "K\x01K\x02\x86" + text("b") + "](K\x03N" + "eu.";
  ASSERT_NO_THROW(Pickle::parse(program, {}, "file"));
  for (size_t length = 0; length < program.size(); ++length) {
    EXPECT_THROW(Pickle::parse(program.substr(0, length), {}, "file"), UserError) << length;
  }
}

}  // namespace
}  // namespace hone
