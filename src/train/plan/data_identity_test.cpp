#include "train/plan/data_identity.h"
#include "core/text/json.h"

#include <gtest/gtest.h>

namespace hone {
namespace {

Json identity(const std::string& hash, int64_t samples, int64_t max_length) {
  return {{"datasets", {{"chat", {{"path", "c.jsonl"}, {"samples", samples}, {"tokens", 4470}, {"hash", hash}}}}},
          {"eval", "e"},
          {"order", {{"max_length", max_length}, {"packing", true}}}};
}

TEST(DataIdentity, SaysWhatDiffers) {
  const Json before = identity("1", 119, 64);
  EXPECT_EQ(identity_difference(before, before), "");
  EXPECT_EQ(identity_difference(before, identity("2", 120, 64)),
            "the data set 'chat' (c.jsonl) has changed: 120 samples of 4,470 tokens, was 119 samples of 4,470 tokens");
  EXPECT_EQ(identity_difference(before, identity("2", 119, 64)),
            "the data set 'chat' (c.jsonl) has changed: 119 samples of 4,470 tokens, as before, but other ones");
  EXPECT_EQ(identity_difference(before, identity("1", 119, 128)), "max_length is 128, was 64");
  Json other = before;
  other["datasets"]["faq"] = other["datasets"]["chat"];
  EXPECT_EQ(identity_difference(before, other), "the data set 'faq' is new");
  EXPECT_EQ(identity_difference(other, before), "the data set 'faq' is no longer there");
}

TEST(DataIdentity, OtherValidationDataAreNoOtherTraining) {
  const Json before = identity("1", 119, 64);
  Json other = before;
  EXPECT_FALSE(eval_differs(before, other));
  other["eval"] = "f";
  EXPECT_TRUE(eval_differs(before, other));
  EXPECT_EQ(identity_difference(before, other), "");
}

}  // namespace
}  // namespace hone
