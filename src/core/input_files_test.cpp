#include "core/input_files.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "core/root_testing.h"

namespace hone {
namespace {

namespace fs = std::filesystem;

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
