#include "train/training_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "params/test_store.h"
#include "weights/checkpoint.h"

namespace hone {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

class TrainingState : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = fs::temp_directory_path() / ("hone_state_" + std::to_string(getpid()));
    fs::create_directories(path_);
  }
  void TearDown() override { fs::remove_all(path_); }

  static void make(ParameterStore& store, bool train_norm, DType moments = DType::kF32) {
    store.add({"w", {2, 3}, ParameterKind::kAttention, 0, {}}, DType::kBF16);
    store.add({"norm", {4}, ParameterKind::kNorm, 0, {}}, DType::kF32).set_trainable(train_norm);
    for (Parameter& parameter : store.all()) parameter.set_moment_dtype(moments);
    store.allocate(Device{});
  }
  std::string load_error(bool train_norm) const {
    ParameterStore store;
    make(store, train_norm);
    return testing::user_error([&] { load_training_state(path_, store); });
  }

  fs::path path_;
};

TEST_F(TrainingState, ComesBackBitwise) {
  ParameterStore saved, loaded;
  make(saved, true);
  make(loaded, true);
  testing::fill(saved, 9);
  for (int i = 0; i < 6; ++i) {
    saved.find("w")->moment1().as<float>()[i] = 0.1f * static_cast<float>(i);
    saved.find("w")->moment2().as<float>()[i] = 1e-12f * static_cast<float>(i);
  }
  RunState state;
  state.step = 12;
  state.optimizer_step = 11;
  state.best_metric = 0.1;
  state.seed = UINT64_MAX;
  state.data_fingerprint = "abc";
  save_training_state(path_, saved, state);
  const RunState back = load_training_state(path_, loaded);
  EXPECT_EQ(back.step, 12);
  EXPECT_EQ(back.optimizer_step, 11);
  EXPECT_EQ(back.best_metric, 0.1);
  EXPECT_EQ(back.best_step, -1);
  EXPECT_EQ(back.seed, UINT64_MAX);
  EXPECT_EQ(back.data_fingerprint, "abc");
  for (const char* name : {"w", "norm"}) {
    const Parameter &a = *saved.find(name), &b = *loaded.find(name);
    EXPECT_EQ(testing::bytes_of(a.value()), testing::bytes_of(b.value()));
    EXPECT_EQ(testing::bytes_of(a.master()), testing::bytes_of(b.master()));
    EXPECT_EQ(testing::bytes_of(a.moment1()), testing::bytes_of(b.moment1()));
    EXPECT_EQ(testing::bytes_of(a.moment2()), testing::bytes_of(b.moment2()));
  }
}

TEST_F(TrainingState, KeepsMomentsInTheirDtypeAndRefusesAnother) {
  ParameterStore saved, loaded, other;
  make(saved, true, DType::kBF16);
  make(loaded, true, DType::kBF16);
  make(other, true);
  for (int i = 0; i < 6; ++i) saved.find("w")->moment2().as<BFloat16>()[i] = BFloat16(0.1f * static_cast<float>(i));
  save_training_state(path_, saved, {});
  load_training_state(path_, loaded);
  EXPECT_EQ(testing::bytes_of(saved.find("w")->moment2()), testing::bytes_of(loaded.find("w")->moment2()));
  EXPECT_THAT(testing::user_error([&] { load_training_state(path_, other); }), HasSubstr("optim_state_dtype"));
}

TEST_F(TrainingState, OfOtherTrainableParametersOrAnotherVersionIsRefused) {
  EXPECT_THAT(load_error(true), HasSubstr("no training state"));
  ParameterStore store;
  make(store, false);
  save_training_state(path_, store, {});
  EXPECT_EQ(load_error(false), "");
  EXPECT_THAT(load_error(true), HasSubstr("norm/m"));
  ParameterStore all;
  make(all, true);
  save_training_state(path_, all, {});
  EXPECT_THAT(load_error(false), HasSubstr("does not train"));
  write_text_file(path_ / "training_state.json", R"({"version": 2})");
  EXPECT_THAT(load_error(true), HasSubstr("version 2"));
  write_text_file(path_ / "training_state.json", R"({"version": 1, "step": "x"})");
  EXPECT_THAT(load_error(true), HasSubstr("damaged"));
  write_text_file(path_ / "training_state.json", "[");
  EXPECT_THAT(load_error(true), HasSubstr("damaged"));
}

}  // namespace
}  // namespace hone
