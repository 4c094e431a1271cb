#include "text/row_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/text/json.h"

namespace hone {
namespace {

using ::testing::HasSubstr;

std::string render(const std::string& source, const Json& row) {
  return RowTemplate(source, "--doc-to-text").render(row, "rows.jsonl:1");
}

TEST(RowTemplate, WritesColumnsAsJinjaDoes) {
  const Json row = {{"question", "Why? "}, {"choices", {"a", "b"}}, {"answer", 1}, {"more", {{"x", true}}}};
  EXPECT_EQ(render("Question: {{question.strip()}}\nAnswer:", row), "Question: Why?\nAnswer:");
  EXPECT_EQ(render("{{choices[answer]}} {{more.x}} {{answer + 1}}", row), "b True 2");
  EXPECT_EQ(render("{{choices | tojson}}", row), R"(["a", "b"])");
  EXPECT_EQ(render("{{'a #### 7'.split('#### ')[-1]}}\n", row), "7\n");  // the line break stays
}

TEST(RowTemplate, SaysWhereAndWhatIsWrong) {
  try {
    render("{{wrong}}", Json{{"question", "x"}, {"answer", "y"}});
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.where(), "rows.jsonl:1");
    EXPECT_THAT(error.message(), HasSubstr("--doc-to-text"));
    EXPECT_THAT(error.message(), ::testing::Not(HasSubstr("chat template")));
    EXPECT_EQ(error.fix(), "the columns of the row are question, answer");
  }
  EXPECT_THROW(RowTemplate("{{", "--doc-to-text"), UserError);
}

}  // namespace
}  // namespace hone
