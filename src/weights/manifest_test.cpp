#include "weights/manifest.h"

#include <gtest/gtest.h>

#include "core/checksum.h"
#include "core/error.h"
#include "core/json.h"
#include "core/root_testing.h"

namespace hone {
namespace {

namespace fs = std::filesystem;

class ManifestTest : public ::testing::Test {
 protected:
  ManifestTest() {
    root_.write("a.json", "{}");
    root_.write("b.safetensors", big_);
    Manifest::of(root_.path(), {}).write(root_.path());
  }
  Manifest read() const { return *Manifest::read(root_.path()); }
  static std::span<const std::byte> bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

  const std::string big_ = std::string(5'000'000, 'a') + std::string(4'000'000, 'b');
  testing::TestRoot root_;
};

TEST_F(ManifestTest, SaysOfEveryFileHowLongItIsAndWhatItSumsUpTo) {
  const Manifest manifest = read();
  ASSERT_EQ(manifest.files().size(), 2u);
  EXPECT_EQ(manifest.files().at("a.json"), (FileChecksum{2, crc32c("{}")}));
  EXPECT_EQ(manifest.files().at("b.safetensors"), (FileChecksum{big_.size(), crc32c(big_)}));
  EXPECT_EQ(manifest.sizes_problem(root_.path()), "");
  EXPECT_EQ(manifest.contents_problem(root_.path(), {}), "");
  EXPECT_FALSE(Manifest::read(root_ / "elsewhere"));
}

TEST_F(ManifestTest, FindsWhatIsMissingCutOrChanged) {
  const Manifest manifest = read();
  root_.write("a.json", "[]");
  EXPECT_EQ(manifest.sizes_problem(root_.path()), "");
  EXPECT_NE(manifest.contents_problem(root_.path(), {}).find("a.json"), std::string::npos);
  EXPECT_EQ(manifest.contents_problem(root_.path(), {}, {"a.json"}), "");
  root_.write("a.json", "[1]");
  EXPECT_NE(manifest.sizes_problem(root_.path()).find("3 bytes, not 2"), std::string::npos);
  fs::remove(root_ / "a.json");
  EXPECT_EQ(manifest.sizes_problem(root_.path()), "a.json is missing");
}

TEST_F(ManifestTest, TakesWhatHasBeenReadFromTheLedger) {
  const Manifest manifest = read();
  const std::string name = "b.safetensors";
  ReadLedger right;  // in any order, with gaps, and some of it twice
  right.add(name, 6'000'000, bytes(big_.substr(6'000'000, 1'000'000)));
  right.add(name, 1'000, bytes(big_.substr(1'000, 2'000)));
  right.add(name, 3'000, bytes(big_.substr(3'000, 9)));
  right.add(name, 2'000, bytes(big_.substr(2'000, 500)));
  EXPECT_EQ(manifest.contents_problem(root_.path(), right), "");
  ReadLedger wrong;  // what was read is not what the file now gives
  wrong.add(name, 1'000, bytes(std::string(100, 'x')));
  EXPECT_NE(manifest.contents_problem(root_.path(), wrong), "");
  ReadLedger of_two_ranks;
  of_two_ranks.merge(right.pieces());
  EXPECT_EQ(manifest.contents_problem(root_.path(), of_two_ranks), "");
  of_two_ranks.merge(wrong.pieces());
  ReadLedger of_other_first;
  of_other_first.merge(wrong.pieces());
  EXPECT_NE(manifest.contents_problem(root_.path(), of_other_first), "");
}

TEST_F(ManifestTest, ADamagedOneIsAnErrorAndNamesNoOtherFolder) {
  for (const char* text : {"", "[]", "{\"version\": 1}", "{\"version\": 9, \"files\": {}}",
                           R"({"version": 1, "files": {"a": {"bytes": -1, "crc32c": "00000000"}}})",
                           R"({"version": 1, "files": {"a": {"bytes": 1, "crc32c": "zz"}}})",
                           R"({"version": 1, "files": {"../a": {"bytes": 1, "crc32c": "00000000"}}})"}) {
    root_.write(kManifestName, text);
    EXPECT_THROW(Manifest::read(root_.path()), UserError) << text;
  }
}

}  // namespace
}  // namespace hone
