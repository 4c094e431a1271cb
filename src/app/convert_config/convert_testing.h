// The fixture of convert-config's tests: a folder with files of other tools, and functions that convert them.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "app/convert_config/convert_config.h"
#include "config/config_testing.h"

namespace hone {

class ConvertConfig : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(testing::TempDir()) /
              ("convert_" + std::string(testing::UnitTest::GetInstance()->current_test_info()->name()));
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string write(const std::string& name, const std::string& text) {
    const std::filesystem::path path = folder_ / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
    return path.string();
  }

  std::string read(const std::string& path) {
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }

  /// Converts a file and resolves the result for `ranks`.
  ResolvedConfig converted(const std::string& input, bool accept = false, int64_t devices = 0, RanksOfRun ranks = {}) {
    ConvertOptions options;
    options.input = input;
    options.output = (folder_ / "run.yaml").string();
    options.accept_changes = accept;
    options.devices = devices;
    options.force = true;
    testing::internal::CaptureStdout();
    const int code = run_convert_config(options);
    printed_ = testing::internal::GetCapturedStdout();
    EXPECT_EQ(code, 0);
    text_ = read(options.output);
    return resolve_config(read_config_file(options.output), ConfigNode{}, ranks);
  }

  /// The error of a conversion without accept_changes; its way out is fix_.
  std::string refused(const std::string& input) {
    ConvertOptions options;
    options.input = input;
    options.output = (folder_ / "none.yaml").string();
    testing::internal::CaptureStdout();
    std::string what;
    fix_.clear();
    try {
      (void)run_convert_config(options);
    } catch (const UserError& error) {
      what = error.message();
      fix_ = error.fix();
      EXPECT_EQ(error.code(), ExitCode::kUserInput);
    }
    printed_ = testing::internal::GetCapturedStdout();
    EXPECT_FALSE(std::filesystem::exists(options.output));
    return what;
  }

  std::filesystem::path folder_;
  std::string printed_, text_, fix_;
};

inline bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace hone
