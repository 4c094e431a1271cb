// Compares the tokenizer and the template engine with references that tools/compare_tokenizers.py and
// tools/compare_templates.py write with the Python libraries; for development, with files that are not distributed.
//
//     hone_text_compare tokenizer TOKENIZER_JSON REFERENCE_JSONL
//     hone_text_compare templates FOLDER RENDERINGS_JSON
#include <ctime>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>

#include "core/base/error.h"
#include "core/text/json.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace hone {
namespace {

constexpr int kShownDifferences = 10;

std::string file_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw UserError("cannot read the file", path);
  return {std::istreambuf_iterator<char>(file), {}};
}

class Comparison {
 public:
  void expect(bool equal, const std::string& what, const Json& expected, const Json& found) {
    ++compared_;
    if (equal) return;
    if (++different_ <= kShownDifferences)
      std::cout << what << "\n  expected " << expected.dump() << "\n  found    "
                << found.dump(-1, ' ', false, Json::error_handler_t::replace) << "\n";
  }
  int finish() const {
    std::cout << compared_ << " compared, " << different_ << " different\n";
    return different_ == 0 && compared_ > 0 ? 0 : 1;
  }

 private:
  int64_t compared_ = 0, different_ = 0;
};

/// Lines {"text", "ids", "decoded", "decoded_skip"}; ids with special tokens.
int compare_tokenizer(const std::string& tokenizer_file, const std::string& reference) {
  const Tokenizer tokenizer = Tokenizer::load(tokenizer_file);
  std::ifstream lines(reference);
  Comparison comparison;
  for (std::string line; std::getline(lines, line);) {
    const Json expected = Json::parse(line);
    const auto text = expected["text"].get<std::string>();
    const auto ids = expected["ids"].get<std::vector<int32_t>>();
    const std::vector<int32_t> found = tokenizer.encode(text, true);
    comparison.expect(found == ids, "encode " + expected["text"].dump(), ids, found);
    for (const bool skip : {false, true}) {
      const auto decoded = expected[skip ? "decoded_skip" : "decoded"].get<std::string>();
      const std::string ours = tokenizer.decode(ids, skip);
      comparison.expect(ours == decoded, "decode " + Json(ids).dump(), decoded, ours);
    }
  }
  return comparison.finish();
}

/// {"time": seconds, "cases": [{"template": file, "name", "input": {messages, tools, …}, "expected" or "error"}]}
int compare_templates(const std::string& folder, const std::string& renderings) {
  const Json reference = Json::parse(file_text(renderings));
  Comparison comparison;
  for (const Json& test : reference["cases"]) {
    const auto file = test["template"].get<std::string>();
    const std::string what = file + ", " + test["name"].get<std::string>();
    ChatInput input;
    input.messages = test["input"]["messages"];
    input.tools = test["input"].value("tools", Json(nullptr));
    input.documents = test["input"].value("documents", Json(nullptr));
    input.variables = test["input"]["variables"];
    input.add_generation_prompt = test["input"].value("add_generation_prompt", false);
    const Json expected = test.contains("error") ? Json({{"error", test["error"]}}) : test["expected"];
    try {
      const auto time = static_cast<std::time_t>(reference["time"].get<int64_t>());
      const std::string text = ChatTemplate(file_text(folder + "/" + file), file, time).render(input).text;
      comparison.expect(expected == text, what, expected, text);
    } catch (const UserError& error) {
      comparison.expect(test.contains("error"), what, expected, {{"error", error.what()}});
    }
  }
  return comparison.finish();
}

}  // namespace
}  // namespace hone

int main(int argc, char** argv) try {
  const std::string what = argc == 4 ? argv[1] : "";
  if (what == "tokenizer") return hone::compare_tokenizer(argv[2], argv[3]);
  if (what == "templates") return hone::compare_templates(argv[2], argv[3]);
  std::cerr << "usage: hone_text_compare tokenizer TOKENIZER_JSON REFERENCE_JSONL\n"
               "       hone_text_compare templates FOLDER RENDERINGS_JSON\n";
  return 2;
} catch (const std::exception& error) {
  std::cerr << error.what() << "\n";
  return 2;
}
