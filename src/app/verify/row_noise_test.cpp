// Tests of noise that a case stores for what is computed once, and of errors that it must not hide.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "app/verify/noise_bounds.h"
#include "app/verify/verify_testing.h"
#include "core/base/error.h"

namespace hone {
namespace {

namespace fs = std::filesystem;

/// The most noise that rows may have: all numbers, and gradients of which half have the least that is not useless.
Json most_noise(const fs::path& directory) {
  Json noise = {{"seeds", 3}};
  for (const char* name :
       {"logits", "loss", "aux_loss", "token_losses", "accumulation_loss", "accumulation_grad_norm", "split_logits"}) {
    noise[name] = kMostRowNoise;
  }
  const std::pair<const char*, const char*> files[] = {{"gradients", "grads.safetensors"},
                                                       {"packed_gradients", "packed_grads.safetensors"},
                                                       {"accumulation_gradients", "accumulation_grads.safetensors"},
                                                       {"split_gradients", "split_adapter/expected.safetensors"}};
  for (const auto& [field, file] : files) {
    ReferenceTensors tensors = read_reference_tensors(directory / file);
    tensors.erase("logits");
    size_t i = 0;
    for (const auto& [name, tensor] : tensors) {
      noise[field][name] = i++ <= tensors.size() / 2 ? kMostRowNoise : kMostGradientNoise;
    }
  }
  return noise;
}

using PlantedModel = PlantedCase;

/// Errors in the model that every row which depends on it rejects even with the most noise that is permitted.
TEST_F(PlantedModel, IsRejectedWithTheMostNoise) {
  const auto failures = [&](const std::function<void()>& plant) {
    edit([&](Json& json) { json["noise"] = most_noise(path("")); });
    EXPECT_THAT(verify_failures(), ::testing::IsEmpty());
    plant();
    return verify_failures();
  };
  const std::vector<std::string> all = {"logits", "gradients", "documents packed, gradients", "accumulation, gradients",
                                        "split adapter, gradients"};
  EXPECT_THAT(failures([&] { scale_weight("model.norm.weight", 1.003); }), ::testing::IsSupersetOf(all));
  restore_model();
  EXPECT_THAT(failures([&] { scale_weight("model.layers.1.mlp.experts.3.down_proj.weight", 0.9); }),
              ::testing::IsSupersetOf(all));
}

/// A tiny model's own noise is below the bounds of the table, which stay.
TEST_F(PlantedModel, IsRejectedWithTheNoiseOfATinyModel) {
  edit([&](Json& json) {
    json["noise"] = {{"seeds", 3}, {"logits", 1e-6}, {"gradients", {{"lm_head.weight", 1e-6}}}};
  });
  EXPECT_THAT(verify_failures(), ::testing::IsEmpty());
  const std::vector<std::string> all = {"logits", "gradients", "documents packed, gradients", "accumulation, gradients",
                                        "split adapter, gradients"};
  edit_model([](Json& config) { config["rope_parameters"]["rope_theta"] = 10010.0; });
  EXPECT_THAT(verify_failures(), ::testing::IsSupersetOf(all));
  restore_model();
  edit_model([](Json& config) { config["rms_norm_eps"] = 1e-3; });
  EXPECT_THAT(verify_failures(), ::testing::IsSupersetOf(all));
  restore_model();
  scale_weight("model.layers.0.input_layernorm.weight", 1.001);
  EXPECT_THAT(verify_failures(), ::testing::IsSupersetOf(all));
}

TEST_F(PlantedModel, GradientsAreRejectedWithTheMostNoise) {
  const std::string norms = "model.layers.0.mlp.experts.down_proj.row_norms";
  edit([&](Json& json) { json["noise"] = most_noise(path("")); });
  for (const std::string file : {"grads.safetensors", "packed_grads.safetensors", "accumulation_grads.safetensors"}) {
    // An expert whose gradient one side lacks.
    const HostTensors gradients = read_host_tensors(path(file));
    const std::vector<float>& rows = gradients.at(norms).values;
    const auto largest = std::max_element(rows.begin(), rows.end());
    add(file, norms, largest - rows.begin(), static_cast<double>(*largest));
  }
  const std::vector<std::string> rows = {"gradients", "documents packed, gradients", "accumulation, gradients"};
  EXPECT_THAT(verify_failures(), ::testing::ElementsAreArray(rows));
  for (const std::string file : {"grads.safetensors", "packed_grads.safetensors", "accumulation_grads.safetensors"}) {
    restore(file);
    scale_tensors(file, 1.001);
  }
  EXPECT_THAT(verify_failures(), ::testing::ElementsAreArray(rows));
}

TEST_F(PlantedCase, NoiseOfRowsWidensTheirBounds) {
  const auto failures = [&](double noise) {
    edit([&](Json& json) {
      json["loss"] = json["loss"].get<double>() * (1 + 1e-4);
      json["accumulation"]["grad_norm"] = json["accumulation"]["grad_norm"].get<double>() * (1 + 2e-4);
      json["noise"] = {{"loss", noise}, {"accumulation_grad_norm", 2 * noise}};
    });
    return verify_failures();
  };
  EXPECT_THAT(failures(0.6e-4), ::testing::IsEmpty());
  EXPECT_THAT(failures(0.4e-4), ::testing::ElementsAre("loss", "accumulation, grad norm"));
}

TEST_F(PlantedCase, NoiseOfRowsThatNoErrorCouldExceedIsRefused) {
  const auto complaint = [&](const std::function<void(Json&)>& change) -> std::string {
    edit([&](Json& json) { change(json["noise"] = most_noise(path(""))); });
    return refusal_of_case();
  };
  using ::testing::HasSubstr;
  EXPECT_EQ(complaint([](Json&) {}), "no error");
  EXPECT_THAT(complaint([](Json& noise) { noise["logits"] = 2.1e-4; }), HasSubstr("'noise.logits' is not from 0 to"));
  EXPECT_THAT(complaint([](Json& noise) { noise["token_losses"] = -1.0; }), HasSubstr("'noise.token_losses'"));
  EXPECT_THAT(complaint([](Json& noise) { noise["gradients"]["lm_head.weight"] = 0.06; }),
              HasSubstr("'noise.gradients.lm_head.weight' is not from 0 to"));
  EXPECT_THAT(complaint([](Json& noise) {
                for (Json& value : noise["packed_gradients"]) value = 3e-4;
              }),
              HasSubstr("'noise.packed_gradients' is not in half of the tensors from 0 to"));
  EXPECT_THAT(complaint([](Json& noise) { noise["split_gradients"] = 0.1; }), HasSubstr("'noise.split_gradients'"));
  EXPECT_THAT(complaint([](Json& noise) { noise = 0.1; }), HasSubstr("'noise.' is not an object"));
}

}  // namespace
}  // namespace hone
