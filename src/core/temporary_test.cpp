#include "core/temporary.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/error.h"
#include "core/root_testing.h"

namespace hone {
namespace {

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

}  // namespace
}  // namespace hone
