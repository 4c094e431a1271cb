#include "data/train_detail.h"

#include <gmock/gmock.h>

#include "data/data_testing.h"
#include "data/sample_encoder.h"

namespace hone {
namespace {

using testing::HasSubstr;

const Tokenizer& qwen() {
  static const Tokenizer tokenizer = qwen_tokenizer();
  return tokenizer;
}

Json row_with(const std::string& content, const Json& detail) {
  return {{"messages",
           {{{"role", "user"}, {"content", "q"}},
            {{"role", "assistant"}, {"content", content}, {"train_detail", detail}}}}};
}

Sample encoded(const Json& row, const std::string& chat_template = "") {
  const SampleEncoder encoder(&qwen(), {.chat_template = chat_template}, 10'000);
  return encoder.encode(format_row(row, SampleFormat::kMessages, "d.jsonl:7"), "d.jsonl:7").sample;
}

std::string learnt(const Sample& sample) { return supervised_text(sample, qwen()); }

Json stretch(int begin, int end, const Json& train) {
  return {{"begin_offset", begin}, {"end_offset", end}, {"train", train}};
}

TEST(TrainDetail, ChoosesCharactersOfTheContent) {
  // Single letters with line ends between are a token each.
  EXPECT_EQ(learnt(encoded(row_with("A\nB\nC\nD", Json::array({stretch(2, 3, true), stretch(6, 6, true)})))),
            "B\n|D<|im_end|>");
  EXPECT_EQ(learnt(encoded(row_with("A\nB\nC\nD", Json::array({stretch(0, 3, false), stretch(4, 6, true)})))),
            "C\nD<|im_end|>");
}

TEST(TrainDetail, CountsCharactersNotBytes) {
  EXPECT_EQ(learnt(encoded(row_with("é\n漢\nB", Json::array({stretch(4, 4, true)})))), "B<|im_end|>");
}

TEST(TrainDetail, FollowsContentThatTheTemplateTrims) {
  const std::string trimming =
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}";
  EXPECT_EQ(learnt(encoded(row_with("\n\nA\nB", Json::array({stretch(4, 4, true)})), trimming)), "B<|im_end|>");
}

TEST(TrainDetail, AWeightMultipliesThatOfTheMessage) {
  Json row = row_with("A\nB", Json::array({{{"begin_offset", 0}, {"end_offset", 0}, {"weight", 0.5}}}));
  row["messages"][1]["weight"] = 0.5;
  const Sample sample = encoded(row);
  EXPECT_EQ(learnt(sample), "A|<|im_end|>");
  std::vector<float> weights;
  for (size_t i = 0; i < sample.labels.size(); ++i) {
    if (sample.labels[i] != kIgnoredLabel) weights.push_back(sample.weights[i]);
  }
  EXPECT_THAT(weights, testing::ElementsAre(0.25f, 0.5f));
}

TEST(TrainDetail, IsNotShownToTheTemplate) {
  const Sample sample = encoded(row_with("A", Json::array({stretch(0, 0, true)})),
                                "{% for m in messages %}{{ m.content }}{{ m.train_detail is defined }}<|im_end|>"
                                "{% endfor %}");
  EXPECT_EQ(qwen().decode(sample.input_ids, false), "qFalse<|im_end|>AFalse<|im_end|>");
}

TEST(TrainDetail, MistakesAreNamed) {
  const auto error = [](const Json& detail) { return refusal([&] { encoded(row_with("abc", detail)); }); };
  EXPECT_THAT(error("all"), HasSubstr("messages[1].train_detail"));
  EXPECT_THAT(error(Json::array({5})), HasSubstr("train_detail[0]"));
  EXPECT_THAT(error(Json::array({stretch(0, 3, true)})),
              HasSubstr("end_offset is 3, but the content has 3 characters"));
  EXPECT_THAT(error(Json::array({stretch(-1, 2, true)})), HasSubstr("begin_offset is -1"));
  EXPECT_THAT(error(Json::array({stretch(2, 1, true)})), HasSubstr("ends before it begins"));
  EXPECT_THAT(error(Json::array({stretch(0, 1, true), stretch(1, 2, true)})), HasSubstr("overlap"));
  EXPECT_THAT(error(Json::array({{{"begin_offset", 0}, {"end_offset", 1}}})),
              HasSubstr("neither 'train' nor 'weight'"));
  EXPECT_THAT(error(Json::array({{{"end_offset", 1}, {"train", true}}})), HasSubstr("no whole number 'begin_offset'"));
  EXPECT_THAT(error(Json::array({stretch(0, 1, "yes")})), HasSubstr("train_detail[0].train"));
  EXPECT_EQ(error(nullptr), "");
}

}  // namespace
}  // namespace hone
