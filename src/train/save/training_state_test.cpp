#include "train/save/training_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "core/text/json.h"
#include "params/store_testing.h"
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

  static void make(ParameterStore& store, bool train_norm, const TrainingFormats& formats = {}) {
    store.add({"w", {2, 3}, ParameterKind::kAttention, 0, {}}, DType::kBF16);
    store.add({"norm", {4}, ParameterKind::kNorm, 0, {}}, DType::kF32).set_trainable(train_norm);
    for (Parameter& parameter : store.all()) parameter.set_formats(formats);
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
    saved.find("w")->state().moment1.values.as<float>()[i] = 0.1f * static_cast<float>(i);
    saved.find("w")->state().moment2.values.as<float>()[i] = 1e-12f * static_cast<float>(i);
  }
  RunState state;
  state.step = 12;
  state.optimizer_step = 11;
  state.best_metric = 0.1;
  state.seed = UINT64_MAX;
  state.evaluations = Json{{"first", {{"step", 4}, {"eval_loss", 2.5}}}};
  state.data = Json{{"order", {{"max_length", 64}}}};
  state.model = Json{{"finetuning_type", "full"}};
  save_training_state(path_, saved, state);
  const RunState back = load_training_state(path_, loaded);
  EXPECT_EQ(back.step, 12);
  EXPECT_EQ(back.optimizer_step, 11);
  EXPECT_EQ(back.best_metric, 0.1);
  EXPECT_EQ(back.best_step, -1);
  EXPECT_EQ(back.seed, UINT64_MAX);
  EXPECT_EQ(back.evaluations, state.evaluations);
  EXPECT_EQ(back.data, state.data);
  EXPECT_EQ(back.model, state.model);
  for (const char* name : {"w", "norm"}) {
    const Parameter &a = *saved.find(name), &b = *loaded.find(name);
    EXPECT_EQ(testing::bytes_of(a.value().whole()), testing::bytes_of(b.value().whole()));
    EXPECT_EQ(testing::bytes_of(stepped_value(a)), testing::bytes_of(stepped_value(b)));
    EXPECT_EQ(testing::bytes_of(a.state().moment1.values), testing::bytes_of(b.state().moment1.values));
    EXPECT_EQ(testing::bytes_of(a.state().moment2.values), testing::bytes_of(b.state().moment2.values));
  }
}

TEST_F(TrainingState, KeepsItsFormatsAndRefusesOthers) {
  const auto make_large = [](ParameterStore& store, const TrainingFormats& formats) {
    store.add({"w", {64, 70}, ParameterKind::kAttention, 0, {}}, DType::kBF16).set_formats(formats);
    store.allocate(Device{});
  };
  const TrainingFormats narrow{.m = DType::kBF16, .v = DType::kBF16};
  const TrainingFormats codes{.master = DType::kBF16, .m = DType::kI8, .v = DType::kU8};
  for (const TrainingFormats& formats : {narrow, codes}) {
    ParameterStore saved, loaded, other;
    make_large(saved, formats);
    make_large(loaded, formats);
    make_large(other, {});
    const Parameter &a = *saved.find("w"), &b = *loaded.find("w");
    std::byte next{7};
    for (const Moment* moment : {&a.state().moment1, &a.state().moment2}) {
      for (const Tensor& tensor : {moment->values, moment->scales, stepped_value(a)}) {
        for (size_t i = 0; tensor.defined() && i < tensor.bytes(); ++i) {
          tensor.data[i] = next = static_cast<std::byte>(static_cast<int>(next) * 5 + 3);
        }
      }
    }
    save_training_state(path_, saved, {});
    load_training_state(path_, loaded);
    EXPECT_EQ(testing::bytes_of(stepped_value(a)), testing::bytes_of(stepped_value(b)));
    for (const auto moment : {&OptimizerState::moment1, &OptimizerState::moment2}) {
      EXPECT_EQ(testing::bytes_of((a.state().*moment).values), testing::bytes_of((b.state().*moment).values));
      if (!(a.state().*moment).scales.defined()) continue;
      EXPECT_EQ(testing::bytes_of((a.state().*moment).scales), testing::bytes_of((b.state().*moment).scales));
    }
    EXPECT_THAT(testing::user_error([&] { load_training_state(path_, other); }), HasSubstr("opt_m_dtype"));
  }
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
  write_text_file(path_ / "training_state.json", R"({"version": 3})");
  EXPECT_THAT(load_error(true), HasSubstr("version 3"));
  write_text_file(path_ / "training_state.json", R"({"version": 2, "step": "x"})");
  EXPECT_THAT(load_error(true), HasSubstr("damaged"));
  write_text_file(path_ / "training_state.json", "[");
  EXPECT_THAT(load_error(true), HasSubstr("damaged"));
}

}  // namespace
}  // namespace hone
