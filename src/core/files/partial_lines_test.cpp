#include "core/files/partial_lines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/files/root_testing.h"

namespace hone {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::TestRoot;

bool is_whole(std::string_view line) { return line.starts_with("a"); }
void refuse(const std::string& found) { throw UserError("another one: " + found); }

TEST(PartialLines, GoOnAfterTheLastCompleteOne) {
  const TestRoot root;
  const std::filesystem::path output = root / "deep/out", file = PartialLines::path_for(output);
  {
    PartialLines lines(output, "header", is_whole, refuse);
    EXPECT_THAT(lines.earlier(), IsEmpty());
    lines.append("a1");
    lines.append("a2");
  }
  EXPECT_EQ(TestRoot::read(file), "header\na1\na2\n");
  root.write("deep/out.hone-partial", "header\na1\na2\na3");  // killed while it was written
  {
    PartialLines lines(output, "header", is_whole, refuse);
    EXPECT_THAT(lines.earlier(), ElementsAre("a1", "a2"));
    lines.append("a3, whole");
  }
  EXPECT_EQ(TestRoot::read(file), "header\na1\na2\na3, whole\n");
  root.write("deep/out.hone-partial", std::string("header\na1\n") + std::string(8, '\0') + "\na3\n");
  PartialLines lines(output, "header", is_whole, refuse);
  EXPECT_THAT(lines.earlier(), ElementsAre("a1"));
  EXPECT_EQ(TestRoot::read(file), "header\na1\n");
  lines.discard();
  EXPECT_FALSE(std::filesystem::exists(file));
}

TEST(PartialLines, OfAnotherCommandStayUnlessTheCallerTakesThem) {
  const TestRoot root;
  root.write("out.hone-partial", "other\na1\n");
  EXPECT_THROW(PartialLines(root / "out", "header", is_whole, refuse), UserError);
  EXPECT_EQ(TestRoot::read(root / "out.hone-partial"), "other\na1\n");
  std::string found;
  PartialLines lines(root / "out", "header", is_whole, [&](const std::string& header) { found = header; });
  EXPECT_EQ(found, "other");
  EXPECT_THAT(lines.earlier(), IsEmpty());
  EXPECT_EQ(TestRoot::read(root / "out.hone-partial"), "header\n");
}

TEST(PartialLines, HaveOneWriterAtATime) {
  const TestRoot root;
  PartialLines lines(root / "out", "header", is_whole, refuse);
  lines.append("a1");
  EXPECT_THROW(PartialLines(root / "out", "header", is_whole, refuse), UserError);
  EXPECT_EQ(TestRoot::read(root / "out.hone-partial"), "header\na1\n");
}

}  // namespace
}  // namespace hone
