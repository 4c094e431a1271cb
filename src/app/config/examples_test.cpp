// The configurations in examples/ are ones that this version reads.
#include <gtest/gtest.h>

#include <filesystem>

#include "app/config/resolve.h"

namespace hone {
namespace {

namespace fs = std::filesystem;

TEST(Examples, ThereIsOneForEveryModelAndMethod) {
  for (const char* model : {"qwen3_moe", "qwen3", "qwen2_moe", "mixtral", "olmoe", "granitemoe", "glm4_moe", "llama"}) {
    for (const char* method : {"full", "lora"}) {
      const fs::path file = fs::path(HONE_SOURCE_DIR) / "examples" / (std::string(model) + "_" + method + ".yaml");
      ASSERT_TRUE(fs::exists(file)) << file;
      EXPECT_EQ(load_config(file.string(), {}).run.model.finetuning_type, method) << file;
    }
  }
}

TEST(Examples, AllAreReadWithoutRemark) {
  int files = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(fs::path(HONE_SOURCE_DIR) / "examples")) {
    if (entry.path().extension() != ".yaml") continue;
    const ResolvedConfig config = load_config(entry.path().string(), {});
    EXPECT_TRUE(config.notes.empty()) << entry.path() << ": " << config.notes.front();
    EXPECT_NO_THROW(require_keys(config, {"model_name_or_path", "datasets"})) << entry.path();
    ++files;
  }
  EXPECT_GE(files, 16);
}

}  // namespace
}  // namespace hone
