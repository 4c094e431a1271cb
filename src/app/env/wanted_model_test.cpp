#include "app/env/wanted_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/text/json.h"

namespace hone {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

HfConfig released(const std::string& name) {
  return HfConfig::read_file(std::string(HONE_SOURCE_DIR) + "/tests/fixtures/config/released/" + name + ".json");
}

HfConfig changed(const std::string& name, const Json& fields) {
  Json json = released(name).json();
  json.update(fields);
  return HfConfig(std::move(json), "config.json");
}

TEST(WantedModel, AKnownArchitectureIsNamed) {
  EXPECT_THAT(wanted_text(released("glm-4.7-flash")), HasSubstr("Glm4MoeLiteForCausalLM is known: GLM-4.7-Flash"));
}

TEST(WantedModel, FieldsThatNoArchitectureReadsAreTheUnknownParts) {
  const std::string text = wanted_text(changed("glm-4.7-flash", {{"architectures", {"GlmMoeDsaForCausalLM"}},
                                                                 {"model_type", "glm_moe_dsa"},
                                                                 {"index_topk", 2048},
                                                                 {"index_n_heads", 32}}));
  EXPECT_THAT(text, HasSubstr("'GlmMoeDsaForCausalLM' is not in this version"));
  EXPECT_THAT(text, HasSubstr("read for none        index_topk, index_n_heads\n"));
  EXPECT_THAT(text, HasSubstr("glm4_moe_lite        reads all but: index_topk, index_n_heads"));
  EXPECT_THAT(text, HasSubstr("as deepseek_v3 it would have"));
  EXPECT_THAT(text, HasSubstr("from a latent of 512"));
}

TEST(WantedModel, ARefusedValueIsSaid) {
  const std::string text = wanted_text(changed("dots.llm1", {{"architectures", {"Dots2ForCausalLM"}},
                                                             {"model_type", "dots2"},
                                                             {"scoring_func", "sqrtsoftplus"},
                                                             {"hidden_act", "xielu"}}));
  EXPECT_THAT(text, HasSubstr("refuses: "));
  EXPECT_THAT(text, HasSubstr("xielu"));
  EXPECT_THAT(text, Not(HasSubstr("it would have")));
}

TEST(WantedModel, AFileOfNothingSaysSo) {
  EXPECT_THAT(wanted_text(HfConfig(Json::object(), "config.json")), HasSubstr("Of the 0 fields"));
}

}  // namespace
}  // namespace hone
